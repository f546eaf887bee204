"""Reads `params.yaml` into frozen, typed, strict config; no other module reads the file.

A workload is one entry under `workloads`. Unknown keys and wrong types are refused; the message
names the place and what is allowed. Types are not converted.
"""

import difflib
import re
import reprlib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, ReusedAnchorWarning, YAMLError

from models import families
from retrain.errors import UsageError
from retrain.hardware import precision, threads
from retrain.redaction import hide

Fraction = Annotated[float, Field(ge=0, lt=1)]
# Text that names a file, a column or a class; control characters in it are a mistake.
Text = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f\x7f]+$")]
# The longest side that a JPEG can have.
Side = Annotated[int, Field(ge=1, le=65_535)]
# A workload's name: valid in MLflow, in Prefect and as a folder's name.
NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}"
BatchSize = Annotated[int, Field(ge=1, le=1 << 20)]
# YAML has lists; a tuple cannot be changed.
Names = Annotated[
    tuple[str, ...], BeforeValidator(lambda value: tuple(value) if type(value) is list else value)
]
Kind = TypeVar("Kind", bound=BaseModel)

# The value of an override that drops the parameter to its default. No parameter can be this, and
# it is valid in JSON.
DEFAULT = ""

# A `params.yaml` has some kB. The rest are limits against files that take minutes to read.
MAX_BYTES = 1_000_000
MAX_VALUES = 100_000  # of a workload; aliases count as often as they are used
MAX_DEPTH = 20
MAX_FAULTS = 20  # that are shown


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
            fsspec URL; or a data set on the Hugging Face hub (`format: hub`). A password in a URL
            is hidden (`retrain.redaction`).
        format: `folders` is a folder per class, with or without a folder per split above it.
        image_column: The Parquet column with the image: a struct of `bytes` and `path`, or bytes.
        label_column: The Parquet column with the class: a name, or an integer.
    """

    path: Text
    format: Literal["auto", "parquet", "folders", "hub"] = "auto"
    image_column: Text = "image"
    label_column: Text = "label"
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

    labels: tuple[Text, ...] | None = None
    min_images_per_class: Annotated[int, Field(ge=1, le=10**9)] = 10
    min_side: Side = 8
    max_side: Side = 10_000
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

    family: Text


class Augment(Section):
    """Random changes of the training images, drawn anew for each epoch.

    Attributes:
        flip: Mirror half of the images left to right.
        shift: Move by up to this many pixels in both directions, filling with the edge.
    """

    flip: bool = False
    shift: Annotated[int, Field(ge=0, le=4096)] = 0


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
            same, except for rounding and for batch norms, which see a part at a time.
        precision: The precision of the matrix products; `auto` is bf16 where `retrain.hardware`
            finds it faster. Weights and optimizer are always fp32.
        compile: Whether `torch.compile` is used; `auto` is true if a training on a GPU is long
            enough.
    """

    epochs: Annotated[int, Field(ge=1, le=100_000)] = 20
    batch_size: BatchSize = 64
    lr: Annotated[float, Field(gt=0)] = 1e-3
    weight_decay: Annotated[float, Field(ge=0, le=1000)] = 0.05
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
    threads: Literal["auto"] | Annotated[int, Field(ge=1, le=1024)] | None = "auto"
    require_gpu: bool = False
    memory_gb: Annotated[float, Field(gt=0)] = 4.0
    checkpoint_seconds: Annotated[float, Field(gt=0)] = 60.0
    max_failures: Annotated[int, Field(ge=0, le=1000)] = 2


class Evaluate(Section):
    """How the model is evaluated.

    Attributes:
        batch_size: Images per forward pass.
        precision: As in `train`.
    """

    batch_size: Annotated[int, Field(ge=1, le=1 << 16)] = 256
    precision: Literal["auto", "fp32", "bf16"] = "auto"


class Gate(Section):
    """When a model may go to production. The metrics are those of `evaluate`.

    Attributes:
        min: The smallest allowed values of metrics, by name: `{accuracy: 0.9}`.
        max: The largest allowed values of metrics, by name: `{log_loss: 0.5}`.
        metric: The metric that is compared with the champion's, on the same test split.
        margin: By how much the metric must be better than the champion's.
        may_drop: The classes that a model may lack although the champion knows them.
    """

    min: dict[str, float] = {}
    max: dict[str, float] = {}
    metric: Text = "accuracy"
    margin: Annotated[float, Field(ge=0)] = 0.0
    may_drop: Names = ()


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


def load_workload(
    params: Path,
    name: str,
    overrides: Mapping[str, Any] | None = None,
    *,
    as_name: str | None = None,
) -> Workload:
    """Reads one workload; decides `auto` precision and threads for this machine.

    The version of pretrained weights is found too: the files of a folder are read, or the Hugging
    Face hub is asked.

    Args:
        params: The file `params.yaml`.
        name: An entry under its `workloads`.
        overrides: Values that replace the file's, by dotted name: `{"train.lr": 0.0005}`. An empty
            text drops a parameter or a section to its default: `{"model.layers": ""}`.
        as_name: Another name for the workload, with a production of its own; no entry of the file.

    Raises:
        UsageError: The file is missing or not YAML, or a name, a key or a value is wrong.
    """
    workloads = _read(params)
    if name not in workloads:
        raise UsageError(f"No workload {name!r} in {params.name}.{did_you_mean(name, workloads)}")
    _check_name(name)
    if as_name is not None:
        _check_name(as_name)
        if as_name in workloads:
            raise UsageError(
                f"--as {as_name}: {params.name} has a workload of that name, whose production this "
                "run would change. Choose another name."
            )
    tree = deepcopy(workloads[name])  # an alias of YAML may have made a part of it another's too
    for dotted, value in (overrides or {}).items():
        _set(tree, dotted, value)
    _check_extent(tree, name)
    if "name" in tree:
        raise UsageError(f"workload {name}: name: no such key; its key in {params.name} names it.")
    workload = _validate(Workload, {"name": as_name or name} | hide(tree), name)
    family = workload.model.family
    if family not in families.FAMILIES:
        hint = did_you_mean(family, families.FAMILIES)
        raise UsageError(f"model.family: no {family!r} in models/.{hint}")
    settings = workload.model.model_dump(exclude={"family"})
    declared = _validate(families.settings_class(family), settings, name)
    known = workload.model_dump(exclude={"name"}) | {
        "model": {"family": family} | declared.model_dump()
    }
    _check_dropped(overrides or {}, known, name)
    shape = (workload.images.size, workload.images.size, workload.images.channels)
    faults = [*_faults(workload), *families.faults(family, settings, shape)]
    if faults:
        raise UsageError(f"workload {name}: " + "\n".join(faults))
    # Part of what is trained, as the content of the data is.
    if version := families.pretrained_version(family, settings, params.absolute().parent):
        start = workload.model.model_copy(update={"pretrained_version": version})
        workload = workload.model_copy(update={"model": start})
    return _with_numerics(workload, families.flops(family, settings, shape))


def parse_override(text: str) -> tuple[str, Any]:
    """Parses one `--set` of the command line into the dotted name and the value.

    Args:
        text: `train.lr=1e-3`; the value is read as YAML 1.2, as in `params.yaml`. No value at all
            is the parameter's default: `train.lr=`.

    Raises:
        UsageError: There is no `=`, or the value is not YAML.
    """
    dotted, equals, value = text.partition("=")
    if not equals or not dotted:
        raise UsageError(
            f"--set {_shown(text)}: write it as key=value, such as train.lr=1e-3, or as key= for "
            "the default."
        )
    if not value.strip():
        return dotted, DEFAULT
    try:
        return dotted, _parse(value)
    except YAMLError as error:
        raise UsageError(
            f"--set {_shown(text)}: the value is no YAML ({_problem(error)})."
        ) from None


def _parse(text: str) -> Any:
    """Reads YAML 1.2, as DVC does for the same file: 1e-3 is a number and `no` is a string.

    Raises:
        YAMLError: It is not YAML.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ReusedAnchorWarning)  # YAML allows it
            return YAML(typ="safe", pure=True).load(text)
    except RecursionError:
        raise YAMLError("it is nested too deeply") from None
    except ValueError as error:  # of a value that looks like a date or a number
        raise YAMLError(str(error).partition(";")[0]) from None


def _read(params: Path) -> dict[str, Any]:
    try:
        size = params.stat().st_size
        if size > MAX_BYTES:
            raise UsageError(f"{params.name} has {size / 1e6:.0f} MB; it should have some kB.")
        tree = _parse(params.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"No file {params}.") from None
    except OSError as error:
        raise UsageError(f"{params} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{params.name} is no text in UTF-8.") from None
    except YAMLError as error:
        raise UsageError(f"{params.name}{_line(error)}: {_problem(error)}.") from None
    workloads = tree.get("workloads") if isinstance(tree, dict) else None
    if not isinstance(workloads, dict) or not all(isinstance(w, dict) for w in workloads.values()):
        raise UsageError(f"{params.name} needs `workloads:` with a mapping for each workload.")
    if numbers := [name for name in workloads if not isinstance(name, str)]:
        raise UsageError(
            f"{params.name}: the name of a workload is text, not {_shown(numbers[0])}; put it in "
            "quotes."
        )
    return workloads


def _line(error: YAMLError) -> str:
    mark = error.problem_mark if isinstance(error, MarkedYAMLError) else None
    return f", line {mark.line + 1}" if mark else ""


def _problem(error: YAMLError) -> str:
    """What is wrong, in the parser's words but without its advice for programmers."""
    if isinstance(error, MarkedYAMLError):
        text = " ".join(filter(None, (error.context, error.problem)))
    else:
        text = str(error)
    text = re.sub(r"\s+", " ", text).strip()
    return text if len(text) <= 200 else text[:200] + " …"


def _set(tree: dict[str, Any], dotted: str, value: Any) -> None:
    """Sets a value in a tree, or drops it."""
    *above, last = dotted.split(".")
    for name in above:
        tree = tree.setdefault(name, {})
        if not isinstance(tree, dict):
            raise UsageError(
                f"{_shorten(dotted)}: {_shorten(name)} is a value, it has nothing below it."
            )
    if value == DEFAULT:
        tree.pop(last, None)
    else:
        tree[last] = value


def _check_extent(tree: Mapping[str, Any], workload: str) -> None:
    """Refuses a tree that is too deep or, with its aliases written out, too large."""
    counts: dict[int, int] = {}

    def count(node: Any, depth: int) -> int:
        if not isinstance(node, Mapping | Sequence) or isinstance(node, str | bytes):
            return 1
        if depth > MAX_DEPTH:
            raise UsageError(f"workload {workload}: it is nested more than {MAX_DEPTH} levels.")
        if id(node) not in counts:
            below = node.values() if isinstance(node, Mapping) else node
            counts[id(node)] = 1 + sum(count(each, depth + 1) for each in below)
        return counts[id(node)]

    if count(tree, 0) > MAX_VALUES:
        raise UsageError(f"workload {workload}: it has more than {MAX_VALUES:,} values.")


def _check_dropped(overrides: Mapping[str, Any], known: Mapping[str, Any], workload: str) -> None:
    """Refuses to drop what does not exist, which would have no effect."""
    for dotted in (dotted for dotted, value in overrides.items() if value == DEFAULT):
        names: Any = known
        for part in dotted.split("."):
            if not isinstance(names, Mapping) or part not in names:
                hint = did_you_mean(part, names) if isinstance(names, Mapping) else ""
                raise UsageError(f"workload {workload}: {_shorten(dotted)}: no such key.{hint}")
            names = names[part]


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
        prefix = () if issubclass(kind, Workload) else ("model",)
        messages: dict[str, list[str]] = {}
        for fault in error.errors(include_url=False):
            place, message = _explain(fault, kind, tree, prefix)
            messages.setdefault(place, []).append(message)
        lines = [f"{place}: {_join(said)}" for place, said in messages.items()]
        if len(lines) > MAX_FAULTS:
            lines[MAX_FAULTS:] = [f"… and {len(lines) - MAX_FAULTS} more"]
        raise UsageError(f"workload {workload}: " + "\n".join(lines)) from None


def _join(messages: Sequence[str]) -> str:
    """One sentence about a place; several messages are about the types that it may have."""
    *others, last = dict.fromkeys(messages)
    return " or ".join([*(each.rpartition(", is ")[0] or each for each in others), last])


def _explain(
    fault: Any, kind: type[BaseModel], tree: Any, prefix: tuple[str, ...]
) -> tuple[str, str]:
    """The place of a fault in a workload; and what is wrong there, and what is allowed."""
    loc, value = [], tree
    for part in fault["loc"]:  # pydantic adds the name of a type where there are several
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list | tuple) and isinstance(part, int):
            value = value[part]
        else:
            break
        loc.append(part)
    place = ".".join(_shorten(str(part)) for part in (*prefix, *loc))
    kinds = [kind]  # of the sections above the place
    for part in loc[:-1]:
        field = kinds[-1].model_fields.get(part)
        if field is None or not isinstance(field.annotation, type(BaseModel)):
            break
        kinds.append(field.annotation)
    if fault["type"] == "value_error" and not loc:  # a validator of several parameters
        name, _, message = str(fault["ctx"]["error"]).partition(": ")
        return ".".join((*prefix, name)), f"{message}."
    if fault["type"] == "missing":
        return place, "missing."
    if fault["type"] == "extra_forbidden":
        return place, f"no such key.{did_you_mean(loc[-1], kinds[-1].model_fields)}"
    if fault["type"] == "string_pattern_mismatch":
        return place, f"should be text without control characters, is {_shown(fault['input'])}."
    message = re.sub(r"^\w+ should", "should", fault["msg"])
    return place, f"{_shorten(message, 200)}, is {_shown(fault['input'])}."


def did_you_mean(name: Any, known: Iterable[str]) -> str:
    """The second sentence of a message that refuses a name: the closest known name, or all."""
    known = sorted(known)
    close = difflib.get_close_matches(_shorten(str(name)), known, n=1)
    if close:
        return f" Did you mean {close[0]!r}?"
    return f" There are: {', '.join(known)}." if known else ""


def _shown(value: Any) -> str:
    """A value for a message; short, whatever it is."""
    try:
        return _REPR.repr(value)
    except ValueError:  # Python writes no integer of more than 4300 digits
        return "a very large number"


def _shorten(text: str, length: int = 60) -> str:
    return text if len(text) <= length else text[: length - 2] + " …"


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 80
