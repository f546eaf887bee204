"""Reads `params.yaml` into frozen, typed, strict config; no other module reads the file.

A workload is one entry under `workloads`. Unknown keys and wrong types are refused; the message
names the place and what is allowed. Types are not converted.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from models import families
from retrain.errors import UsageError
from retrain.hardware import precision, threads

Fraction = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[int, Field(ge=1)]
# A workload's name: valid in MLflow, in Prefect and as a folder's name.
NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}"
BatchSize = Annotated[int, Field(ge=1, le=1 << 20)]
Kind = TypeVar("Kind", bound=BaseModel)


class Section(BaseModel):
    """A part of a workload: frozen, no unknown keys, no coercion of types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Split(Section):
    """The fractions of the images for splits that the data does not have.

    An image's content decides its split, so that it stays there when the data grows.
    """

    val: Fraction = 0.1
    test: Fraction = 0.2


class Data(Section):
    """The images and where they are.

    Attributes:
        path: A path under the project's `data/` (versioned by DVC); or any other folder, file or
            fsspec URL; or a data set on the Hugging Face hub (`format: hub`).
        format: `folders` is a folder per class, with or without a folder per split above it.
        image_column: The Parquet column with the image: a struct of `bytes` and `path`, or bytes.
        label_column: The Parquet column with the class: a name, or an integer.
    """

    path: str
    format: Literal["auto", "parquet", "folders", "hub"] = "auto"
    image_column: str = "image"
    label_column: str = "label"
    split: Split = Split()


class Checks(Section):
    """The conditions that the data must meet before a model is trained on it.

    Attributes:
        labels: The allowed classes; those of the training split when None.
        min_images_per_class: Over all splits. Train and test need at least one of each class.
        min_side: The smallest shorter side, in pixels.
        max_side: The largest longer side, in pixels.
        max_bad_fraction: Bad images up to this fraction are set aside instead of stopping the run.
        near_duplicates: What happens to an image of train or val that looks like one of a split
            held out from it, such as the same photo saved again: `report` counts and lists it,
            `bad` makes it a bad image.
    """

    labels: tuple[str, ...] | None = None
    min_images_per_class: Positive = 10
    min_side: Positive = 8
    max_side: Positive = 10_000
    max_bad_fraction: Fraction = 0.0
    near_duplicates: Literal["report", "bad"] = "report"

    @model_validator(mode="before")
    @classmethod
    def _labels_as_tuple(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(values.get("labels"), list):
            return values | {"labels": tuple(values["labels"])}
        return values


class Images(Section):
    """How images are prepared for the model.

    Attributes:
        size: Height and width in pixels.
        channels: 1 is grey, 3 is RGB.
        resize: `crop` scales the shorter side to `size` and cuts the centre out; `stretch` does
            not keep the proportions.
        storage: How the resized images of the training split are stored: `pixels`, or `jpeg`
            (quality 95, full colour resolution), which is smaller but is decoded in every epoch.
            `auto` is `pixels` up to 100 GB. The other splits are always stored as pixels.
    """

    size: Annotated[int, Field(ge=1, le=4096)] = 224
    channels: Literal[1, 3] = 3
    resize: Literal["crop", "stretch"] = "crop"
    storage: Literal["auto", "pixels", "jpeg"] = "auto"


class Model(BaseModel):
    """Which network: a family in `models/`, and that family's own settings beside its name."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True, allow_inf_nan=False)

    family: str


class Augment(Section):
    """Random changes of the training images, drawn anew for each epoch.

    Attributes:
        flip: Mirror half of the images left to right.
        shift: Move by up to this many pixels in both directions, filling with the edge.
    """

    flip: bool = False
    shift: Annotated[int, Field(ge=0)] = 0


class Train(Section):
    """How the model is trained.

    Attributes:
        batch_size: Images per optimizer step, over all workers.
        lr: The peak learning rate.
        warmup: The fraction of all steps in which the learning rate rises.
        schedule: How it falls after that: `cosine` to 0; `one_cycle` starts at 1/25 of the peak
            and ends near 0 (Smith and Topin, 2018).
        clip_norm: The largest gradient norm; 0 is no clipping.
        micro_batch: Images of a worker's part of a batch that go through the network at once, for a
            batch that does not fit into a GPU; all of them when None. The optimizer step is the
            same, except for rounding.
        precision: The precision of the matrix products; `auto` is bf16 where `retrain.hardware`
            finds it faster. Weights and optimizer are always fp32.
        compile: Whether `torch.compile` is used; `auto` is true if a training on a GPU is long
            enough.
    """

    epochs: Annotated[int, Field(ge=1, le=100_000)] = 20
    batch_size: BatchSize = 64
    lr: Annotated[float, Field(gt=0)] = 1e-3
    weight_decay: Annotated[float, Field(ge=0)] = 0.05
    warmup: Fraction = 0.1
    schedule: Literal["cosine", "one_cycle"] = "cosine"
    clip_norm: Annotated[float, Field(ge=0)] = 1.0
    label_smoothing: Fraction = 0.0
    micro_batch: BatchSize | None = None
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    compile: Literal["auto"] | bool = "auto"
    augment: Augment = Augment()
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0


class Scale(Section):
    """The workers, threads and memory of the training.

    Attributes:
        workers: 0 trains in the run's own process; 2 and up is data-parallel over Ray workers,
            each with a GPU where the cluster has enough of them.
        threads: CPU threads of a worker. `auto` is one for a small network, else the worker's share
            of the cores; None where the training runs on a GPU. Another number sums in another
            order and so trains another model.
        require_gpu: Refuse to train without a GPU for each worker, instead of training on CPUs.
        memory_gb: How much of the training images each worker may hold, in 10^9 bytes. If all fit,
            each epoch shuffles all images; else it shuffles parts of this size, which trains
            another model.
        checkpoint_seconds: A checkpoint is written after every epoch that took a second, and at
            most this many seconds after the last one.
        max_failures: How often lost workers are replaced before the training fails.
    """

    workers: Annotated[int, Field(ge=0, le=4096)] = 0
    threads: Literal["auto"] | Positive | None = "auto"
    require_gpu: bool = False
    memory_gb: Annotated[float, Field(gt=0)] = 4.0
    checkpoint_seconds: Annotated[float, Field(gt=0)] = 60.0
    max_failures: Annotated[int, Field(ge=0)] = 2


class Evaluate(Section):
    """How the model is evaluated.

    Attributes:
        batch_size: Images per forward pass.
        precision: As in `train`.
    """

    batch_size: BatchSize = 256
    precision: Literal["auto", "fp32", "bf16"] = "auto"


class Gate(Section):
    """When a model may go to production. The metrics are those of `evaluate`.

    Attributes:
        min: The smallest allowed values of metrics, by name: `{accuracy: 0.9}`.
        max: The largest allowed values of metrics, by name: `{log_loss: 0.5}`.
        metric: The metric that is compared with the champion's, on the same test split.
        margin: By how much the metric must be better than the champion's.
    """

    min: dict[str, float] = {}
    max: dict[str, float] = {}
    metric: str = "accuracy"
    margin: Annotated[float, Field(ge=0)] = 0.0


class Workload(Section):
    """One model to keep trained: an entry under `workloads` in `params.yaml`.

    Attributes:
        limits: The time limits of steps, in hours, by name: `{train: 3}`. A step that is not
            named has a generous default.
    """

    name: str
    data: Data
    checks: Checks = Checks()
    images: Images = Images()
    model: Model
    train: Train = Train()
    scale: Scale = Scale()
    evaluate: Evaluate = Evaluate()
    gate: Gate = Gate()
    limits: dict[str, Annotated[float, Field(gt=0, le=8760)]] = {}

    def flat(self) -> dict[str, Any]:
        """Every parameter by its dotted name: `{"train.lr": 0.001, …}`, in order."""
        return flatten(self.model_dump(mode="json"))


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted names; an empty mapping stays a value."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def workload_names(params: Path) -> list[str]:
    """The names of the workloads in a `params.yaml`."""
    return list(_read(params))


def load_workload(params: Path, name: str, overrides: Mapping[str, Any] | None = None) -> Workload:
    """Reads one workload, and decides `auto` precision and threads for this machine.

    Args:
        params: The file `params.yaml`.
        name: An entry under its `workloads`.
        overrides: Values that replace the file's, by dotted name: `{"train.lr": 0.0005}`.

    Raises:
        UsageError: The file is missing or not YAML, or the name, a key or a value is wrong.
    """
    workloads = _read(params)
    if name not in workloads:
        raise UsageError(f"No workload {name!r} in {params.name}.{did_you_mean(name, workloads)}")
    _check_name(name)
    tree = workloads[name]
    for dotted, value in (overrides or {}).items():
        _set(tree, dotted, value)
    workload = _validate(Workload, {"name": name} | tree, name)
    family = workload.model.family
    if family not in families.FAMILIES:
        hint = did_you_mean(family, families.FAMILIES)
        raise UsageError(f"model.family: no {family!r} in models/.{hint}")
    settings = workload.model.model_dump(exclude={"family"})
    _validate(families.settings_class(family), settings, name)
    shape = (workload.images.size, workload.images.size, workload.images.channels)
    faults = [*_faults(workload), *families.faults(family, settings, shape)]
    if faults:
        raise UsageError(f"workload {name}: " + "\n".join(faults))
    return _with_numerics(workload, families.flops(family, settings, shape))


def parse_override(text: str) -> tuple[str, Any]:
    """Parses one `--set` of the command line into the dotted name and the value.

    Args:
        text: `train.lr=1e-3`; the value is read as YAML 1.2, as in `params.yaml`.

    Raises:
        UsageError: There is no `=`, or the value is not YAML.
    """
    dotted, equals, value = text.partition("=")
    if not equals or not dotted:
        raise UsageError(f"--set {text}: write it as key=value, such as train.lr=1e-3.")
    try:
        return dotted, _yaml().load(value)
    except YAMLError as error:
        raise UsageError(
            f"--set {text}: {value!r} is no YAML value ({_one_line(error)})."
        ) from None


def _yaml() -> YAML:
    # `pure` reads YAML 1.2, as DVC does for the same file: 1e-3 is a number and `no` is a string.
    return YAML(typ="safe", pure=True)


def _read(params: Path) -> dict[str, Any]:
    try:
        tree = _yaml().load(params.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"No file {params}.") from None
    except YAMLError as error:
        raise UsageError(f"{params.name} is no YAML: {_one_line(error)}") from None
    workloads = tree.get("workloads") if isinstance(tree, dict) else None
    if not isinstance(workloads, dict) or not all(isinstance(w, dict) for w in workloads.values()):
        raise UsageError(f"{params.name} needs `workloads:` with a mapping for each workload.")
    return workloads


def _set(tree: dict[str, Any], dotted: str, value: Any) -> None:
    *above, last = dotted.split(".")
    for name in above:
        tree = tree.setdefault(name, {})
        if not isinstance(tree, dict):
            raise UsageError(f"{dotted}: {name} is a value, it has nothing below it.")
    tree[last] = value


def _check_name(name: str) -> None:
    """Refuses a workload's name that would fail later.

    It is used for folders, a model and an experiment in MLflow, and Prefect's artifacts.
    """
    if not re.fullmatch(NAME, name):
        raise UsageError(
            f"workload {name!r}: MLflow, Prefect and file systems do not all accept this name. Use "
            "at most 100 ASCII letters, digits, - and _; the first is a letter or digit."
        )


def _faults(workload: Workload) -> Iterator[str]:
    """Finds values of a workload that are valid alone but not together."""
    if workload.data.path.strip() in ("", "."):
        yield "data.path: names no data; an example is data/digits."
    if workload.data.split.val + workload.data.split.test >= 1:
        yield "data.split: val and test together leave nothing to train on."
    if workload.checks.min_side > workload.checks.max_side:
        yield "checks.min_side is larger than checks.max_side."
    size, shift = workload.images.size, workload.train.augment.shift
    if shift >= size:
        yield f"train.augment.shift {shift} must be smaller than images.size {size}."
    batch, workers = workload.train.batch_size, max(workload.scale.workers, 1)
    if batch % workers:
        yield (
            f"train.batch_size {batch} cannot be divided among scale.workers {workers}: make it a "
            "multiple."
        )
    elif (micro := workload.train.micro_batch) is not None and micro > batch // workers:
        yield (
            f"train.micro_batch {micro} is more than a worker's part of train.batch_size, "
            f"{batch // workers}."
        )


def _with_numerics(workload: Workload, flops: float) -> Workload:
    """Decides the precisions and the threads that are `auto`; they change the rounding.

    Args:
        workload: A valid workload.
        flops: FLOPs of a forward pass of its network over one image.
    """
    sections: dict[str, Train | Evaluate] = {"train": workload.train, "evaluate": workload.evaluate}
    decided: dict[str, Section] = {
        name: section.model_copy(update={"precision": precision(flops * section.batch_size)})
        for name, section in sections.items()
        if section.precision == "auto"
    }
    scale = workload.scale
    count = threads(flops * workload.train.batch_size, scale.workers, scale.threads)
    decided["scale"] = scale.model_copy(update={"threads": count})
    return workload.model_copy(update=decided)


def _validate(kind: type[Kind], tree: Mapping[str, Any], workload: str) -> Kind:
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        prefix = "" if issubclass(kind, Workload) else "model."
        lines = [_explain(fault, kind, prefix) for fault in error.errors()]
        raise UsageError(f"workload {workload}: " + "\n".join(lines)) from None


def _explain(fault: Any, kind: type[BaseModel], prefix: str) -> str:
    """What is wrong at one place of a workload, and what is allowed there."""
    place = prefix + ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "value_error" and not fault["loc"]:  # a validator of several parameters
        return f"{prefix}{fault['ctx']['error']}."
    if fault["type"] == "missing":
        return f"{place}: missing."
    if fault["type"] != "extra_forbidden":
        message = fault["msg"].replace("Input should be", "should be")
        return f"{place}: {message}, is {fault['input']!r}."
    *above, last = fault["loc"]
    for part in above:
        kind = cast(type[BaseModel], kind.model_fields[part].annotation)
    return f"{place}: no such key.{did_you_mean(last, kind.model_fields)}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The second sentence of a message that refuses a name: the closest known name, or all."""
    close = difflib.get_close_matches(name, known := sorted(known), n=1)
    if close:
        return f" Did you mean {close[0]!r}?"
    return f" There are: {', '.join(known)}." if known else ""


def _one_line(error: Exception) -> str:
    return re.sub(r"\s+", " ", str(error)).strip()
