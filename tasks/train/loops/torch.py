"""The project's own training loop; each worker runs it, or the step's process if there are none."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, nullcontext
from copy import deepcopy
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from retrain.workload import Train, Workload
from tasks.data.shards import open_prepared
from tasks.train import checkpoint, device, sharding
from tasks.train.adapters import add_adapters, merge_adapters
from tasks.train.augment import Augmentation, mean_loss
from tasks.train.averaging import update_average
from tasks.train.balance import loss_function
from tasks.train.collective import (
    of_all_workers,
    said_by_first,
    share_statistics,
    sum_over_workers,
)
from tasks.train.divergence import STEPS_BETWEEN_CHECKS, diverged
from tasks.train.ingest import open_ingest, sampler
from tasks.train.interrupt import is_asked
from tasks.train.job import TrainingJob
from tasks.train.optimizer import (
    clip_gradients,
    learning_rate,
    make_optimizer,
    set_learning_rate,
)
from tasks.train.progress import FILE, Meter
from tasks.train.selection import Epoch, is_better, stops_early
from tasks.train.validation import validate

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from models.network import Network

# In PyTorch's messages, when memory cannot be had.
NO_MEMORY = ("can't allocate memory", "not enough memory", "size calculation overflowed")

NAME = "the project's own loop"
STEPS_BETWEEN_FLAGS = 10  # after which workers agree on whether to write a checkpoint

METRICS = ("train_loss", "val_loss", "val_accuracy")
STRATEGIES = ("ddp", "fsdp")
INGESTS = ("auto", "dataloader", "stream")
ENDS_WHEN_ASKED = True
USED = tuple(set(Train.model_fields) - {"function", "arguments"})  # of the section `train`


def faults(workload: Workload) -> Iterator[str]:
    """A sentence for each setting that does not go with the others."""
    train = workload.train
    if train.lora:
        for name in ("freeze_epochs", "layer_decay"):
            if getattr(train, name) != getattr(Train(), name):
                yield (
                    f"train.{name}: train.lora does not train these layers; leave one of them out."
                )
    if workload.scale.strategy == "fsdp":
        if workload.scale.workers < 2:
            yield "scale.strategy: fsdp divides a network among scale.workers; set it to 2 or more."
        for name in ("lora", "freeze_epochs", "ema"):
            if getattr(train, name):
                yield f"train.{name}: it does not go with scale.strategy fsdp."


def slow_faults(hyperparameters: Train, root: Path) -> Iterator[str]:
    """None."""
    return iter(())


def callbacks(job: TrainingJob) -> list[Any]:
    """What Ray Train's controller calls: nothing, because this loop has its own checkpoints."""
    return []


def finish(job: TrainingJob, result: dict[str, Any]) -> dict[str, Any]:
    """What the first worker returned, which has saved the network itself."""
    return result


def work(job: TrainingJob) -> dict[str, Any]:
    """Trains, as one of the workers: from its last checkpoint if there is one.

    Returns:
        `history` (one mapping for each epoch), `best` (the best of them), `parameters` (how many)
        and `numerics` (how it was calculated); nothing if it was asked to end.

    Raises:
        PrunedError: The training is a trial of a search, which ends it.
        ValueError: The network does not fit the images, or the training diverged; or there is not
            enough memory.
    """
    try:
        with ExitStack() as opened:
            training = Training(job, opened)
            while not training.is_over:
                training.train_epoch()
                if training.is_interrupted:
                    return {}
                training.end_epoch()
            training.job.check_pruned(training.history)
            return training.finish()
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


class Training:
    """A training at a step between its first and its last.

    What a checkpoint holds are the network, the optimizer, the average of the weights, `step`,
    `loss_sum` of each worker, `history` and `best`; everything else follows from the job.
    """

    def __init__(self, job: TrainingJob, opened: ExitStack) -> None:
        """Builds all that a training needs, and puts it where its last checkpoint was.

        Args:
            job: What to train, and on what.
            opened: Gets what is to be closed after the training.

        Raises:
            ValueError: The network does not fit the images.
        """
        import torch
        from ray.train import get_context
        from ray.train.torch import get_device

        self.job, self.hyperparameters = job, job.hyperparameters
        self.device = get_device()
        device.make_repeatable(self.device)
        context = get_context()
        self.rank, self.workers = context.get_world_rank(), context.get_world_size()

        self.data = open_prepared(job.images)
        images, self.val = self.data.split("train"), self.data.split("val")
        self.batches = sampler(job, self.data, self.rank, self.workers)
        self.ingest = open_ingest(job, images, self.batches, self.device, opened)
        self.batch = self.batches.share * self.workers  # images of a step
        self.at_once = self.hyperparameters.micro_batch or self.batches.share  # of a worker
        self.steps = self.batches.per_epoch * self.hyperparameters.epochs

        torch.manual_seed(self.hyperparameters.seed)
        self.is_sharded = job.strategy == "fsdp"
        self._make_network()
        self.optimizer = make_optimizer(self.network, self.hyperparameters)
        self.unfrozen: list[torch.nn.Parameter] = []  # of the backbone, after `freeze_epochs`
        if self.hyperparameters.freeze_epochs:
            backbone = self.network.backbone.parameters()
            self.unfrozen = [each for each in backbone if each.requires_grad]
        self.average = deepcopy(self.network) if self.hyperparameters.ema else None
        self.step = 0
        self.loss_sum = torch.zeros((), device=self.device)
        self.history: list[dict[str, Any]] = []
        self.best: dict[str, Any] | None = None
        if before := checkpoint.load(job.scratch):
            self._go_on(before)

        self.module = self._wrap()
        self.loss_of = loss_function(
            self.hyperparameters, images.labels, len(self.data.labels), self.device
        )
        changes = self.hyperparameters.augment
        if job.ingest == "stream":  # parts of the originals arrive
            changes = changes.model_copy(update={"crop": None})
        self.augmentation = Augmentation(changes, self.batches, self.data.images["size"])
        self.autocast = device.autocast(self.device, self.hyperparameters)
        self.generator = device.generator(self.device)
        self.meter = Meter(
            job.scratch / FILE,
            self.hyperparameters.epochs,
            self.steps,
            self.batch,
            self.step,
            float(self.loss_sum),
        )
        self.saved = self.ended = monotonic()
        self.is_interrupted = False

    def _make_network(self) -> None:
        """Makes the network on the device, and decides how it is calculated."""
        whole = None if self.is_sharded and self.rank else self.job.build(self.data)
        flops = device.flops(whole, self.data.shape) if whole else 0.0
        if self.is_sharded:
            flops = said_by_first(int(flops))
            self.network = sharding.without_memory(self.job, whole)
        else:
            self.network = cast("Network", whole)
        if self.hyperparameters.lora:
            add_adapters(self.network, self.hyperparameters.lora)
        self.numerics = self._choose_numerics(flops)
        if self.is_sharded:
            sharding.shard(self.network, whole, self.device, self.hyperparameters.precision)
        else:
            self.network.to(self.device)

    def _choose_numerics(self, flops: float) -> dict[str, Any]:
        """Decides how the network is calculated.

        Args:
            flops: Of a forward pass over one image.
        """
        precision = self.hyperparameters.precision
        flops *= 3 * self.batches.share * self.steps
        threads = device.set_threads(self.device, self.job.threads)
        return {
            "precision": precision,
            "attention": self.network.prefer_attention(self.device.type, precision),
            "compiled": device.is_compiled(self.hyperparameters, self.device, flops),
            "threads": threads,
        }

    def _go_on(self, before: Mapping[str, Any]) -> None:
        """Takes the state of a checkpoint over."""
        network, optimizer = before["network"], before["optimizer"]
        if self.is_sharded:
            sharding.restore(self.network, self.optimizer, network, optimizer)
        else:
            self.network.load_state_dict(network)
            self.optimizer.load_state_dict(optimizer)
        if self.average:
            self.average.load_state_dict(before["average"])
        self.step = before["step"]
        self.loss_sum.fill_(before["loss_sums"][self.rank])
        self.history, self.best = list(before["history"]), before["best"]

    def _save(self) -> None:
        """Writes a checkpoint, as the first worker; all are called."""
        losses = of_all_workers(self.loss_sum).tolist()
        if self.is_sharded:
            network = sharding.whole_weights(self.network)
            optimizer = sharding.whole_optimizer(self.network, self.optimizer)
        else:
            network, optimizer = self.network.state_dict(), self.optimizer.state_dict()
        self.saved = monotonic()
        if self.rank:
            return
        state = {
            "network": network,
            "optimizer": optimizer,
            "average": self.average.state_dict() if self.average else None,
            "step": self.step,
            "loss_sums": losses,
            "history": self.history,
            "best": self.best,
        }
        if checkpoint.is_finite(state):
            checkpoint.save(self.job.scratch, self.step, state, self.job.keep_checkpoints)
        else:  # a restarted training must not continue from here
            self.loss_sum.fill_(float("nan"))  # all workers stop at the next check
        self.saved = monotonic()

    @property
    def _saves_now(self) -> bool:
        """Whether the first worker finds the last checkpoint old, or is asked to end."""
        late = monotonic() - self.saved > self.job.checkpoint_seconds
        # On GPUs an exchange waits for all earlier work.
        asks = self.workers == 1 or self.step % STEPS_BETWEEN_FLAGS == 0
        return asks and bool(said_by_first(late or is_asked(self.job.scratch)))

    @property
    def is_over(self) -> bool:
        """Whether the last epoch has ended, or the training ends before that."""
        chosen = self.hyperparameters
        return (
            len(self.history) == chosen.epochs
            or stops_early(self.history, chosen.best, chosen.early_stopping)
            or self.job.is_pruned(self.history)
        )

    @property
    def _backbone_is_frozen(self) -> bool:
        return len(self.history) < self.hyperparameters.freeze_epochs

    def _wrap(self) -> "torch.nn.Module":
        """What the training calls: the network; with several workers, inside DDP.

        DDP knows only the parameters that have gradients when it is made. The families leave out
        those that no gradient reaches; in a network of the user's, DDP looks for them.
        """
        import torch
        from ray.train.torch import prepare_model

        for each in self.unfrozen:
            each.requires_grad_(not self._backbone_is_frozen)
        module: torch.nn.Module = self.network
        if not self.is_sharded:
            looks = {"find_unused_parameters": self.job.family == "custom"}
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
        self.losses = [each["val_loss"] for each in self.history]
        seeds = self.batches.network_seeds(epoch)
        self.meter.go_on()
        self.module.train()
        if self._backbone_is_frozen:
            self.network.backbone.eval()
        began, first = monotonic(), self.step
        with closing(self.ingest.epoch(epoch, self.step - begin)) as batches:
            for images, labels in batches:
                self.generator.manual_seed(seeds[self.step - begin])
                norm = self._take_step(images, labels)
                if self.step % STEPS_BETWEEN_CHECKS == 0 or self.step == end:
                    self._check_finite(norm + sum_over_workers(self.loss_sum))
                if self.rank == 0:
                    self.meter.tick(self.step, self.loss_sum, self.history)
                if self.step < end and self._saves_now:
                    self._save()
                    self.is_interrupted = bool(said_by_first(is_asked(self.job.scratch)))
                    if self.is_interrupted:
                        return
        self.speed = (self.step - first) * self.batch / (monotonic() - began)
        self.meter.pause(float(self.loss_sum))

    def _take_step(self, images: "Tensor", labels: "Tensor") -> "Tensor":
        """Trains on a batch.

        Returns:
            The norm of its gradients.
        """
        self.optimizer.zero_grad()
        self.loss_sum += self._backward(images, labels)
        norm = clip_gradients(self.network, self.hyperparameters.clip_norm)
        self.lr = learning_rate(self.step, self.steps, self.hyperparameters, self.losses)
        set_learning_rate(self.optimizer, self.lr)
        self.optimizer.step()
        if self.average and (decay := self.hyperparameters.ema):
            update_average(self.average, self.network, decay, self.step)
        self.step += 1
        return norm

    def _backward(self, images: "Tensor", labels: "Tensor") -> "Tensor":
        """Adds up the gradients of a batch, a part of it at a time.

        Returns:
            The mean loss of the worker's part of the batch.
        """
        import torch

        total = torch.zeros((), device=images.device)
        for first in range(0, len(images), self.at_once):
            part = slice(first, first + self.at_once)
            x, targets = self.augmentation(images[part], labels[part], self.step, first)
            # Workers exchange their gradients once, with the last part.
            before_last = first + self.at_once < len(images)
            if self.is_sharded:
                sharding.exchange_gradients(self.network, not before_last)
            alone = getattr(self.module, "no_sync", nullcontext) if before_last else nullcontext
            with alone():
                with self.autocast:
                    logits, share = self.module(x), len(x) / len(images)
                    loss = mean_loss(self.loss_of, logits, targets) * share
                loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return total

    def end_epoch(self) -> None:
        """Evaluates the epoch's weights, keeps them if they are the best, and writes a checkpoint.

        Raises:
            ValueError: The training diverged.
        """
        network = self.average or self.network
        share_statistics(network)
        with self.autocast:
            val_loss, val_accuracy = validate(
                network, self.val, self.batches, self.at_once, self.device
            )
        self._check_finite(val_loss)
        own = self.network.state_dict(), self.optimizer.state_dict()
        if not self.is_sharded and not checkpoint.is_finite(own):
            raise self._diverged()  # on all workers: their weights are equal
        loss = float(sum_over_workers(self.loss_sum)) / self.workers / self.batches.per_epoch
        this: Epoch = {
            "epoch": len(self.history) + 1,
            "train_loss": loss,
            "val_loss": float(val_loss),
            "val_accuracy": val_accuracy,
            "lr": self.lr,
            "images_per_second": self.speed,
            "seconds": monotonic() - self.ended,  # includes the checkpoint of the epoch before
        }
        self.ended = monotonic()
        self.history.append(dict(this))
        best = self.best["epoch"] if self.best else None
        if is_better(this, best, self.hyperparameters.best):
            self.best = {"epoch": dict(this), "weights": self._weights_of(network)}
        self.loss_sum.zero_()
        worth = min(checkpoint.WORTH_SECONDS, self.job.checkpoint_seconds)
        due = monotonic() - self.saved > worth or self.is_over
        if said_by_first(due):
            self._save()

    def _weights_of(self, network: "torch.nn.Module") -> dict[str, "Tensor"]:
        """A copy of a network's state on the CPU; of a divided one, for the first worker."""
        divided = self.is_sharded
        state = sharding.whole_weights(self.network) if divided else network.state_dict()
        # On a CPU, what is not divided (the statistics of a batch norm) is the network's own.
        return {name: value.cpu().clone() for name, value in state.items()}

    def finish(self) -> dict[str, Any]:
        """Saves the network with the best epoch's weights, as `models.save` does.

        Returns:
            As `work` does.
        """
        assert self.best is not None
        if self.rank == 0:
            self.meter.write(self.step, self.history[-1]["train_loss"], self.history)
            network = self._whole_network()
            network.load_state_dict(self.best["weights"])
            if self.hyperparameters.lora:
                merge_adapters(network)
            self.job.save(network, self.data)
        return {
            "history": self.history,
            "best": self.best["epoch"],
            "parameters": sum(each.numel() for each in self.network.parameters()),
            "numerics": self.numerics,
        }

    def _whole_network(self) -> "Network":
        """The network; of a divided one, another that is whole."""
        if not self.is_sharded:
            return self.network
        return self.job.build(self.data)

    def _check_finite(self, value: "Tensor") -> None:
        """Stops a training that diverged; on all workers, because the value is equal on each."""
        if not value.isfinite():
            raise self._diverged()

    def _diverged(self) -> ValueError:
        return diverged(len(self.history) + 1, self.hyperparameters)
