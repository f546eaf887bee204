"""The section `scale` of a workload: workers, threads and memory."""

from typing import Annotated, Literal

from pydantic import Field

from retrain.workload.section import Section


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
    backend: Literal["auto", "gloo", "nccl"] = Field(
        default="auto",
        description=(
            "How workers exchange their gradients: `auto` is `nccl` on GPUs and `gloo` on CPUs."
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
            "last one."
        ),
    )
    keep_checkpoints: int = Field(
        default=2,
        ge=1,
        le=100_000,
        description=(
            "How many of the newest checkpoints are kept until the training is over; the weights "
            "of the best epoch always are."
        ),
    )
    max_failures: int = Field(
        default=2,
        ge=0,
        le=1000,
        description="How often lost workers are replaced before the training fails.",
    )
