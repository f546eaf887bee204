"""The training loop: what each worker runs, and the step itself when there are no workers."""

import os
from collections.abc import Mapping
from contextlib import chdir, nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import models
from retrain.workload import Train
from tasks.prepared import PreparedSplit, open_prepared
from tasks.train import checkpoint
from tasks.train.batches import Batches
from tasks.train.optimizer import clip_gradients, learning_rate, make_optimizer
from tasks.train.progress import FILE, Epoch, Meter

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

# Gradients are looked at this often. On a GPU, a look waits until it has done all before.
STEPS_BETWEEN_LOOKS = 50

# Forward FLOPs of a step below which one CPU thread is used. On two idle cores, two threads gained
# 5 to 20 % there and 45 % at 6.6 GFLOP; where another program had one of the cores they made a step
# 10 to 100 times slower, since the threads of a small kernel mostly wait for each other.
SMALL_STEP = 1e9

START: dict[str, Any] = {"step": 0, "loss_sum": 0.0, "history": [], "best": None}


@dataclass(frozen=True)
class Job:
    """What a worker has to know. It sees the same folders as the step that sent it.

    Attributes:
        family: The network's, a module of `models`.
        settings: Of the family.
        recipe: How the network is trained.
        images: The output of `preprocess`.
        scratch: Where checkpoints and progress are kept; survives a kill.
        output: Where the trained network is written to.
        root: Of the project; relative paths in the settings start there.
        checkpoint_seconds: The longest time between two checkpoints.
    """

    family: str
    settings: Mapping[str, Any]
    recipe: Train
    images: Path
    scratch: Path
    output: Path
    root: Path
    checkpoint_seconds: float


def work(config: Mapping[str, Job]) -> dict[str, Any]:
    """Trains, as one of the workers.

    Args:
        config: The job, under `job`.

    Returns:
        `history` (one mapping for each epoch), `best` (the one that is kept) and `parameters`; or
        `error`, which is the user's to mend. It is not raised because Ray would start the workers
        again.
    """
    try:
        return train(config["job"])
    except ValueError as error:
        return {"error": str(error)}


def train(job: Job) -> dict[str, Any]:
    """Trains a network, from its last checkpoint if there is one, and writes the best epoch's.

    Raises:
        ValueError: The network does not go with the images, or the training diverged.
    """
    import torch
    from ray.train import get_context
    from ray.train.torch import get_device, prepare_model

    recipe, device = job.recipe, get_device()
    rank, workers = get_context().get_world_rank(), get_context().get_world_size()
    _set_up(device)

    data = open_prepared(job.images)
    images, val = data.split("train"), data.split("val")
    labels = torch.from_numpy(images.labels).to(device)
    batches = Batches(len(images), recipe.batch_size, recipe.seed, rank, workers)
    steps = batches.per_epoch * recipe.epochs

    torch.manual_seed(recipe.seed)
    with chdir(job.root):
        network = models.build(job.family, job.settings, data.shape, len(data.labels))
    before = checkpoint.load(job.scratch) or START
    if before["step"]:
        network.load_state_dict(before["network"])
    if device.type == "cpu":
        sharing = get_context().get_local_world_size()
        torch.set_num_threads(_threads(network, data.shape, batches.share, sharing))
    module = prepare_model(network)  # on the device; with several workers, inside DDP
    optimizer = make_optimizer(network, recipe)
    if before["step"]:
        optimizer.load_state_dict(before["optimizer"])
    step: int = before["step"]
    loss_sum = torch.tensor(before["loss_sum"], device=device)
    history: list[dict[str, Any]] = list(before["history"])
    best: dict[str, Any] | None = before["best"]

    def save() -> float:
        so_far = {"step": step, "loss_sum": float(loss_sum), "history": history, "best": best}
        state = {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
        checkpoint.save(job.scratch, step, state | so_far)
        return monotonic()

    loss_of = torch.nn.CrossEntropyLoss(label_smoothing=recipe.label_smoothing)
    bf16 = recipe.precision == "bf16"
    autocast = torch.autocast(device.type, torch.bfloat16) if bf16 else nullcontext()
    generator = _generator(device)
    batch = batches.share * workers
    meter = Meter(job.scratch / FILE, recipe.epochs, steps, batch, step, float(loss_sum))
    saved = ended = monotonic()

    for epoch in range(len(history), recipe.epochs):
        began, first, epoch_end = monotonic(), step, (epoch + 1) * batches.per_epoch
        meter.go_on()
        module.train()
        for rows in batches.epoch(epoch)[step - epoch_end :]:
            x = batches.augment(_to(device, images.images[rows]), recipe.augment, step)
            y = labels[_to(device, rows)]
            generator.manual_seed(batches.network_seed(step))
            with autocast:
                loss = loss_of(module(x), y)
            optimizer.zero_grad()
            loss.backward()
            norm = clip_gradients(network, recipe.clip_norm)
            lr = learning_rate(step, steps, recipe)
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
            loss_sum += loss.detach()
            step += 1

            if step % STEPS_BETWEEN_LOOKS == 0 or step == epoch_end:
                _check_finite(norm, epoch, recipe)
            if rank == 0:
                meter.tick(step, loss_sum, history)
                if monotonic() - saved > job.checkpoint_seconds and step < epoch_end:
                    saved = save()
        trained = monotonic()
        meter.pause(float(loss_sum))

        with autocast:
            val_loss, val_accuracy = validate(network, val, batches, device)
        _check_finite(val_loss, epoch, recipe)
        this: Epoch = {
            "epoch": epoch + 1,
            "train_loss": float(_sum_over_workers(loss_sum)) / workers / batches.per_epoch,
            "val_loss": float(val_loss),
            "val_accuracy": val_accuracy,
            "lr": lr,
            "images_per_second": (step - first) * batch / (trained - began),
            "seconds": monotonic() - ended,  # with the last epoch's checkpoint
        }
        ended = monotonic()
        history.append(dict(this))
        if best is None or _score(this) > _score(best["epoch"]):
            weights = {name: value.cpu().clone() for name, value in network.state_dict().items()}
            best = {"epoch": dict(this), "weights": weights}
        loss_sum.zero_()
        if rank == 0:
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
    return {"history": history, "best": best["epoch"], "parameters": parameters}


def validate(
    network: "torch.nn.Module", split: PreparedSplit, batches: Batches, device: "torch.device"
) -> tuple["Tensor", float]:
    """Evaluates a network on a split, each worker on its part.

    Returns:
        The mean cross-entropy (nats, without label smoothing) and the accuracy.
    """
    import numpy as np
    import torch

    mine = np.arange(batches.rank, len(split), batches.workers)
    loss_sum = torch.zeros((), device=device)
    hits = torch.zeros((), device=device)
    network.eval()
    with torch.inference_mode():
        for first in range(0, len(mine), batches.share):
            rows = mine[first : first + batches.share]
            y = _to(device, split.labels[rows])
            logits = network(_to(device, split.images[rows]))
            loss_sum += torch.nn.functional.cross_entropy(logits, y, reduction="sum")
            hits += (logits.argmax(1) == y).sum()
    loss_sum, hits = _sum_over_workers(loss_sum), _sum_over_workers(hits)
    return loss_sum / len(split), float(hits) / len(split)


def _threads(
    network: "torch.nn.Module", shape: tuple[int, int, int], images: int, sharing: int
) -> int:
    """How many CPU threads a worker uses: its share of the cores, or one for a small step.

    Args:
        network: Counted on one image.
        shape: Of an image: height, width and channels.
        images: Of a step, on this worker.
        sharing: Workers on this machine.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    network.eval()
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        network(torch.zeros((1, *shape), dtype=torch.uint8))
    if counter.get_total_flops() * images < SMALL_STEP:
        return 1
    return max(1, (os.cpu_count() or 1) // sharing)


def _set_up(device: "torch.device") -> None:
    """Makes a repeated training give the same bits."""
    import torch

    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _generator(device: "torch.device") -> "torch.Generator":
    """What dropout draws from. `torch.manual_seed` would seed every kind of device, slowly."""
    import torch

    if device.type == "cuda":
        return torch.cuda.default_generators[device.index]
    return torch.default_generator


def _to(device: "torch.device", array: "NDArray[np.generic]") -> "Tensor":
    """A tensor of an array; on its way to a GPU, the work there goes on."""
    import torch

    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor


def _sum_over_workers(value: "Tensor") -> "Tensor":
    import torch.distributed

    value = value.clone()
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(value)
    return value


def _score(epoch: Epoch) -> tuple[float, float]:
    """What the best epoch has most of; the earlier one of equals is kept."""
    return epoch["val_accuracy"], -epoch["val_loss"]


def _check_finite(value: "Tensor", epoch: int, recipe: Train) -> None:
    """Stops a training that is past hope; on all workers, for the value is the same on each."""
    if not value.isfinite():
        raise ValueError(
            f"The training diverged in epoch {epoch + 1}: its numbers are no longer finite. "
            f"Lower train.lr (it is {recipe.lr:g}) or raise train.warmup."
        )
