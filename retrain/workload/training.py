"""The sections of a workload about its training: the network, how and where it is trained.

The random changes of the training images are among them: `train.augment`; and the search for
better parameters: `tune`.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from models.user_code import PATTERN
from retrain.workload.data import AS_TUPLE, BatchSize, Fraction, Section, Text

# What a function of the user's gets of the section `train`; it may follow the other keys, or not.
PASSED_ON = ("epochs", "batch_size", "lr", "weight_decay", "precision", "seed")


class Model(BaseModel):
    """Which network: a family in `models/`, and that family's own settings beside its name."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True, allow_inf_nan=False)

    family: Text = Field(description="A module of `models/`: the kind of network.")


class Best(Section):
    """Which epoch of a training is the best: its weights become the model."""

    metric: Text = Field(
        default="val_accuracy",
        description=(
            "A metric of the validation split in the training's history; of epochs that have the "
            "same, the one with the lowest `val_loss` is the best."
        ),
    )
    mode: Literal["auto", "max", "min"] = Field(
        default="auto",
        description=(
            "Whether the metric should be large or small; `auto` is `min` for a name that ends as "
            "a loss does: in `loss`, `error`, `nll`, `brier`, `ece`, `perplexity`, `mse`, `rmse`, "
            "`mae`, `fpr` or `fnr`."
        ),
    )


class Plateau(Section):
    """The schedule `plateau`: the learning rate falls when the validation loss stops to fall.

    It does what `torch.optim.lr_scheduler.ReduceLROnPlateau` does.
    """

    factor: float = Field(
        default=0.1,
        gt=0,
        lt=1,
        description="The learning rate is multiplied by it.",
    )
    patience: int = Field(
        default=10,
        ge=0,
        le=100_000,
        description=(
            "The rate falls after more than this many epochs in a row without a lower loss."
        ),
    )


class ColorJitter(Section):
    """By how much the colours of an image change at most."""

    brightness: Fraction = Field(
        default=0.0,
        description="The brightness is multiplied by a factor from 1 less this to 1 plus this.",
    )
    contrast: Fraction = Field(
        default=0.0,
        description="The contrast is multiplied by a factor from 1 less this to 1 plus this.",
    )
    saturation: Fraction = Field(
        default=0.0,
        description="The saturation is multiplied by a factor from 1 less this to 1 plus this.",
    )
    hue: float = Field(
        default=0.0,
        ge=0,
        le=0.5,
        description="The colours turn by up to this part of the colour wheel, in both directions.",
    )


class Augment(Section):
    """Random changes of the training images, drawn anew for each epoch; the crop comes first."""

    flip: bool = Field(
        default=False,
        description="Mirror half of the images left to right.",
    )
    shift: int = Field(
        default=0,
        ge=0,
        le=4096,
        description="Move by up to this many pixels in both directions, filling with the edge.",
    )
    crop: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        default=None,
        description=(
            "Cut out a part and scale it to `images.size`: at least this share of the area, with "
            "sides of 3:4 to 4:3. 0.08 is usual for large images. It is cut out of the original "
            "where images are streamed, and else out of the prepared image with its "
            "`images.margin`."
        ),
    )
    color_jitter: ColorJitter | None = Field(
        default=None,
        description="How the colours change; they stay as they are when None.",
    )
    rand_augment: Annotated[int, Field(ge=1, le=29)] | None = Field(
        default=None,
        description=(
            "Make two changes, drawn from a list of 14 for a worker's batch at once (Cubuk et al., "
            "2020): how strong they are at most, on a scale that ends below 30; 9 is usual."
        ),
    )
    erasing: Fraction = Field(
        default=0.0,
        description="How often a rectangle is blackened (Zhong et al., 2020).",
    )
    mixup: Annotated[float, Field(gt=0, le=100)] | None = Field(
        default=None,
        description="Mix images and their labels by a share from Beta(mixup, mixup); 0.2 is usual.",
    )
    cutmix: Annotated[float, Field(gt=0, le=100)] | None = Field(
        default=None,
        description=(
            "Replace a rectangle by one of another image, its area from Beta(cutmix, cutmix); 1 is "
            "usual. With both, each batch gets one of them."
        ),
    )

    @property
    def needs_color(self) -> bool:
        """Whether it changes what grey images do not have."""
        jitter = self.color_jitter
        return self.rand_augment is not None or bool(jitter and (jitter.saturation or jitter.hue))

    @property
    def by_kornia(self) -> bool:
        """Whether it makes changes that the library kornia makes."""
        return bool(self.color_jitter or self.rand_augment or self.erasing)


class Train(Section):
    """How the model is trained."""

    function: Annotated[str, Field(pattern=PATTERN, max_length=1000)] | None = Field(
        default=None,
        description=(
            "A training function of the user's, `package.module:name` below the project's folder, "
            "which is the loop then."
        ),
    )
    init: Literal["new", "champion"] = Field(
        default="new",
        description=(
            "What the training starts from: `new` weights, those that the model's section says, or "
            "the ones of the model in production, the `champion`."
        ),
    )
    arguments: dict[str, Any] = Field(
        default={},
        description="What the function gets beside the parameters of this section.",
    )
    epochs: int = Field(
        default=20,
        ge=1,
        le=100_000,
        description="How often the training goes through all training images.",
    )
    batch_size: BatchSize = Field(
        default=64,
        description=(
            "Images per optimizer step, over all workers; what cannot be divided among them is "
            "left out."
        ),
    )
    optimizer: Literal["adamw", "adam", "sgd"] = Field(
        default="adamw",
        description="`sgd` has Nesterov's momentum; `adamw` is of Loshchilov and Hutter (2019).",
    )
    momentum: Fraction = Field(
        default=0.9,
        description="The momentum of `sgd`.",
    )
    lr: float = Field(
        default=0.001,
        gt=0,
        description="The peak learning rate.",
    )
    weight_decay: float = Field(
        default=0.05,
        ge=0,
        le=1000,
        description=(
            "The decay of the weights; biases and norms have none. For `adam` and `sgd` it is an "
            "L2 penalty."
        ),
    )
    freeze_epochs: int = Field(
        default=0,
        ge=0,
        le=100_000,
        description="In so many first epochs, only the last layer is trained.",
    )
    ema: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        default=None,
        description=(
            "The decay of an exponential moving average of the weights, which then is what is "
            "evaluated and kept; None is without."
        ),
    )
    warmup: Fraction = Field(
        default=0.1,
        description="The fraction of all steps in which the learning rate rises.",
    )
    schedule: Literal["cosine", "one_cycle", "plateau", "constant"] = Field(
        default="cosine",
        description=(
            "How the learning rate falls after that: `cosine` to 0; `one_cycle` starts at 1/25 of "
            "the peak and ends near 0 (Smith and Topin, 2018); `plateau` as its section says; or "
            "`constant`."
        ),
    )
    plateau: Plateau = Plateau()
    clip_norm: float = Field(
        default=1.0,
        ge=0,
        description="The largest gradient norm; 0 is no clipping.",
    )
    label_smoothing: Fraction = Field(
        default=0.0,
        description="The part of a label that is shared by all classes (Szegedy et al., 2016).",
    )
    balance: Literal["none", "loss", "sampling"] = Field(
        default="none",
        description=(
            "What is done for rare classes: `loss` weights each image's loss, `sampling` draws "
            "each image, by the inverse of its class's size."
        ),
    )
    best: Best = Best()
    early_stopping: Annotated[int, Field(ge=1, le=100_000)] | None = Field(
        default=None,
        description=(
            "The training ends after this many epochs in a row that were not better by the metric "
            "of `train.best`; only after its last epoch when None."
        ),
    )
    micro_batch: BatchSize | None = Field(
        default=None,
        description=(
            "Images of a worker's part of a batch that go through the network at once, for a batch "
            "that does not fit into a GPU; all of them when None. The optimizer step is the same, "
            "except for rounding, for batch norms, which see a part at a time, and for random "
            "changes other than `flip` and `shift`, which are drawn for a part at a time."
        ),
    )
    precision: Literal["auto", "fp32", "bf16"] = Field(
        default="auto",
        description=(
            "The precision of the matrix products; `auto` is bf16 where `retrain.hardware` finds "
            "it faster, and fp32 for a function of the user's. Weights and optimizer are always "
            "fp32."
        ),
    )
    compile: bool = Field(
        default=False,
        description=(
            "Whether `torch.compile` is used. It takes about a minute, and on a GPU it saves more "
            "in a long training; on a CPU it saves little."
        ),
    )
    augment: Augment = Augment()
    seed: int = Field(
        default=0,
        ge=0,
        lt=1 << 63,
        description="The seed of everything that is drawn in the training.",
    )


class Scale(Section):
    """The workers, threads and memory of the training."""

    workers: int = Field(
        default=0,
        ge=0,
        le=4096,
        description=(
            "0 trains in the run's own process; 2 and up is data-parallel over Ray workers, each "
            "with a GPU where the cluster has enough of them."
        ),
    )
    strategy: Literal["ddp", "fsdp"] = Field(
        default="ddp",
        description=(
            "How workers share the training. `ddp`: each has all of the network. `fsdp`: each "
            "keeps a part of every layer, for networks that are too large for one GPU."
        ),
    )
    timeout_seconds: int = Field(
        default=600,
        ge=1,
        le=86_400,
        description="How long a worker waits for the others before the training fails.",
    )
    threads: Literal["auto"] | Annotated[int, Field(ge=1, le=1024)] | None = Field(
        default="auto",
        description=(
            "CPU threads of a worker. `auto` is one for a small network, else the worker's share "
            "of the cores; None where the training runs on a GPU. Another number sums in another "
            "order and so trains another model."
        ),
    )
    require_gpu: bool = Field(
        default=False,
        description="Refuse to train without a GPU for each worker, instead of training on CPUs.",
    )
    checkpoint_seconds: float = Field(
        default=60.0,
        gt=0,
        description=(
            "A checkpoint is written after every epoch, and at most this many seconds after the "
            "last one. The two newest are kept until the training is over, and the weights of the "
            "best epoch."
        ),
    )
    max_failures: int = Field(
        default=2,
        ge=0,
        le=1000,
        description="How often lost workers are replaced before the training fails.",
    )


class Searched(Section):
    """The values of a parameter that a search tries: from a range, or from a list."""

    low: int | float | None = Field(
        default=None,
        description="The smallest value.",
    )
    high: int | float | None = Field(
        default=None,
        description="The largest value.",
    )
    step: int | float | None = Field(
        default=None,
        description=(
            "The distance between values; any value of the range when None. Whole numbers have 1."
        ),
    )
    log: bool = Field(
        default=False,
        description="Whether values are drawn from the logarithm of the range.",
    )
    choices: Annotated[tuple[Any, ...], AS_TUPLE] = Field(
        default=(),
        description="The values, of any kind, in place of a range.",
    )

    def faults(self) -> Iterator[str]:
        """What is wrong with the values, in the second half of a sentence."""
        if self.choices and self.model_fields_set != {"choices"}:
            yield "has choices or a range, not both."
        if not self.choices and None in (self.low, self.high):
            yield "needs low and high, or choices."


class Tune(Section):
    """The search for better parameters, for the flow `tune`. Each trial is a training."""

    space: dict[str, Searched] = Field(
        default={},
        description=(
            "The values to try, by the parameter's dotted name: `{train.lr: {low: 1e-4, high: "
            "1e-2, log: true}}`. The others have the workload's."
        ),
    )
    trials: int = Field(
        default=20,
        ge=1,
        le=100_000,
        description="How many trainings the search has, in all.",
    )
