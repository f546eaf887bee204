"""What a training loop is told."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrain.workload import Train


@dataclass(frozen=True)
class TrainingJob:
    """What a worker has to know. It sees the same folders as the step that sent it.

    Attributes:
        family: The network's, a module of `models`.
        settings: Of the family.
        hyperparameters: How the network is trained.
        images: The output of `preprocess`.
        scratch: Where checkpoints and progress are kept; survives a kill.
        output: Where the trained network is written to.
        root: Of the project; relative paths in the settings start there.
        checkpoint_seconds: The longest time between two checkpoints.
        memory_gb: For images that each worker may hold.
        threads: Of the CPU, for each worker; None for a training on GPUs.
    """

    family: str
    settings: Mapping[str, Any]
    hyperparameters: Train
    images: Path
    scratch: Path
    output: Path
    root: Path
    checkpoint_seconds: float
    memory_gb: float
    threads: int | None
