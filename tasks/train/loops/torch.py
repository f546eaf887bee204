"""The training loop; each worker runs it, or the step's process if there are no workers."""

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, chdir, nullcontext
from time import monotonic
from typing import TYPE_CHECKING, Any

import models
from retrain.hardware import find_compiler
from retrain.workload import Train
from tasks.data.shards import PreparedSplit, open_prepared
from tasks.train import checkpoint
from tasks.train.augment import augment
from tasks.train.ingest import Ingest, in_order, windows
from tasks.train.job import TrainingJob
from tasks.train.optimizer import clip_gradients, learning_rate, make_optimizer
from tasks.train.progress import FILE, Epoch, Meter
from tasks.train.sampler import BatchSampler

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# How often gradients are checked. A check waits until the GPU has done all earlier work.
STEPS_BETWEEN_CHECKS = 50

# A checkpoint takes milliseconds, as an epoch of a very small training does: after less time than
# this, no checkpoint is written.
SECONDS_WORTH_A_CHECKPOINT = 1.0

# FLOPs from which a training on a GPU is compiled: minutes on a fast GPU, while compiling takes
# about one. On a CPU, compiling took 25 to 65 s to gain 10 % and needs a C++ compiler.
WORTH_COMPILING = 1e17

# In PyTorch's messages, when memory cannot be had.
NO_MEMORY = ("can't allocate memory", "not enough memory", "size calculation overflowed")

START: dict[str, Any] = {"step": 0, "loss_sum": 0.0, "history": [], "best": None}


def work(config: Mapping[str, TrainingJob]) -> dict[str, Any]:
    """Trains, as one of the workers.

    Args:
        config: The job, under `job`.

    Returns:
        `history` (one mapping for each epoch), `best` (the best of them), `parameters` (how many)
        and `numerics` (how it was calculated).

    Raises:
        ValueError: As `train` does; or there is not enough memory.
    """
    try:
        return train(config["job"])
    except (RuntimeError, MemoryError) as error:
        if not _is_lack_of_memory(error):
            raise
        raise ValueError(
            "There is not enough memory to train this network. Make train.micro_batch, "
            "images.size or the model smaller."
        ) from error


def _is_lack_of_memory(error: Exception) -> bool:
    """Whether memory could not be had; PyTorch has no class of error for that on a CPU."""
    import torch

    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return any(said in str(error) for said in NO_MEMORY)


def train(job: TrainingJob) -> dict[str, Any]:
    """Trains a network, from its last checkpoint if there is one, and saves the best epoch.

    Raises:
        ValueError: The network does not fit the images, or the training diverged.
    """
    import torch
    from ray.train import get_context
    from ray.train.torch import get_device, prepare_model

    hyperparameters, device = job.hyperparameters, get_device()
    rank, workers = get_context().get_world_rank(), get_context().get_world_size()
    _set_up(device)

    data = open_prepared(job.images)
    images, val = data.split("train"), data.split("val")
    batches = BatchSampler(
        len(images), hyperparameters.batch_size, hyperparameters.seed, rank, workers,
        windows(images.images, job.memory_gb, hyperparameters.batch_size),
    )  # fmt: skip
    steps = batches.per_epoch * hyperparameters.epochs

    torch.manual_seed(hyperparameters.seed)
    with chdir(job.root):
        network = models.build(job.family, job.settings, data.shape, len(data.labels))
    before = checkpoint.load(job.scratch) or START
    if before["step"]:
        network.load_state_dict(before["network"])
    flops = _flops(network, data.shape)
    on_cpu = device.type == "cpu"
    if on_cpu:
        torch.set_num_threads(job.threads or 1)  # None if GPUs were expected
    numerics = {
        "precision": hyperparameters.precision,
        "attention": network.prefer_attention(device.type, hyperparameters.precision),
        "compiled": _is_compiled(hyperparameters, device, 3 * flops * batches.share * steps),
        "threads": torch.get_num_threads() if on_cpu else None,
    }
    module = prepare_model(network)  # on the device; with several workers, inside DDP
    if numerics["compiled"]:
        module = torch.compile(module)
    optimizer = make_optimizer(network, hyperparameters)
    if before["step"]:
        optimizer.load_state_dict(before["optimizer"])
    ingest = Ingest(images, batches, device)
    step: int = before["step"]
    loss_sum = torch.tensor(before["loss_sum"], device=device)
    history: list[dict[str, Any]] = list(before["history"])
    best: dict[str, Any] | None = before["best"]

    def save() -> float:
        so_far = {"step": step, "loss_sum": float(loss_sum), "history": history, "best": best}
        state = {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
        if checkpoint.is_finite(state | so_far):
            checkpoint.save(job.scratch, step, state | so_far)
        else:  # a restarted training must not continue from here
            loss_sum.fill_(torch.nan)  # all workers stop at the next check
        return monotonic()

    loss_of = torch.nn.CrossEntropyLoss(label_smoothing=hyperparameters.label_smoothing)
    autocast = _autocast(device, hyperparameters)
    generator = _generator(device)
    batch = batches.share * workers
    meter = Meter(job.scratch / FILE, hyperparameters.epochs, steps, batch, step, float(loss_sum))
    saved = ended = monotonic()

    for epoch in range(len(history), hyperparameters.epochs):
        began, first, epoch_begin = monotonic(), step, epoch * batches.per_epoch
        epoch_end = epoch_begin + batches.per_epoch
        seeds = batches.network_seeds(epoch)
        meter.go_on()
        module.train()
        for x, y in ingest.epoch(epoch, step - epoch_begin):
            generator.manual_seed(seeds[step - epoch_begin])
            optimizer.zero_grad()
            x = augment(x, hyperparameters.augment, batches, step)
            loss_sum += _backward(module, loss_of, x, y, autocast, hyperparameters.micro_batch)
            norm = clip_gradients(network, hyperparameters.clip_norm)
            lr = learning_rate(step, steps, hyperparameters)
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
            step += 1

            if step % STEPS_BETWEEN_CHECKS == 0 or step == epoch_end:
                _check_finite(norm + _sum_over_workers(loss_sum), epoch, hyperparameters)
            if rank == 0:
                meter.tick(step, loss_sum, history)
                if monotonic() - saved > job.checkpoint_seconds and step < epoch_end:
                    saved = save()
        trained = monotonic()
        meter.pause(float(loss_sum))

        _share_statistics(network)
        with autocast:
            val_loss, val_accuracy = validate(network, val, batches, device)
        _check_finite(val_loss, epoch, hyperparameters)
        if not checkpoint.is_finite((network.state_dict(), optimizer.state_dict())):
            raise _diverged(epoch, hyperparameters)  # on all workers: their weights are equal
        this: Epoch = {
            "epoch": epoch + 1,
            "train_loss": float(_sum_over_workers(loss_sum)) / workers / batches.per_epoch,
            "val_loss": float(val_loss),
            "val_accuracy": val_accuracy,
            "lr": lr,
            "images_per_second": (step - first) * batch / (trained - began),
            "seconds": monotonic() - ended,  # includes the checkpoint of the epoch before
        }
        ended = monotonic()
        history.append(dict(this))
        if best is None or _score(this) > _score(best["epoch"]):
            weights = {name: value.cpu().clone() for name, value in network.state_dict().items()}
            best = {"epoch": dict(this), "weights": weights}
        loss_sum.zero_()
        worth = min(SECONDS_WORTH_A_CHECKPOINT, job.checkpoint_seconds)
        if rank == 0 and (monotonic() - saved > worth or step == steps):
            saved = save()

    assert best is not None
    if rank == 0:
        meter.write(step, history[-1]["train_loss"], history)
        network.load_state_dict(best["weights"])
        models.save(
            network,
            job.output,
            family=job.family,
            settings=job.settings,
            labels=data.labels,
            images=data.images,
        )
    parameters = sum(each.numel() for each in network.parameters())
    return {
        "history": history,
        "best": best["epoch"],
        "parameters": parameters,
        "numerics": numerics,
    }


def _backward(
    module: "torch.nn.Module",
    loss_of: "torch.nn.Module",
    images: "Tensor",
    labels: "Tensor",
    autocast: AbstractContextManager[Any],
    micro_batch: int | None,
) -> "Tensor":
    """Adds up the gradients of a batch, a part of it at a time.

    Returns:
        The mean loss of the worker's part of the batch.
    """
    if micro_batch is None or micro_batch >= len(images):
        with autocast:
            loss = loss_of(module(images), labels)
        loss.backward()
        detached: Tensor = loss.detach()
        return detached
    import torch

    total = torch.zeros((), device=images.device)
    parts = list(
        zip(torch.split(images, micro_batch), torch.split(labels, micro_batch), strict=True)
    )
    for number, (x, y) in enumerate(parts, 1):
        # Workers exchange their gradients once, with the last part.
        alone = getattr(module, "no_sync", nullcontext) if number < len(parts) else nullcontext
        with alone():
            with autocast:
                loss = loss_of(module(x), y) * (len(x) / len(images))
            loss.backward()
        total += loss.detach()
    return total


def validate(
    network: "torch.nn.Module", split: PreparedSplit, batches: BatchSampler, device: "torch.device"
) -> tuple["Tensor", float]:
    """Evaluates a network on a split, each worker on its part.

    Returns:
        The mean cross-entropy (nats, without label smoothing) and the accuracy.
    """
    import torch

    share = -(-len(split) // batches.workers)
    chosen = range(len(split))[batches.rank * share :][:share]
    loss_sum = torch.zeros((), device=device)
    hits = torch.zeros((), device=device)
    network.eval()
    with torch.inference_mode():
        for images, labels in in_order(split, chosen, batches.share, device):
            logits = network(images)
            loss_sum += torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
            hits += (logits.argmax(1) == labels).sum()
    loss_sum, hits = _sum_over_workers(loss_sum), _sum_over_workers(hits)
    return loss_sum / len(split), float(hits) / len(split)


def _flops(network: "torch.nn.Module", shape: tuple[int, int, int]) -> float:
    """FLOPs of a forward pass over one image; works for a pretrained network too."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    network.eval()
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        network(torch.zeros((1, *shape), dtype=torch.uint8))
    return float(counter.get_total_flops())


def _is_compiled(hyperparameters: Train, device: "torch.device", flops: float) -> bool:
    """Whether the network is compiled.

    Args:
        hyperparameters: `compile` may decide it.
        device: The device of the training.
        flops: FLOPs of this worker's whole training.
    """
    if hyperparameters.compile == "auto":
        worth = device.type == "cuda" and flops >= WORTH_COMPILING
        return worth and find_compiler(on_gpu=True) is not None
    return hyperparameters.compile


def _set_up(device: "torch.device") -> None:
    """Makes a repeated training give bitwise equal results."""
    import torch

    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _autocast(device: "torch.device", hyperparameters: Train) -> AbstractContextManager[Any]:
    import torch

    assert hyperparameters.precision != "auto", "retrain.params decides it"
    if hyperparameters.precision == "bf16":
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()


def _generator(device: "torch.device") -> "torch.Generator":
    """The generator of dropout. `torch.manual_seed` would seed every kind of device, slowly."""
    import torch

    if device.type == "cuda":
        return torch.cuda.default_generators[device.index]
    return torch.default_generator


def _share_statistics(network: "torch.nn.Module") -> None:
    """Gives all workers the first one's statistics of batch norms, which are what is saved."""
    import torch.distributed

    if torch.distributed.is_initialized():
        for statistic in network.buffers():
            torch.distributed.broadcast(statistic, 0)


def _sum_over_workers(value: "Tensor") -> "Tensor":
    import torch.distributed

    value = value.clone()
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(value)
    return value


def _score(epoch: Epoch) -> tuple[float, float]:
    """The best epoch has the highest score; of equal ones, the first is chosen."""
    return epoch["val_accuracy"], -epoch["val_loss"]


def _check_finite(value: "Tensor", epoch: int, hyperparameters: Train) -> None:
    """Stops a training that diverged; on all workers, because the value is the same on each."""
    if not value.isfinite():
        raise _diverged(epoch, hyperparameters)


def _diverged(epoch: int, hyperparameters: Train) -> ValueError:
    return ValueError(
        f"The training diverged in epoch {epoch + 1}: its numbers are no longer finite. "
        f"Lower train.lr (it is {hyperparameters.lr:g}) or raise train.warmup."
    )
