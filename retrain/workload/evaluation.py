"""The sections of a workload about its evaluation, the gate, and what comes after."""

from typing import Annotated, Literal

from pydantic import Field

from retrain.workload.data import AS_TUPLE, Names, Section, Text


class Evaluate(Section):
    """How the model is evaluated."""

    batch_size: int = Field(
        default=256,
        ge=1,
        le=1 << 16,
        description="Images per forward pass.",
    )
    precision: Literal["auto", "fp32", "bf16"] = Field(
        default="auto",
        description=(
            "The precision of the matrix products; `auto` is that of the training; of a head on "
            "embeddings, which does not train the encoder, what `retrain.hardware` finds faster."
        ),
    )


class Gate(Section):
    """When a model may go to production.

    The metrics are those of `evaluate`, and those of one class: `recall[cat]`, `precision[cat]`,
    `f1[cat]`.
    """

    min: dict[str, float] = Field(
        default={},
        description="The smallest allowed values of metrics, by name: `{accuracy: 0.9}`.",
    )
    max: dict[str, float] = Field(
        default={},
        description="The largest allowed values of metrics, by name: `{log_loss: 0.5}`.",
    )
    slices: Names = Field(
        default=(),
        description=(
            "The columns by whose values the test images are divided: `width`, `height`, `mode`, "
            "`bytes`, `file`, `side`, `aspect`, `brightness`, `contrast`, `camera`, `format`, "
            "or one of your own. `min` and `no_worse` then take `accuracy[camera=X100]`, and "
            "`accuracy[camera]` for all slices of a column."
        ),
    )
    metric: Text = Field(
        default="accuracy",
        description=(
            "The metric by which a model is compared with the champion and with the reference, on "
            "the same test images."
        ),
    )
    margin: float = Field(
        default=0.02,
        ge=0,
        description="A model whose metric is worse by less than this counts as not worse.",
    )
    promotes: Annotated[tuple[Literal["better", "not worse", "cannot tell"], ...], AS_TUPLE] = (
        Field(
            default=("better", "not worse"),
            description="The outcomes of the comparison with the champion that promote.",
        )
    )
    level: float = Field(
        default=0.05,
        gt=0,
        lt=0.5,
        description=(
            "The probability that a model that is no better passes as better, or one that is worse "
            "by the margin as not worse, in one comparison."
        ),
    )
    no_worse: Names = Field(
        default=(),
        description=(
            "Metrics in which a model must not be worse than those it is compared with, as far as "
            "can be told."
        ),
    )
    min_compared: int = Field(
        default=30,
        ge=1,
        description=(
            "The fewest test images that a comparison needs, and that a bound, a class or a slice "
            "is judged by."
        ),
    )
    may_drop: Names = Field(
        default=(),
        description="The classes that a model may lack although the champion knows them.",
    )
    approval: Literal["automatic", "manual"] = Field(
        default="automatic",
        description="Whether a model that passes is promoted at once, or waits for a person.",
    )


class Drift(Section):
    """When new images have drifted from the test split, for the flows `predict` and `drift`."""

    threshold: float = Field(
        default=1.5,
        gt=0,
        description=(
            "The largest score without a drift. Where nothing has changed, the score is above 1 in "
            "at most 5 of 100 checks."
        ),
    )


class Production(Section):
    """When the model in production is worse than its test promised, for the flow `production`."""

    weeks: int = Field(
        default=8,
        ge=1,
        description="The weeks, the last one with answers included, that count for the verdict.",
    )
    max_drop: float = Field(
        default=0.02,
        ge=0,
        lt=1,
        description=(
            "The accuracy in production may be lower than in the test by as much. It is worse if "
            "the interval of the difference is beyond that."
        ),
    )


class Serve(Section):
    """The server of the champion, for `make up` and `retrain serve`."""

    port: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="The port at which `make up` serves the champion; it does not when None.",
    )
    workers: int = Field(
        default=2,
        ge=1,
        le=256,
        description="How many processes answer, each with a model of its own in memory.",
    )
