"""The schema of a workload, an entry under `workloads` in `params.yaml`: keys, defaults and bounds.

`retrain.params` reads the file.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    model_validator,
)

from retrain.logins import has_login, refused

Fraction = Annotated[float, Field(ge=0, lt=1)]
# Text that names a file, a column or a class; control characters in it are a mistake.
Text = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f\x7f]+$")]
# The longest side that a JPEG can have.
Side = Annotated[int, Field(ge=1, le=65_535)]
# What code of the user's is called: `package.module:name`.
NAMED = r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$"
BatchSize = Annotated[int, Field(ge=1, le=1 << 20)]
# YAML has lists; a tuple cannot be changed.
_AS_TUPLE = BeforeValidator(lambda value: tuple(value) if type(value) is list else value)
Names = Annotated[tuple[str, ...], _AS_TUPLE]


class Section(BaseModel):
    """A part of a workload: frozen, no unknown keys, no coercion of types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Split(Section):
    """The fractions of the images for splits that the data does not have.

    An image's pixels decide its split, so that it stays there when the data grows.
    """

    val: Fraction = 0.1
    test: Fraction = 0.2


class Data(Section):
    """The images and where they are.

    Attributes:
        path: A path under the project's `data/` (versioned by DVC); or any other folder, file or
            fsspec URL; or a data set on the Hugging Face hub (`format: hub`). A URL has no
            login in it (`retrain.logins`).
        format: `folders` is a folder per class, with or without a folder per split above it;
            `webdataset` tar files with an image and its class for each name.
        image_column: The Parquet column with the image: a struct of `bytes` and `path`, or bytes;
            `image` or `img` when None.
        label_column: The Parquet column with the class: a name, or an integer; `label` or `labels`
            when None.
        group: Whose images stay in one split: the values of a column of one's own (of the Parquet
            files, or of a `metadata.csv`); what a regular expression with a group in parentheses
            finds in an image's name; or `near_duplicates`, images that look the same.
        time: When an image was taken: a column, a regular expression, or `exif`. The newest images
            become test, those before them val.
    """

    path: Text
    format: Literal["auto", "parquet", "folders", "webdataset", "hub"] = "auto"
    image_column: Text | None = None
    label_column: Text | None = None
    split: Split = Split()
    group: Text | None = None
    time: Text | None = None


class Checks(Section):
    """The conditions that the data must meet before a model is trained on it.

    Attributes:
        labels: The allowed classes; those of the training split when None.
        min_images_per_class: Over all splits.
        min_images_per_class_and_split: In each split. Splits that are made of the images' content
            are made so that they have it, where there are three times as many; 0 lets val lack a
            class.
        min_side: The smallest shorter side, in pixels.
        max_side: The largest longer side, in pixels.
        max_bad_fraction: Bad images up to this fraction are set aside instead of stopping the run.
        near_duplicates: What happens to an image of train or val that looks like one of a split
            held out from it, such as the same photo saved again: `report` counts and lists it,
            `bad` makes it a bad image.
    """

    labels: tuple[Text, ...] | None = None
    min_images_per_class: Annotated[int, Field(ge=1, le=10**9)] = 10
    min_images_per_class_and_split: Annotated[int, Field(ge=0, le=10**9)] = 1
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
            `auto` is `pixels` up to 100 GB. With `source` they are not stored: the training decodes
            them from the data as it goes (`scale.ingest: stream`). The other splits are always
            stored as pixels.
        margin: The images of the training split are stored larger by this many pixels in height
            and width, for `train.augment.crop` to cut from.
    """

    size: Annotated[int, Field(ge=1, le=4096)] = 224
    channels: Literal[1, 3] = 3
    resize: Literal["crop", "stretch"] = "crop"
    storage: Literal["auto", "pixels", "jpeg", "source"] = "auto"
    margin: Annotated[int, Field(ge=0, le=4096)] = 0


class Model(BaseModel):
    """Which network: a family in `models/`, and that family's own settings beside its name."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True, allow_inf_nan=False)

    family: Text


class ColorJitter(Section):
    """By how much the colours of an image change at most.

    Attributes:
        brightness: A factor between 1 less this and 1 plus this; so are the next two.
        contrast: See above.
        saturation: See above.
        hue: A part of the colour wheel, in both directions.
    """

    brightness: Fraction = 0.0
    contrast: Fraction = 0.0
    saturation: Fraction = 0.0
    hue: Annotated[float, Field(ge=0, le=0.5)] = 0.0


class RandAugment(Section):
    """Changes drawn from a list of 14 (Cubuk et al., 2020), for a worker's part of a batch at once.

    Attributes:
        count: How many of them, one after the other.
        magnitude: How strong they are at most, of 30, which itself the library refuses.
    """

    count: Annotated[int, Field(ge=1, le=14)] = 2
    magnitude: Annotated[int, Field(ge=1, le=29)] = 9


class Augment(Section):
    """Random changes of the training images, drawn anew for each epoch; the crop comes first.

    Attributes:
        flip: Mirror half of the images left to right.
        shift: Move by up to this many pixels in both directions, filling with the edge.
        crop: Cut out a part and scale it to `images.size`: at least this share of the area, with
            sides of 3:4 to 4:3. 0.08 is usual for large images. It is cut out of the original where
            images are streamed, and else out of the prepared image with its `images.margin`.
        color_jitter: Change the colours.
        rand_augment: Make changes from a list.
        erasing: How often a rectangle is blackened (Zhong et al., 2020).
        mixup: Mix images and their labels by a share from Beta(mixup, mixup); 0.2 is usual.
        cutmix: Replace a rectangle by one of another image, its area from Beta(cutmix, cutmix); 1
            is usual. With both, each batch gets one of them.
    """

    flip: bool = False
    shift: Annotated[int, Field(ge=0, le=4096)] = 0
    crop: Annotated[float, Field(gt=0, lt=1)] | None = None
    color_jitter: ColorJitter | None = None
    rand_augment: RandAugment | None = None
    erasing: Fraction = 0.0
    mixup: Annotated[float, Field(gt=0, le=100)] | None = None
    cutmix: Annotated[float, Field(gt=0, le=100)] | None = None

    @property
    def needs_color(self) -> bool:
        """Whether it changes what grey images do not have."""
        jitter = self.color_jitter
        return self.rand_augment is not None or bool(jitter and (jitter.saturation or jitter.hue))


# What a function of the user's gets of the section `train`; it may follow the other keys, or not.
PASSED_ON = ("epochs", "batch_size", "lr", "weight_decay", "precision", "seed")


class Best(Section):
    """Which epoch of a training is the best: its weights become the model.

    Attributes:
        metric: A metric of the validation split in the training's history; of epochs that have the
            same, the one with the lowest `val_loss` is the best.
        mode: Whether it should be large or small; `auto` is `min` for a name that ends in `loss`
            or `error`.
    """

    metric: Text = "val_accuracy"
    mode: Literal["auto", "max", "min"] = "auto"


class Lora(Section):
    """Low-rank adapters (Hu et al., 2021) that are trained in place of the network's weights.

    Attributes:
        r: The rank.
        alpha: The adapters' products are multiplied by alpha / r; 2 r when None.
        dropout: Of the adapters' inputs.
    """

    r: Annotated[int, Field(ge=1, le=4096)]
    alpha: Annotated[int, Field(ge=1, le=1 << 16)] | None = None
    dropout: Fraction = 0.0


class EarlyStopping(Section):
    """When a training ends before its last epoch.

    Attributes:
        patience: This many epochs in a row that were not better.
        min_delta: An epoch is better if the metric of `train.best` is better by more than this.
    """

    patience: Annotated[int, Field(ge=1, le=100_000)]
    min_delta: Annotated[float, Field(ge=0)] = 0.0


class Plateau(Section):
    """The schedule `plateau`: the learning rate falls when the validation loss stops to fall.

    It does what `torch.optim.lr_scheduler.ReduceLROnPlateau` does.

    Attributes:
        factor: The learning rate is multiplied by it.
        patience: After more than this many epochs in a row without a lower loss.
    """

    factor: Annotated[float, Field(gt=0, lt=1)] = 0.1
    patience: Annotated[int, Field(ge=0, le=100_000)] = 10


class Train(Section):
    """How the model is trained.

    Attributes:
        loop: A module of `tasks/train/loops/`.
        function: A training function of the user's, `package.module:name` below the project's
            folder, which is the loop then.
        init: What the training starts from: `new` weights, those that the model's section says, or
            the ones of the model in production, the `champion`.
        arguments: What the function gets beside the parameters of this section; or, of the loop
            `huggingface`, further arguments of its `TrainingArguments`.
        batch_size: Images per optimizer step, over all workers; what cannot be divided among them
            is left out.
        optimizer: `adamw` (Loshchilov and Hutter, 2019), `adam`, or `sgd` with Nesterov's momentum.
        momentum: Of `sgd`.
        lr: The peak learning rate.
        weight_decay: Of the weights; biases and norms have none. For `adam` and `sgd` it is an L2
            penalty.
        layer_decay: The learning rate of each layer is this times the next one's (Clark et al.,
            2020; of networks with stages, each stage); 1 is the same for all.
        freeze_epochs: In the first epochs, only the last layer is trained.
        lora: Trains adapters and the last layer only; what is saved is an ordinary network.
        ema: The decay of an exponential moving average of the weights, which then is what is
            evaluated and kept; None is without.
        warmup: The fraction of all steps in which the learning rate rises.
        schedule: How it falls after that: `cosine` to 0; `one_cycle` starts at 1/25 of the peak
            and ends near 0 (Smith and Topin, 2018); `plateau` as its section says; or
            `constant`.
        clip_norm: The largest gradient norm; 0 is no clipping.
        balance: What is done for rare classes: `loss` weights each image's loss, `sampling` draws
            each image, by the inverse of its class's size.
        micro_batch: Images of a worker's part of a batch that go through the network at once, for a
            batch that does not fit into a GPU; all of them when None. The optimizer step is the
            same, except for rounding, for batch norms, which see a part at a time, and for random
            changes other than `flip` and `shift`, which are drawn for a part at a time.
        precision: The precision of the matrix products; `auto` is bf16 where `retrain.hardware`
            finds it faster, and fp32 for a function of the user's. Weights and optimizer are always
            fp32.
        compile: Whether `torch.compile` is used; `auto` is true if a training on a GPU is long
            enough.
    """

    loop: Literal["torch", "huggingface"] = "torch"
    function: Annotated[str, Field(pattern=NAMED, max_length=1000)] | None = None
    init: Literal["new", "champion"] = "new"
    arguments: dict[str, Any] = {}
    epochs: Annotated[int, Field(ge=1, le=100_000)] = 20
    batch_size: BatchSize = 64
    optimizer: Literal["adamw", "adam", "sgd"] = "adamw"
    momentum: Fraction = 0.9
    lr: Annotated[float, Field(gt=0)] = 1e-3
    weight_decay: Annotated[float, Field(ge=0, le=1000)] = 0.05
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    freeze_epochs: Annotated[int, Field(ge=0, le=100_000)] = 0
    lora: Lora | None = None
    ema: Annotated[float, Field(gt=0, lt=1)] | None = None
    warmup: Fraction = 0.1
    schedule: Literal["cosine", "one_cycle", "plateau", "constant"] = "cosine"
    plateau: Plateau = Plateau()
    clip_norm: Annotated[float, Field(ge=0)] = 1.0
    label_smoothing: Fraction = 0.0
    balance: Literal["none", "loss", "sampling"] = "none"
    best: Best = Best()
    early_stopping: EarlyStopping | None = None
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
        strategy: How workers share the training. `ddp`: each has all of the network. `fsdp`: each
            keeps a part of every layer, for networks that are too large for one GPU.
        backend: How workers exchange their gradients: `auto` is `nccl` on GPUs and `gloo` on CPUs.
        timeout_seconds: How long a worker waits for the others before the training fails.
        threads: CPU threads of a worker. `auto` is one for a small network, else the worker's share
            of the cores; None where the training runs on a GPU. Another number sums in another
            order and so trains another model.
        require_gpu: Refuse to train without a GPU for each worker, instead of training on CPUs.
        ingest: How images come to the training. `memory` holds all of them; `windows` holds and
            shuffles a part at a time, which trains another model; `auto` is `memory` if they fit
            into `memory_gb`, else `windows`. `dataloader` is PyTorch's `DataLoader`, which takes
            from disk what does not fit. `stream` is Ray Data, which decodes the images of
            `images.storage: source` for each window; `auto` is `stream` with these.
        memory_gb: How much of the training images each worker may hold, in 10^9 bytes; its
            processes of `data_cpus` share it. With `stream`, up to half as much again is in Ray's
            object store.
        data_cpus: Processes of each worker that load images, with `dataloader` and with the loop
            `huggingface`; 0 is the worker itself. With `stream`, the tasks of Ray Data that decode
            images for each worker at a time; 0 is the CPUs that the training leaves.
        checkpoint_seconds: A checkpoint is written after every epoch that took a second, and at
            most this many seconds after the last one.
        keep_checkpoints: How many of the newest are kept until the training is over; the weights of
            the best epoch always are.
        max_failures: How often lost workers are replaced before the training fails.
    """

    workers: Annotated[int, Field(ge=0, le=4096)] = 0
    strategy: Literal["ddp", "fsdp"] = "ddp"
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] = 600
    threads: Literal["auto"] | Annotated[int, Field(ge=1, le=1024)] | None = "auto"
    require_gpu: bool = False
    ingest: Literal["auto", "memory", "windows", "dataloader", "stream"] = "auto"
    memory_gb: Annotated[float, Field(gt=0)] = 4.0
    data_cpus: Annotated[int, Field(ge=0, le=1024)] = 0
    checkpoint_seconds: Annotated[float, Field(gt=0)] = 60.0
    keep_checkpoints: Annotated[int, Field(ge=1, le=100_000)] = 2
    max_failures: Annotated[int, Field(ge=0, le=1000)] = 2


class Evaluate(Section):
    """How the model is evaluated.

    Attributes:
        batch_size: Images per forward pass.
        precision: `auto` is that of the training; of a head on embeddings, which does not train
            the encoder, what `retrain.hardware` finds faster.
    """

    batch_size: Annotated[int, Field(ge=1, le=1 << 16)] = 256
    precision: Literal["auto", "fp32", "bf16"] = "auto"


class Gate(Section):
    """When a model may go to production.

    The metrics are those of `evaluate`, and those of one class: `recall[cat]`, `precision[cat]`,
    `f1[cat]`.

    Attributes:
        min: The smallest allowed values of metrics, by name: `{accuracy: 0.9}`.
        max: The largest allowed values of metrics, by name: `{log_loss: 0.5}`.
        max_latency_ms: The most milliseconds that a single image may take in 95 % of the calls, in
            the check before a promotion; any when None.
        max_package_mb: The largest package, in megabytes (10^6 bytes); any when None.
        slices: The columns by whose values the test images are divided: `width`, `height`, `mode`,
            `bytes`, `file`, `side`, `aspect`, `brightness`, `contrast`, `camera`, `format`, or one
            of your own. `min` and `no_worse` then take `accuracy[camera=X100]`, and
            `accuracy[camera]` for all slices of a column.
        metric: The metric by which a model is compared with the champion and with the reference,
            on the same test images.
        margin: A model whose metric is worse by less than this counts as not worse.
        promotes: The outcomes of the comparison with the champion that promote.
        level: The probability that a model that is no better passes as better, or one that is
            worse by the margin as not worse, in one comparison.
        no_worse: Metrics in which a model must not be worse than those it is compared with, as far
            as can be told.
        min_compared: The fewest test images that a comparison needs, and that a bound, a class or a
            slice is judged by.
        may_drop: The classes that a model may lack although the champion knows them.
        approval: Whether a model that passes is promoted at once, or waits for a person.
    """

    min: dict[str, float] = {}
    max: dict[str, float] = {}
    max_latency_ms: Annotated[float, Field(gt=0)] | None = None
    max_package_mb: Annotated[float, Field(gt=0)] | None = None
    slices: Names = ()
    metric: Text = "accuracy"
    margin: Annotated[float, Field(ge=0)] = 0.02
    promotes: Annotated[tuple[Literal["better", "not worse", "cannot tell"], ...], _AS_TUPLE] = (
        "better",
        "not worse",
    )
    level: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    no_worse: Names = ()
    min_compared: Annotated[int, Field(ge=1)] = 30
    may_drop: Names = ()
    approval: Literal["automatic", "manual"] = "automatic"


class Drift(Section):
    """When what comes in has drifted from the test split, for the flows `predict` and `drift`.

    Attributes:
        threshold: The largest score without a drift. Where nothing has changed, the score is above
            1 in at most 5 of 100 checks.
    """

    threshold: Annotated[float, Field(gt=0)] = 1.5


class Searched(Section):
    """The values of a parameter that a search tries: from a range, or from a list.

    Attributes:
        low: The smallest value.
        high: The largest value.
        step: The distance between values; any value of the range when None. Whole numbers have 1.
        log: Whether values are drawn from the logarithm of the range.
        choices: The values, of any kind, in place of a range.
    """

    low: int | float | None = None
    high: int | float | None = None
    step: int | float | None = None
    log: bool = False
    choices: Annotated[tuple[Any, ...], _AS_TUPLE] = ()

    def faults(self) -> Iterator[str]:
        """What is wrong with the values, in the second half of a sentence."""
        if self.choices:
            if self.model_fields_set != {"choices"}:
                yield "has choices or a range, not both."
        elif self.low is None or self.high is None:
            yield "needs low and high, or choices."
        elif self.low > self.high:
            yield f"low {self.low} is larger than high {self.high}."
        elif self.log and self.low <= 0:
            yield f"low {self.low} has no logarithm; with log it is larger than 0."
        elif self.log and self.step is not None:
            yield "has step or log, not both."
        elif self.step is not None and self.step <= 0:
            yield f"step {self.step} should be larger than 0."


class Tune(Section):
    """The search for better parameters, for the flow `tune`. Each trial is a training.

    Attributes:
        space: The values to try, by the parameter's dotted name: `{train.lr: {low: 1e-4, high:
            1e-2, log: true}}`. The others have the workload's.
        trials: How many trainings, in all.
        seed: Of the values that are drawn.
    """

    space: dict[str, Searched] = {}
    trials: Annotated[int, Field(ge=1, le=100_000)] = 20
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0


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
    tune: Tune = Tune()
    drift: Drift = Drift()
    limits: dict[str, Annotated[float, Field(gt=0, le=8760)]] = {}
    _origin: Any = PrivateAttr(None)  # what `retrain.params` made it of

    def flat(self) -> dict[str, Any]:
        """Every parameter by its dotted name: `{"train.lr": 0.001, …}`, in order."""
        return flatten(self.model_dump(mode="json"))

    def faults(self) -> Iterator[str]:
        """A sentence for each of the values that are valid alone but not together."""
        if self.data.path.strip() in ("", "."):
            yield "data.path: names no data; an example is data/digits."
        if has_login(self.data.path):
            yield refused("data.path")
        if self.data.split.val + self.data.split.test >= 1:
            yield "data.split: val and test together leave nothing to train on."
        for name, value in (("group", self.data.group), ("time", self.data.time)):
            if fault := _fault_of_pattern(value):
                yield f"data.{name}: {value} is {fault}"
        if self.checks.min_side > self.checks.max_side:
            yield "checks.min_side is larger than checks.max_side."
        size, shift = self.images.size, self.train.augment.shift
        if shift >= size:
            yield f"train.augment.shift {shift} must be smaller than images.size {size}."
        if self.train.augment.needs_color and self.images.channels == 1:
            yield (
                "train.augment: saturation, hue and rand_augment need images.channels=3. Grey "
                "images have no colours to change."
            )
        source, ingest = self.images.storage == "source", self.scale.ingest
        if self.images.margin and (source or self.train.augment.crop is None):
            yield (
                "images.margin: is for train.augment.crop on prepared images; leave it out, as "
                f"{'images.storage is source' if source else 'there is no crop'}."
            )
        if source and ingest not in ("auto", "stream"):
            yield f"scale.ingest: {ingest} needs prepared images; images.storage is source."
        if ingest == "stream" and not source:
            yield "scale.ingest: stream needs images.storage source, which leaves images undecoded."
        batch, workers = self.train.batch_size, max(self.scale.workers, 1)
        if batch < workers:
            yield f"train.batch_size {batch} is less than an image for each of {workers} workers."
        elif (micro := self.train.micro_batch) is not None and micro > batch // workers:
            yield (
                f"train.micro_batch {micro} is more than a worker's part of train.batch_size, "
                f"{batch // workers}."
            )
        for name, searched in self.tune.space.items():
            for fault in searched.faults():
                yield f"tune.space.{name}: {fault}"


def is_pattern(value: str) -> bool:
    """Whether a value of `data.group` or `data.time` is a regular expression, and no column."""
    return "(" in value


def _fault_of_pattern(value: str | None) -> str | None:
    """What is wrong with a regular expression for images' names; None if nothing is."""
    if value is None or not is_pattern(value):
        return None
    try:
        groups = re.compile(value).groups
    except re.error as error:
        return f"no regular expression: {error}."
    return None if groups else "a regular expression without a group in parentheses: (…)."


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted names; an empty mapping stays a value."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat
