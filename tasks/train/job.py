"""Describes a training to the loop that runs it: its arguments, and its best epoch."""

from collections.abc import Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import models
from retrain.workload import Best, Model, Scale, Train

if TYPE_CHECKING:
    from models.network import Network
    from tasks.data.shards import Prepared

FUNCTION = "train.function"  # the setting that names one of the user's
RAY = "ray"  # the name of a training for Ray Train
# Imported by its name, so that its code does not belong to a training without it.
STREAM = "tasks.train.stream"
# The first images that the network was given: `images`, uint8 (n, H, W, C), and `labels`, str (n,).
CHECKPOINTS = 2  # the newest ones, which are kept: a damaged one has the one before it
FIRST_BATCH = "first_batch.npz"

# How the names of metrics end that should be small: losses, errors, and how far off a model is.
LOSSES = ("loss", "error", "nll", "brier", "ece", "perplexity", "mse", "rmse", "mae", "fpr", "fnr")

Epoch = Mapping[str, Any]  # an entry of `history.json`


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
        """The images of a forward pass after the training."""
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


def score(epoch: Epoch, choice: Best) -> tuple[float, float]:
    """The values by which epochs are compared; larger is better.

    Of two epochs with an equal metric, the one with the lower `val_loss` is better, if they have
    one.

    Args:
        epoch: An epoch that has the metric.
        choice: The metric, and whether it should be large.
    """
    return _signed(epoch, choice), -epoch.get("val_loss", 0.0)


def _signed(epoch: Epoch, choice: Best) -> float:
    """The metric, or its opposite, so that the larger is the better one."""
    value = float(epoch[choice.metric])
    return value if larger_is_better(choice) else -value


def larger_is_better(choice: Best) -> bool:
    """Whether the metric should be large."""
    if choice.mode == "auto":
        return not choice.metric.lower().endswith(LOSSES)
    return choice.mode == "max"


def stops_early(history: Sequence[Epoch], choice: Best, patience: int | None) -> bool:
    """Whether a training ends now because it no longer gets better.

    Args:
        history: The epochs of the training so far.
        choice: The metric, and whether it should be large.
        patience: After how many epochs without a better one; None if only after its last epoch.
    """
    if patience is None:
        return False
    best, waited = float("-inf"), 0
    for epoch in history:
        value = _signed(epoch, choice)
        if value > best:
            best, waited = value, 0
        else:
            waited += 1
    return waited >= patience
