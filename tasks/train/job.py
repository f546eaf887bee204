"""The arguments of a training, from which it makes its network, and saves it."""

from contextlib import chdir
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import models
from retrain.workload import PASSED_ON, Model, Scale, Train

if TYPE_CHECKING:
    from models.network import Network
    from tasks.data.shards import Prepared

FUNCTION = "train.function"  # the setting that names one of the user's
# Imported by its name, so that its code does not belong to a training without it.
STREAM = "tasks.train.stream"
# The first images that the network was given: `images`, uint8 (n, H, W, C), and `labels`, str (n,).
FIRST_BATCH = "first_batch.npz"
# Of the section `train`.
USED_BY_FUNCTION = {*PASSED_ON, "function", "arguments", "best", "init"}


def used_by(hyperparameters: Train) -> set[str]:
    """The parameters of the section `train` that a training follows."""
    used_by_own_loop = set(Train.model_fields) - {"function", "arguments"}
    return USED_BY_FUNCTION if hyperparameters.function else used_by_own_loop


@dataclass(frozen=True)
class TrainingJob:
    """The arguments of a training loop.

    Workers see the same folders as the step that starts them.

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
    def at_once(self) -> int:
        """The images of a worker that go through the network together."""
        return self.hyperparameters.micro_batch or self.batch_size // max(self.scale.workers, 1)

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
