"""Describes a training to the loop that runs it."""

from collections.abc import Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import models
from retrain.disk import write_text
from retrain.errors import PrunedError
from retrain.workload import Model, Scale, Train
from tasks.train.selection import Epoch, pruned_at

if TYPE_CHECKING:
    from models.network import Network
    from tasks.data.shards import Prepared


RAY = "ray"  # the name of a training for Ray Train
# Imported by its name, so that its code does not belong to a training without it.
STREAM = "tasks.train.stream"
# The first images that the network was given: `images`, uint8 (n, H, W, C), and `labels`, str (n,).
FIRST_BATCH = "first_batch.npz"


@dataclass(frozen=True)
class TrainingJob:
    """The arguments of a training loop.

    Workers see the same folders as the step that starts them, or take their own from
    `tasks.train.elsewhere`.

    Attributes:
        model: The settings of the network.
        hyperparameters: The settings of the training.
        scale: The settings of the workers and of their memory.
        images: The output of `preprocess`, or of `embed`.
        pulled: The output of `pull`, where `streams`.
        start: The folder of a saved network whose weights it starts from; None for new ones.
        root: The project's folder; relative paths in the settings start there.
        scratch: The folder of checkpoints and progress; remains after a kill.
        output: The folder of the trained network.
        streams: Whether the training images are not prepared: Ray Data decodes them meanwhile.
        bounds: When a trial of a search is pruned; see `retrain.step.TrialContext`.
        remote: The URL of the store through which the machines of a cluster exchange files; None if
            they see the same folders.
        token: A file in the scratch, by which a machine knows that it sees the same folders.
    """

    model: Model
    hyperparameters: Train
    scale: Scale
    images: Path
    pulled: Path
    start: Path | None
    root: Path
    scratch: Path
    output: Path
    streams: bool
    bounds: Mapping[int, float]
    remote: str | None = None
    token: str = ""

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the network's family."""
        return self.model.model_dump(exclude={"family"})

    @property
    def batch_size(self) -> int:
        """The images of a batch over all workers, of which each has as many."""
        workers = max(self.scale.workers, 1)
        return self.hyperparameters.batch_size // workers * workers

    @property
    def storage(self) -> str:
        """Where the reports are kept, which remain after a kill: a folder, or a URL."""
        if not self.remote:
            return str(self.scratch)
        return f"{self.remote.rstrip('/')}/training/{self.scratch.name}"

    def tell(self, name: str, text: str) -> None:
        """Writes a file of the scratch."""
        write_text(self.scratch / name, text)

    def pruned_at(self, history: Sequence[Epoch]) -> int | None:
        """The epoch at which the training, as a trial of a search, ends before its last one."""
        return pruned_at(history, self.hyperparameters.best, self.bounds)

    def check_pruned(self, history: Sequence[Epoch]) -> None:
        """Ends a training that is pruned.

        Raises:
            PrunedError: The training is pruned; the error has its history.
        """
        if end := self.pruned_at(history):
            raise PrunedError(list(history[:end]))

    def build(self, data: "Prepared") -> "Network":
        """Makes the network as it is before the training; the seed of torch decides its weights.

        Args:
            data: The images that it will be trained on.

        Raises:
            ValueError: The network does not fit the images, or the weights that it starts from.
        """
        make = partial(models.build, self.model.family, self.settings, data.shape)
        with chdir(self.root):
            network = make(len(data.labels))
            if self.start:
                models.take_weights(network, self.start.absolute(), data.labels, make)
        return network

    def save(self, network: "Network", data: "Prepared", temperature: float) -> None:
        """Writes the trained network to the output, as `models.save` does.

        Args:
            network: The network with the weights of the best epoch.
            data: The images that it was trained on.
            temperature: What its logits are divided by.
        """
        with chdir(self.root):
            complete = models.make(self.model.family, self.settings).complete(network)
        complete.temperature = temperature
        models.save(
            complete,
            self.output,
            family=self.model.family,
            settings=self.settings,
            labels=data.labels,
            images=data.images,
        )
