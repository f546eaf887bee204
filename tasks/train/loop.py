"""The project's own training loop; each worker runs it, or the step's process if there are none."""

from collections.abc import Mapping
from contextlib import ExitStack, closing, nullcontext
from copy import deepcopy
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any, cast

import numpy as np
import ray.train
import torch
from numpy.typing import NDArray
from ray.train.torch import get_device, prepare_model
from torch import Tensor

from models.network import Network
from tasks.data.shards import open_prepared
from tasks.train import network as changes
from tasks.train.augment import Augmentation, keep_images
from tasks.train.datasets import BatchSampler, Loader, SplitDataset, class_weights
from tasks.train.job import FIRST_BATCH, STREAM, TrainingJob, stops_early
from tasks.train.optimization import (
    clip_gradients,
    learning_rate,
    loss_function,
    make_optimizer,
    mean_loss,
    validate,
)
from tasks.train.progress import Meter

# In PyTorch's messages, when memory cannot be had.
NO_MEMORY = ("can't allocate memory", "not enough memory", "size calculation overflowed")
STEPS_BETWEEN_FLAGS = 10  # after which workers agree on whether to write a checkpoint
STEPS_BETWEEN_CHECKS = 50  # for numbers that are not finite, which wait until the GPU is done


def train(job: TrainingJob) -> dict[str, Any]:
    """Trains, as one of the workers: from its last checkpoint if there is one.

    It is repeatable to the bit, unless the network has an operation that cannot be.

    Each epoch is reported to Ray Train with a checkpoint, whose `weights` are those that were
    evaluated; within an epoch a checkpoint is reported without metrics.

    Returns:
        How it was calculated: `precision`, `attention`, whether `compiled`, and CPU `threads`.

    Raises:
        ValueError: The network does not fit the images, or the training diverged; or there is not
            enough memory.
    """
    try:
        try:
            return _train(job, strictly=True)
        except RuntimeError as error:
            if changes.NOT_REPEATABLE not in str(error):
                raise
        return _train(job, strictly=False)
    except (RuntimeError, MemoryError) as error:
        lacking = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not lacking and not any(words in str(error) for words in NO_MEMORY):
            raise
        raise ValueError(
            "There is not enough memory to train this network. Make train.micro_batch, "
            "images.size or the model smaller."
        ) from error


def _train(job: TrainingJob, strictly: bool) -> dict[str, Any]:
    with ExitStack() as opened:
        training = Training(job, opened, strictly)
        while not training.is_over:
            training.train_epoch()
            training.end_epoch()
        return training.numerics


def trained(job: TrainingJob, reported: ray.train.Checkpoint) -> Network:
    """The network with the weights of a checkpoint.

    Raises:
        ValueError: The checkpoint is damaged.
    """
    with reported.as_directory() as folder:
        if not changes.is_undamaged(Path(folder)):
            raise ValueError(
                f"The checkpoint of the best epoch is damaged. Remove {job.scratch}, and train "
                "again from the start."
            )
        weights = changes.read_checkpoint(Path(folder), changes.WEIGHTS)
    network = job.build(open_prepared(job.images))
    network.load_state_dict(weights)
    return network


class Training:
    """A training at a step between its first and its last.

    What a checkpoint holds are the network, the optimizer, the average of the weights, `step`,
    `loss_sum` of each worker and `history`; everything else follows from the job.
    """

    def __init__(self, job: TrainingJob, opened: ExitStack, strictly: bool) -> None:
        """Builds all that a training needs, and puts it where its last checkpoint was.

        What is to be closed after the training goes into `opened`; `strictly` is that of
        `network.make_repeatable`.

        Raises:
            ValueError: The network does not fit the images.
        """
        self.job, self.hyperparameters = job, job.hyperparameters
        self.device = get_device()
        opened.callback(torch.set_deterministic_debug_mode, torch.get_deterministic_debug_mode())
        changes.make_repeatable(self.device, strictly)
        context = ray.train.get_context()
        self.rank, self.workers = context.get_world_rank(), context.get_world_size()

        self.data = open_prepared(job.images)
        self.val = SplitDataset(job.images, "val")
        labels = self.data.split("train").labels
        self.batches = self._sampler(labels)
        self.loader = self._loader(opened)
        self.batch = self.batches.share * self.workers  # images of a step
        self.at_once = self.hyperparameters.micro_batch or self.batches.share  # of a worker
        self.steps = self.batches.per_epoch * self.hyperparameters.epochs

        self.step = 0
        self.loss_sum = torch.zeros((), device=self.device)
        self.history: list[dict[str, Any]] = []
        self._make_network()
        self.loss_of = loss_function(
            self.hyperparameters, labels, len(self.data.labels), self.device
        )
        augment = self.hyperparameters.augment
        if job.streams:  # parts of the originals arrive
            augment = augment.model_copy(update={"crop": None})
        self.augmentation = Augmentation(augment, self.batches, self.data.images["size"])
        # Of matrix products alone; it is entered once for each part of a batch.
        is_bf16 = self.hyperparameters.precision == "bf16"
        self.autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=is_bf16)
        self.generator = changes.generator(self.device)
        self.meter = Meter(
            job.scratch, self.hyperparameters.epochs, self.batches.per_epoch, self.batch
        )
        self.saved = self.ended = monotonic()

    def _sampler(self, labels: NDArray[np.int64]) -> BatchSampler:
        """Decides which training images make up each batch of this worker."""
        settings, chances = self.hyperparameters, None
        if settings.balance == "sampling":
            chances = class_weights(labels, len(self.data.labels))[labels]
        return BatchSampler(
            len(labels), settings.batch_size, settings.seed, self.rank, self.workers, chances
        )

    def _loader(self, opened: ExitStack) -> Any:
        """What brings the batches of each epoch: a `Loader`, or a `Stream`, which is the same."""
        if not self.job.streams:
            return Loader(SplitDataset(self.job.images, "train"), self.batches, self.device)
        return opened.enter_context(closing(import_module(STREAM).Stream(self.batches)))

    def _make_network(self) -> None:
        """Makes the network and its optimizer, as they were at the last checkpoint."""
        torch.manual_seed(self.hyperparameters.seed)
        self.network = self.job.build(self.data)
        precision = self.hyperparameters.precision
        self.numerics = {
            "precision": precision,
            "attention": self.network.prefer_attention(self.device.type, precision),
            "compiled": self.hyperparameters.compile,
            "threads": changes.set_threads(self.device, self.job.scale.threads),
        }
        if self.job.scale.strategy == "fsdp":
            changes.divide(self.network, self.device, precision)
        self.network.to(self.device)
        self.optimizer = make_optimizer(self.network, self.hyperparameters)
        self.unfrozen: list[torch.nn.Parameter] = []  # of the backbone, after `freeze_epochs`
        if self.hyperparameters.freeze_epochs:
            backbone = self.network.backbone.parameters()
            self.unfrozen = [parameter for parameter in backbone if parameter.requires_grad]
        self.average = deepcopy(self.network) if self.hyperparameters.ema else None
        if folder := changes.undamaged(ray.train.get_checkpoint()):
            self._go_on(folder)
        if changes.value_of_first(self.step) != self.step:
            raise RuntimeError("The workers have not found the same checkpoint.")
        self.module = self._wrap()

    def _go_on(self, folder: Path) -> None:
        """Continues from a checkpoint."""
        mapped = self.job.scale.strategy == "fsdp"
        weights = changes.read_checkpoint(folder, changes.WEIGHTS, mapped=mapped)
        state = changes.read_checkpoint(folder, changes.STATE, mapped=mapped)
        if self.average:
            self.average.load_state_dict(weights)
            weights = state["network"]
        changes.restore(self.network, self.optimizer, weights, state["optimizer"])
        self.step = state["step"]
        self.loss_sum.fill_(state["loss_sums"][self.rank])
        self.history = state["history"]

    def _report(self, metrics: Mapping[str, Any]) -> None:
        """Reports to Ray Train, with a checkpoint of the first worker; all workers call it.

        Args:
            metrics: Of the epoch that has ended; none within an epoch.
        """
        weights = changes.weights_of(self.average or self.network)
        state = {
            "network": changes.weights_of(self.network) if self.average else None,
            "optimizer": changes.state_of_optimizer(self.network, self.optimizer),
            "step": self.step,
            "loss_sums": changes.of_all_workers(self.loss_sum).tolist(),
            "history": self.history,
        }
        written = None
        if self.rank == 0:
            written = changes.write_checkpoint(self.job.scratch / "unreported", weights, state)
        ray.train.report(
            {**metrics, "step": self.step},
            checkpoint=written,
            delete_local_checkpoint_after_upload=True,
        )
        self.saved = monotonic()

    @property
    def _saves_now(self) -> bool:
        """Whether the first worker finds the last checkpoint old."""
        late = monotonic() - self.saved > self.job.scale.checkpoint_seconds
        # On GPUs an exchange waits for all earlier work.
        asks = self.workers == 1 or self.step % STEPS_BETWEEN_FLAGS == 0
        return asks and bool(changes.value_of_first(late))

    @property
    def is_over(self) -> bool:
        """Whether the last epoch has ended, or the training ends before that."""
        patience, best = self.hyperparameters.early_stopping, self.hyperparameters.best
        ended = len(self.history) == self.hyperparameters.epochs
        return ended or stops_early(self.history, best, patience)

    @property
    def _backbone_is_frozen(self) -> bool:
        return len(self.history) < self.hyperparameters.freeze_epochs

    def _wrap(self) -> torch.nn.Module:
        """The module that the training calls: the network, inside DDP if there are several workers.

        DDP looks for parameters that no gradient reaches, as a network of the user's may have. Else
        it would divide the gradients into other buckets after its first step, and a training that
        goes on would add up in another order: other bits, with three workers or more.
        """
        for parameter in self.unfrozen:
            parameter.requires_grad_(not self._backbone_is_frozen)
        module: torch.nn.Module = self.network
        if self.job.scale.strategy != "fsdp":
            looks = {"find_unused_parameters": True}
            module = prepare_model(self.network, parallel_strategy_kwargs=looks)
        if self.numerics["compiled"]:
            module = cast("torch.nn.Module", torch.compile(module))
        return module

    def train_epoch(self) -> None:
        """Trains for the rest of an epoch, or until it is asked to end.

        Raises:
            ValueError: The training diverged.
        """
        epoch = len(self.history)
        begin = epoch * self.batches.per_epoch
        end = begin + self.batches.per_epoch
        if self.unfrozen and self.unfrozen[0].requires_grad is self._backbone_is_frozen:
            self.module = self._wrap()
        self.losses = [entry["val_loss"] for entry in self.history]
        seeds = self.batches.network_seeds(epoch)
        self.module.train()
        if self._backbone_is_frozen:
            self.network.backbone.eval()
        began, first = monotonic(), self.step
        with closing(self.loader.epoch(epoch, self.step - begin)) as batches:
            for images, labels in batches:
                self.generator.manual_seed(seeds[self.step - begin])
                norm = self._take_step(images, labels)
                saves = self.step < end and self._saves_now
                if saves or self.step % STEPS_BETWEEN_CHECKS == 0 or self.step == end:
                    self._check_finite(norm + changes.sum_over_workers(self.loss_sum))
                if self.rank == 0:
                    self.meter.tick(self.step, self.loss_sum, self.history)
                if saves:
                    self._report({})
        self.speed = (self.step - first) * self.batch / (monotonic() - began)

    def _take_step(self, images: Tensor, labels: Tensor) -> Tensor:
        """Trains on a batch.

        Returns:
            The norm of its gradients.
        """
        self.optimizer.zero_grad()
        self.loss_sum += self._backward(images, labels)
        norm = clip_gradients(self.network, self.hyperparameters.clip_norm)
        self.lr = learning_rate(self.step, self.steps, self.hyperparameters, self.losses)
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr
        self.optimizer.step()
        if self.average and (decay := self.hyperparameters.ema):
            changes.update_average(self.average, self.network, decay, self.step)
        self.step += 1
        return norm

    def _backward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Adds up the gradients of a batch, a part of it at a time.

        Returns:
            The mean loss of the worker's part of the batch.
        """
        total = torch.zeros((), device=images.device)
        # As equal as they can be: batch norm cannot learn from a last part of a single image.
        parts = -(-len(images) // self.at_once)
        bounds = [len(images) * number // parts for number in range(parts + 1)]
        for first, end in pairwise(bounds):
            part = slice(first, end)
            x, targets = self.augmentation(images[part], labels[part], self.step, first)
            if self.rank == self.step == first == 0 and x.ndim == 4:
                keep_images(self.job.scratch / FIRST_BATCH, x, targets, self.data.labels)
            # Workers exchange their gradients once, with the last part.
            before_last = end < len(images)
            changes.exchange_gradients(self.network, not before_last)
            alone = getattr(self.module, "no_sync", nullcontext) if before_last else nullcontext
            with alone():
                with self.autocast:
                    logits, share = self.module(x), len(x) / len(images)
                    loss = mean_loss(self.loss_of, logits, targets) * share
                loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return total

    def end_epoch(self) -> None:
        """Evaluates the epoch's weights, and reports them.

        Raises:
            ValueError: The training diverged.
        """
        network = self.average or self.network
        changes.share_statistics(network)
        with self.autocast:
            scores = validate(network, self.val, self.batches, self.at_once, self.device)
        self._check_finite(torch.tensor(scores["val_loss"]))
        entry: dict[str, Any] = {
            "epoch": len(self.history) + 1,
            "train_loss": float(changes.sum_over_workers(self.loss_sum))
            / self.workers
            / self.batches.per_epoch,
            **scores,
            "lr": self.lr,
            "images_per_second": self.speed,
            "seconds": monotonic() - self.ended,  # includes the checkpoint of the epoch before
        }
        self.ended = monotonic()
        self.history.append(entry)
        self.loss_sum.zero_()
        self._report(entry)

    def _check_finite(self, value: Tensor) -> None:
        """Stops a training that diverged; on all workers, because the value is equal on each."""
        if not value.isfinite():
            raise ValueError(
                f"The training diverged in epoch {len(self.history) + 1}: its numbers are no "
                f"longer finite. Lower train.lr (it is {self.hyperparameters.lr:g}) or raise "
                "train.warmup."
            )
