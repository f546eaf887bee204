"""The project's own training; each worker of Ray Train runs it."""

from collections.abc import Callable, Iterator
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from time import monotonic
from typing import Any

import torch
from torch import Tensor, nn

from models.network import Network
from retrain.workload import Train
from tasks.data.shards import Prepared, open_prepared
from tasks.train import distributed
from tasks.train.augmentation import Augmentation, keep_images
from tasks.train.data_loading import Batch, BatchSampler, Loader, SplitDataset, class_weights
from tasks.train.job import FIRST_BATCH, STREAM, TrainingJob, stops_early
from tasks.train.recipe import (
    clip_gradients,
    evaluate,
    learning_rate,
    loss_function,
    make_optimizer,
    mean_loss,
    temperature,
    update_average,
)
from tasks.train.session import Meter, Session, is_undamaged, read_state

# In PyTorch's messages, when memory cannot be had.
NO_MEMORY = ("can't allocate memory", "not enough memory", "size calculation overflowed")
STEPS_BETWEEN_CHECKS = 50  # for numbers that are not finite, which wait until the GPU is done

# The mean loss of a module for images and labels: those of a step's batch from a place on.
Objective = Callable[[nn.Module, Tensor, Tensor, int, int], Tensor]


@dataclass
class State:
    """A training at a step between its first and its last: what a checkpoint holds.

    Attributes:
        network: It may be sharded.
        optimizer: The optimizer of its parameters.
        average: The average of its weights; None if there is none.
        loss_sum: The sum of this worker's losses, of the epoch so far.
        step: Optimizer steps so far.
    """

    network: Network
    optimizer: torch.optim.Optimizer
    average: Network | None
    loss_sum: Tensor
    step: int = 0

    @property
    def evaluated(self) -> Network:
        """The network that is evaluated, and saved."""
        return self.network if self.average is None else self.average

    def state_dict(self) -> dict[str, Any]:
        """All that a training goes on from; all workers call it, and the first one has it."""
        if distributed.is_sharded(self.network):
            from tasks.train import fsdp

            network, optimizer = fsdp.state_dicts(self.network, self.optimizer)
        else:
            network, optimizer = self.network.state_dict(), self.optimizer.state_dict()
        return {
            "weights": self.average.state_dict() if self.average else network,
            "network": network if self.average else None,
            "optimizer": optimizer,
            "loss_sums": distributed.of_all_workers(self.loss_sum).tolist(),
            "step": self.step,
        }

    def load_state_dict(self, state: dict[str, Any], rank: int) -> None:
        """Takes what `state_dict` gave, which each worker has."""
        network, optimizer = state["network"] or state["weights"], state["optimizer"]
        if distributed.is_sharded(self.network):
            from tasks.train import fsdp

            fsdp.load_state_dicts(self.network, self.optimizer, network, optimizer)
        else:
            self.network.load_state_dict(network)
            self.optimizer.load_state_dict(optimizer)
        if self.average:
            self.average.load_state_dict(state["weights"])
        self.loss_sum.fill_(state["loss_sums"][rank])
        self.step = state["step"]


def fit(session: Session) -> dict[str, Any]:
    """Trains, as one of the workers: from its last checkpoint if there is one.

    It is repeatable to the bit, unless the network has an operation that cannot be.

    Returns:
        How it was calculated: `precision`, `attention`, whether `compiled`, and CPU `threads`.

    Raises:
        ValueError: The network does not fit the images, or the training diverged; or there is not
            enough memory.
    """
    try:
        try:
            with distributed.repeatable(session.device, strictly=True):
                return train(session)
        except RuntimeError as error:
            if distributed.NOT_REPEATABLE not in str(error):
                raise
        with distributed.repeatable(session.device, strictly=False):
            return train(session)
    except (RuntimeError, MemoryError) as error:
        lacking = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not lacking and not any(words in str(error) for words in NO_MEMORY):
            raise
        raise ValueError(
            "There is not enough memory to train this network. Make train.micro_batch, "
            "images.size or the model smaller."
        ) from error


def train(session: Session) -> dict[str, Any]:
    """Trains, and reports each epoch with a checkpoint; see `fit`."""
    job, device = session.job, session.device
    settings = job.hyperparameters

    data, validation = open_prepared(job.images), SplitDataset(job.images, "val")
    sampler = make_sampler(settings, data, session.rank, session.world_size)
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=settings.precision == "bf16")

    state, numerics = make_state(session, data)
    objective = make_objective(session, data, sampler, autocast)
    backbone = state.network.backbone if settings.freeze_epochs else nn.Module()
    frozen = [parameter for parameter in backbone.parameters() if parameter.requires_grad]
    batch = sampler.share * sampler.workers  # images of a step
    meter = Meter(job.scratch, settings.epochs, sampler.per_epoch, batch)

    first, ended = state.step // sampler.per_epoch, monotonic()
    with closing(make_loader(job, sampler, state.step, device)) as loader:
        for epoch in range(first, settings.epochs):
            if stops_early(session.history[:epoch], settings.best, settings.early_stopping):
                break
            is_frozen = epoch < settings.freeze_epochs
            if epoch in (first, settings.freeze_epochs):
                for parameter in frozen:
                    parameter.requires_grad_(not is_frozen)
                module = distributed.wrap(state.network, device, compiled=settings.compile)
            module.train()
            if is_frozen:
                backbone.eval()

            began, before = monotonic(), state.step
            with closing(loader.epoch(epoch, state.step % sampler.per_epoch)) as batches:
                lr = train_epoch(session, state, module, batches, objective, sampler, meter)
            speed = (state.step - before) * batch / (monotonic() - began)

            distributed.broadcast_batch_norms(state.evaluated)
            with autocast:
                scores = evaluate(state.evaluated, validation, sampler, job.micro_batch, device)
            check_finite(torch.tensor(scores["val_loss"]), epoch, settings.lr)
            loss_sum = float(distributed.sum_over_workers(state.loss_sum))
            metrics = {
                "epoch": epoch + 1,
                "train_loss": loss_sum / sampler.workers / sampler.per_epoch,
                **scores,
                "lr": lr,
                "images_per_second": speed,
                "seconds": monotonic() - ended,  # includes the checkpoint of the epoch before
            }
            ended = monotonic()
            state.loss_sum.zero_()
            session.report(metrics, state.state_dict())
    return numerics


def make_sampler(settings: Train, data: Prepared, rank: int, workers: int) -> BatchSampler:
    """Decides which training images make up each batch of a worker."""
    labels, chances = data.split("train").labels, None
    if settings.balance == "sampling":
        chances = class_weights(labels, len(data.labels))[labels]
    return BatchSampler(len(labels), settings.batch_size, settings.seed, rank, workers, chances)


def make_loader(job: TrainingJob, sampler: BatchSampler, step: int, device: torch.device) -> Any:
    """What brings the batches of each epoch: a `Loader`, or a `Stream`, which is the same."""
    if job.streams:
        return import_module(STREAM).Stream(job, sampler, step, device)
    return Loader(SplitDataset(job.images, "train"), sampler, device)


def make_state(session: Session, data: Prepared) -> tuple[State, dict[str, Any]]:
    """Makes the network and its optimizer, as they were at the last checkpoint.

    Returns:
        The state, and how it is calculated with, as `fit` says.

    Raises:
        ValueError: The network does not fit the images.
    """
    job, device = session.job, session.device
    settings = job.hyperparameters
    torch.manual_seed(settings.seed)
    network = job.build(data)
    numerics = {
        "precision": settings.precision,
        "attention": network.prefer_attention(device.type, settings.precision),
        "compiled": settings.compile,
        "threads": distributed.set_threads(device, job.scale.threads),
    }
    is_sharded = job.scale.strategy == "fsdp"
    if is_sharded:
        from tasks.train import fsdp

        fsdp.shard(network, device, settings.precision)
    network.to(device)
    optimizer = make_optimizer(network, settings)
    average = deepcopy(network) if settings.ema else None
    state = State(network, optimizer, average, torch.zeros((), device=device))
    if saved := session.latest(mapped=is_sharded):
        state.load_state_dict(saved, session.rank)
    if distributed.value_of_first(state.step) != state.step:
        raise RuntimeError("The workers have not found the same checkpoint.")
    return state, numerics


def make_objective(
    session: Session, data: Prepared, sampler: BatchSampler, autocast: torch.autocast
) -> Objective:
    """The loss of images that are changed at random.

    Args:
        session: The session of this worker; the first images are kept for the report.
        data: The images.
        sampler: The sampler of the batches.
        autocast: The precision of the network; it is entered once for each part of a batch.
    """
    job, classes, labels = session.job, data.labels, data.split("train").labels
    loss_of = loss_function(job.hyperparameters, labels, len(classes), session.device)
    changes = job.hyperparameters.augment
    if job.streams:  # parts of the originals arrive
        changes = changes.model_copy(update={"crop": None})
    augmentation = Augmentation(changes, sampler, data.images["size"])

    def objective(
        module: nn.Module, images: Tensor, labels: Tensor, step: int, first: int
    ) -> Tensor:
        x, targets = augmentation(images, labels, step, first)
        if session.rank == step == first == 0 and x.ndim == 4:  # no embeddings
            keep_images(job.scratch / FIRST_BATCH, x, targets, classes)
        with autocast:
            return mean_loss(loss_of, module(x), targets)

    return objective


def train_epoch(
    session: Session,
    state: State,
    module: nn.Module,
    batches: Iterator[Batch],
    objective: Objective,
    sampler: BatchSampler,
    meter: Meter,
) -> float:
    """Trains for the rest of an epoch; within it a checkpoint is reported without metrics.

    Returns:
        The last learning rate.

    Raises:
        ValueError: The training diverged.
    """
    settings, per_epoch = session.job.hyperparameters, sampler.per_epoch
    epoch, steps = state.step // per_epoch, per_epoch * settings.epochs
    history = session.history[:epoch]
    losses = [metrics["val_loss"] for metrics in history]
    seeds, generator = sampler.network_seeds(epoch), distributed.generator(session.device)
    lr = 0.0
    for images, labels in batches:
        generator.manual_seed(seeds[state.step % per_epoch])
        state.optimizer.zero_grad()
        state.loss_sum += backward(
            objective, module, state, images, labels, session.job.micro_batch
        )
        norm = clip_gradients(state.network, settings.clip_norm)
        lr = learning_rate(state.step, steps, settings, losses)
        for group in state.optimizer.param_groups:
            group["lr"] = lr
        state.optimizer.step()
        if state.average and settings.ema:
            update_average(state.average, state.network, settings.ema, state.step)
        state.step += 1

        is_over = state.step % per_epoch == 0
        saves = not is_over and session.checkpoint_is_due(state.step)
        if saves or is_over or state.step % STEPS_BETWEEN_CHECKS == 0:
            finite = norm + distributed.sum_over_workers(state.loss_sum)
            check_finite(finite, epoch, settings.lr)
        if session.rank == 0:
            meter.tick(state.step, state.loss_sum, history)
        if saves:
            session.report({}, state.state_dict())
    return lr


def backward(
    objective: Objective,
    module: nn.Module,
    state: State,
    images: Tensor,
    labels: Tensor,
    micro_batch: int,
) -> Tensor:
    """Adds up the gradients of a worker's part of a batch, so many images at a time.

    Returns:
        Their mean loss.
    """
    total = torch.zeros((), device=images.device)
    # As equal as they can be: batch norm cannot learn from a last part of a single image.
    parts = -(-len(images) // micro_batch)
    bounds = [len(images) * number // parts for number in range(parts + 1)]
    for first, end in pairwise(bounds):
        part, share = slice(first, end), (end - first) / len(images)
        with distributed.gradient_sync(module, state.network, end == len(images)):
            loss = objective(module, images[part], labels[part], state.step, first) * share
            loss.backward()  # type: ignore[no-untyped-call]
        total += loss.detach()
    return total


def check_finite(value: Tensor, epoch: int, lr: float) -> None:
    """Stops a training that diverged; on all workers, because the value is equal on each.

    Raises:
        ValueError: The value is not finite.
    """
    if not value.isfinite():
        raise ValueError(
            f"The training diverged in epoch {epoch + 1}: its numbers are no longer finite. "
            f"Lower train.lr (it is {lr:g}) or raise train.warmup."
        )


def best_network(session: Session) -> Network:
    """The network of the best epoch.

    Raises:
        ValueError: Its checkpoint is damaged.
    """
    assert session.best and session.best.checkpoint
    folder = session.folder(session.best.checkpoint)
    if not is_undamaged(folder):
        raise ValueError(
            "The checkpoint of the best epoch is damaged. Remove "
            f"{session.job.scratch}, and train again from the start."
        )
    network = session.job.build(open_prepared(session.job.images))
    network.load_state_dict(read_state(folder, mapped=True)["weights"])
    return network


def save(job: TrainingJob, network: Network) -> None:
    """Saves a trained network, with the temperature that the validation images bear out."""
    split, precision = SplitDataset(job.images, "val"), job.hyperparameters.precision
    found = temperature(network, split, job.micro_batch, precision)
    job.save(network, open_prepared(job.images), found)
