"""Describes a training to the loop that runs it."""

from collections.abc import Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import models
from retrain.errors import PrunedError
from retrain.workload import Train
from tasks.train.selection import Epoch, pruned_at

if TYPE_CHECKING:
    from models.network import Network
    from tasks.data.shards import Prepared


@dataclass(frozen=True)
class TrainingJob:
    """The arguments of a training loop. Workers see the same folders as the step that starts them.

    Attributes:
        family: The network's family, a module of `models`.
        settings: The family's settings.
        hyperparameters: How the network is trained.
        images: The output of `preprocess`, or of `embed`.
        scratch: The folder of checkpoints and progress; remains after a kill.
        output: The folder of the trained network.
        start: The folder of a saved network whose weights it starts from; None for new ones.
        pulled: The output of `pull`, where `ingest` is `stream`.
        root: The project's folder; relative paths in the settings start there.
        checkpoint_seconds: The longest time between two checkpoints.
        keep_checkpoints: How many of the newest are kept.
        strategy: How workers share the training.
        ingest: How images come to the training; never `auto` where they are not prepared.
        memory_gb: Memory for images, for each worker.
        data_cpus: Processes of each worker that load images.
        threads: CPU threads of each worker; None for a training on GPUs.
        bounds: When a trial of a search is pruned; see `retrain.step.TrialContext`.
    """

    family: str
    settings: Mapping[str, Any]
    hyperparameters: Train
    images: Path
    scratch: Path
    output: Path
    start: Path | None
    pulled: Path
    root: Path
    checkpoint_seconds: float
    keep_checkpoints: int
    strategy: str
    ingest: str
    memory_gb: float
    data_cpus: int
    threads: int | None
    bounds: Mapping[int, float]

    @property
    def waiting(self) -> Path:
        """A file that exists while workers have been asked for and have not started."""
        return self.scratch / "waiting"

    def is_pruned(self, history: Sequence[Epoch]) -> bool:
        """Whether the training, as a trial of a search, ends before its last epoch."""
        return pruned_at(history, self.hyperparameters.best, self.bounds) is not None

    def check_pruned(self, history: Sequence[Epoch]) -> None:
        """Ends a training that is pruned.

        Raises:
            PrunedError: With its history.
        """
        if end := pruned_at(history, self.hyperparameters.best, self.bounds):
            raise PrunedError(list(history[:end]))

    def build(self, data: "Prepared") -> "Network":
        """Makes the network as it is before the training; the seed of torch decides its weights.

        Args:
            data: What it will be trained on.

        Raises:
            ValueError: It does not fit the images, or what it starts from is another network.
        """
        with chdir(self.root):
            network = models.build(self.family, self.settings, data.shape, len(data.labels))
        if self.start:
            models.take_weights(network, self.start, data.labels)
        return network

    def rebuild(self, description: Mapping[str, Any], files: Mapping[str, Path]) -> "Network":
        """Makes the network of a description anew; its weights are still to be loaded."""
        with chdir(self.root):
            return models.rebuild(self.family, description, files)

    def save(self, network: "Network", data: "Prepared") -> None:
        """Writes the trained network to the output, as `models.save` does.

        Args:
            network: With the weights of the best epoch.
            data: What it was trained on.
        """
        with chdir(self.root):
            whole = models.complete(self.family, self.settings, network)
        models.save(
            whole,
            self.output,
            family=self.family,
            settings=self.settings,
            labels=data.labels,
            images=data.images,
        )
