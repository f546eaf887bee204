"""What the `Trainer` of `transformers` calls, beside its own parts: the network, and a record.

The record measures, decides when a checkpoint is written, and keeps the best weights.
"""

from functools import partial
from math import ceil, isfinite
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback

from models.network import Network
from retrain.workload import Train
from tasks.train import checkpoint, folders
from tasks.train.augment import Augmentation, mean_loss
from tasks.train.collective import said_by_first, share_statistics, sum_over_workers, wait_for_all
from tasks.train.divergence import STEPS_BETWEEN_CHECKS, diverged
from tasks.train.job import TrainingJob
from tasks.train.progress import FILE, Meter
from tasks.train.sampler import BatchSampler
from tasks.train.selection import is_better, stops_early

STEPS_BETWEEN_FLAGS = 10  # after which several workers agree on whether to write a checkpoint


class LabelledNetwork(nn.Module):
    """A network that also augments its images and returns its loss, as the Trainer wants it.

    Attributes:
        network: What is trained.
        calls: How often it was called to train.
        parts: How many calls make a step.
        loss_sum: The losses of the steps since the last evaluation.
    """

    def __init__(
        self, network: Network, hyperparameters: Train, batches: BatchSampler, size: int
    ) -> None:
        """Wraps a network.

        Args:
            network: Takes uint8 images.
            hyperparameters: The augmentation and the label smoothing.
            batches: Which worker this is, and how many images it takes at once.
            size: Height and width of the images that the network takes.
        """
        super().__init__()
        self.network = network
        self.calls, self.parts = 0, 1
        self._smoothing = hyperparameters.label_smoothing
        self._augmentation = Augmentation(hyperparameters.augment, batches, size)
        self.loss_sum = torch.zeros(())  # no buffer, which DDP would share

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Classifies images.

        Args:
            images: uint8 (N, H, W, C).
            labels: int64 (N,).

        Returns:
            `loss`, the mean cross-entropy, and `logits` (N, classes).
        """
        if not self.training:
            logits = self.network(images)
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}
        images, targets = self._augmentation(images, labels, self.calls)
        self.calls += 1
        logits = self.network(images)
        loss_of = partial(nn.functional.cross_entropy, label_smoothing=self._smoothing)
        loss = mean_loss(loss_of, logits, targets)
        self.loss_sum = self.loss_sum.to(loss.device) + loss.detach() / self.parts
        return {"loss": loss, "logits": logits}


class NetworkTrainer(Trainer):  # type: ignore[misc]  # it has no types
    """A Trainer of a labelled network."""

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """The weights, without biases and norms; the Trainer's own finds not all norms."""
        return [name for name, each in model.named_parameters() if each.ndim > 1]

    def evaluate(self, *arguments: Any, **named: Any) -> dict[str, float]:
        """Evaluates the first worker's statistics of batch norms, which are what is saved."""
        share_statistics(self.model.network)
        metrics: dict[str, float] = super().evaluate(*arguments, **named)
        return metrics


class Record(TrainerCallback):  # type: ignore[misc]  # it has no types
    """The history of a training, and its best weights.

    Attributes:
        history: An entry for each evaluation.
        best: The best of them (`epoch`) and its `weights`.
    """

    def __init__(self, job: TrainingJob, labelled: LabelledNetwork, batches: BatchSampler) -> None:
        """Starts without a history.

        Args:
            job: The training.
            labelled: What the Trainer trains.
            batches: Which worker this is.
        """
        self.history: list[dict[str, Any]] = []
        self.best: dict[str, Any] | None = None
        self._job, self._labelled, self._batches = job, labelled, batches
        self._first = 0  # the step after the last evaluation

    def restore(self) -> Path | None:
        """Takes the state of the last checkpoint over; returns its folder."""
        found = folders.newest(self._checkpoints)
        if found is None:
            return None
        folder, _ = found
        state = torch.load(folder / self._file, map_location="cpu", weights_only=True)
        self.history, self.best, self._first = state["history"], state["best"], state["first"]
        self._labelled.calls = state["calls"]
        self._labelled.loss_sum.fill_(state["loss_sum"])
        return folder

    @property
    def is_over(self) -> bool:
        """Whether the training has ended before its last epoch."""
        chosen = self._job.hyperparameters
        ended = stops_early(self.history, chosen.best, chosen.early_stopping)
        return ended or self._job.is_pruned(self.history)

    @property
    def _checkpoints(self) -> Path:
        return self._job.scratch / checkpoint.FOLDER

    @property
    def _file(self) -> str:
        return f"record-{self._batches.rank}.pt"

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Starts to measure."""
        if self._batches.rank == 0:  # damaged ones, from which it does not go on
            folders.remove_from(self._checkpoints, state.global_step + 1)
        self._labelled.parts = args.gradient_accumulation_steps
        self._batch = self._batches.size * args.gradient_accumulation_steps
        self._meter = Meter(
            self._job.scratch / FILE,
            ceil(state.num_train_epochs),
            state.max_steps,
            self._batch,
            state.global_step,
            float(self._labelled.loss_sum),
        )
        self._saved = self._ended = self._began = self._trained = monotonic()
        self._began_at = state.global_step
        self._meter.go_on()

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Measures a step, and writes a checkpoint if the last one is old."""
        self._trained = monotonic()
        losses = self._labelled.loss_sum
        if state.global_step % STEPS_BETWEEN_CHECKS == 0:
            self._check_finite(float(sum_over_workers(losses)))
        if self._batches.rank == 0:
            self._meter.tick(state.global_step, losses, self.history)
        late = self._trained - self._saved > self._job.checkpoint_seconds
        # On GPUs an exchange waits for all earlier work.
        asks = self._batches.workers == 1 or state.global_step % STEPS_BETWEEN_FLAGS == 0
        if asks and said_by_first(late):
            self._save_now(control, given["optimizer"])

    def on_evaluate(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Adds an entry to the history, and keeps the weights if they are the best."""
        metrics, network = given["metrics"], self._labelled.network
        losses = float(sum_over_workers(self._labelled.loss_sum)) / self._batches.workers
        self._check_finite(losses + metrics["eval_cross_entropy"])
        self._meter.pause(float(self._labelled.loss_sum))
        took = max(self._trained - self._began, 1e-9)
        this = {
            "epoch": len(self.history) + 1,
            "step": state.global_step,
            "train_loss": losses / max(state.global_step - self._first, 1),
            "val_loss": metrics["eval_cross_entropy"],
            "val_accuracy": metrics["eval_accuracy"],
            "lr": given["optimizer"].param_groups[0]["lr"],
            "images_per_second": (state.global_step - self._began_at) * self._batch / took,
            "seconds": monotonic() - self._ended,
        }
        self.history.append(this)
        chosen = self._job.hyperparameters
        if is_better(this, self.best["epoch"] if self.best else None, chosen.best):
            weights = {name: value.cpu().clone() for name, value in network.state_dict().items()}
            self.best = {"epoch": this, "weights": weights}
        self._labelled.loss_sum.zero_()
        self._first = self._began_at = state.global_step
        self._ended = self._began = monotonic()
        self._meter.go_on()
        if self.is_over:
            control.should_training_stop = True
        over = self.is_over or state.global_step == state.max_steps
        worth = min(checkpoint.WORTH_SECONDS, self._job.checkpoint_seconds)
        if said_by_first(over or monotonic() - self._saved > worth):
            self._save_now(control, given["optimizer"])

    def finish(self) -> None:
        """Writes the progress of a training that is over."""
        if self._batches.rank == 0:
            last, epochs = self.history[-1], self._job.hyperparameters.epochs
            meter = Meter(self._job.scratch / FILE, epochs, last["step"], 1, last["step"], 0.0)
            meter.write(last["step"], last["train_loss"], self.history)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Completes the checkpoint that the Trainer has written, and removes older ones."""
        folder = self._checkpoints / f"checkpoint-{state.global_step}"
        own = {
            "history": self.history,
            "best": self.best if self._batches.rank == 0 else None,
            "first": self._first,
            "calls": self._labelled.calls,
            "loss_sum": float(self._labelled.loss_sum),
        }
        torch.save(own, folder / self._file)
        wait_for_all()
        if self._batches.rank == 0:
            folders.seal(folder, {})
            folders.remove_old(self._checkpoints, self._job.keep_checkpoints)
        self._saved = monotonic()

    def _save_now(self, control: Any, optimizer: Any) -> None:
        """Has the Trainer write a checkpoint; never one to which a diverged training came."""
        network = self._labelled.network.state_dict()
        if not checkpoint.is_finite((network, optimizer.state_dict())):
            raise self._diverged()
        control.should_save = True

    def _check_finite(self, value: float) -> None:
        if not isfinite(value):
            raise self._diverged()

    def _diverged(self) -> ValueError:
        return diverged(len(self.history) + 1, self._job.hyperparameters)
