"""Runs a training function of the user's, as `TorchTrainer` does, and keeps what it reports.

`docs/port-your-loop.md` says what the function gets and what it has to do. With workers, Ray Train
copies each reported checkpoint, and calls `Reports` in its controller, which is on the machine of
the step; without workers it keeps nothing. Either way it is kept by the session of the training.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir
from functools import partial
from math import isfinite
from numbers import Real
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from ray.train import Checkpoint, UserCallback
from ray.train.v2._internal.execution.train_fn_utils import get_train_fn_utils
from safetensors.torch import load_file

from models import user_code
from models.network import Network, normalise
from retrain.workload import PASSED_ON
from tasks.data.shards import Prepared, open_prepared
from tasks.train.data_loading import SplitDataset
from tasks.train.distributed import set_threads
from tasks.train.job import FUNCTION, TrainingJob
from tasks.train.recipe import logits_of
from tasks.train.session import UNREPORTED, Session

# With it, Accelerate and so the Trainer of transformers find the workers of a training on CPUs.
# Without it, each worker takes itself for the only one, and they train as many networks.
ACCELERATE_ON_CPU = "ACCELERATE_USE_CPU"
# What Ray says when a worker waited too long in `ray.train.report`.
NOT_ALL_REPORTED = "collective operation timed out"
# The accuracy that was reported, and how far from it the network's own may be.
ACCURACY, FAR = "val_accuracy", 0.1

# Of files that may hold weights.
SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
NAMED = "weights"  # of the checkpoint's metadata: the file that counts, if several fit
# What is in the names of a network that was saved inside DDP, `torch.compile` or a wrapper for
# activation checkpointing.
WRAPPED = re.compile(r"^((module|_orig_mod)\.)+|\b(_orig_mod|_checkpoint_wrapped_module)\.")


class Reports(UserCallback):  # type: ignore[misc]  # Ray is not typed
    """Keeps what a function reports."""

    def __init__(self, job: TrainingJob) -> None:
        """Reads the reports of an interrupted training."""
        self.session, self._last = Session(job), monotonic()

    def after_report(
        self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Checkpoint | None
    ) -> None:
        """Keeps a report of all workers; Ray Train's controller calls it.

        Raises:
            ValueError: A metric is not a finite number; or the first checkpoint has no weights.
        """
        session, number = self.session, len(self.session.reports) + 1
        numbers = {name: float(value) for name, value in metrics[0].items() if _is_number(value)}
        for name, value in numbers.items():
            if not isfinite(value):
                raise ValueError(
                    f"train.function reported {name} = {value} in its report {number}: the "
                    "training diverged. Lower its learning rate."
                )
        if checkpoint and not session.checkpoints:
            network_of(session.job, checkpoint)  # else it would be found out after the training
        seconds, self._last = monotonic() - self._last, monotonic()
        folder = checkpoint and self._copied(checkpoint)
        session.keep({"seconds": seconds, **numbers, "epoch": number}, folder)

    def _copied(self, checkpoint: Checkpoint) -> Path:
        copy = self.session.job.scratch / UNREPORTED
        shutil.rmtree(copy, ignore_errors=True)
        with checkpoint.as_directory() as folder:  # it may be in an object store
            shutil.copytree(folder, copy)
        return copy


def _is_number(value: Any) -> bool:
    """Whether a metric is a number, of Python, NumPy or PyTorch."""
    if isinstance(value, Real):
        return not isinstance(value, bool)
    return getattr(value, "ndim", None) == 0 and hasattr(value, "item")


def newest_checkpoint(session: Session) -> Checkpoint | None:
    """The last one that was reported; None if there is none."""
    return Checkpoint(str(session.folder(session.checkpoints))) if session.checkpoints else None


def keep_reports(job: TrainingJob) -> None:
    """Has what a function reports kept, and given back to it when it goes on.

    Whatever module asks `ray.train` for `report` and `get_checkpoint`, Ray Train passes it on to
    one object, which is made for each training. With workers, that knows only what they reported
    since they were started.
    """
    ray_train, reports = get_train_fn_utils(), Reports(job)
    if job.scale.workers:
        since_start, before = ray_train.get_checkpoint, newest_checkpoint(reports.session)
        ray_train.get_checkpoint = lambda: since_start() or before
        return

    def report(
        metrics: Mapping[str, Any], checkpoint: Checkpoint | None = None, **options: Any
    ) -> None:
        reports.after_report(None, [dict(metrics)], checkpoint)
        if checkpoint and options.get("delete_local_checkpoint_after_upload"):
            shutil.rmtree(checkpoint.path)

    ray_train.report = report
    ray_train.get_checkpoint = lambda: newest_checkpoint(reports.session)


def run(job: TrainingJob, device: torch.device) -> dict[str, Any]:
    """Runs the function, as one of the workers.

    Returns:
        The `threads` of this worker, and the precision that the function was told.

    Raises:
        ValueError: The function failed, and another try would not help.
    """
    named = job.hyperparameters.function
    assert named is not None
    data = open_prepared(job.images)
    threads = set_threads(device, job.scale.threads)
    if device.type == "cpu":
        os.environ[ACCELERATE_ON_CPU] = "true"
    function = user_code.find(named, FUNCTION, job.root)
    keep_reports(job)
    torch.manual_seed(job.hyperparameters.seed)
    with chdir(job.root):
        _call(function, _config(job, data), named)
    return {"told_precision": job.hyperparameters.precision, "threads": threads}


def _call(function: Callable[..., Any], config: dict[str, Any], named: str) -> None:
    """Calls the function.

    Raises:
        ValueError: The function failed, and another try would not help.
    """
    try:
        function(config)
    except MemoryError:
        raise
    except Exception as error:
        if NOT_ALL_REPORTED in str(error):
            raise ValueError(
                f"{FUNCTION}: a worker waited in ray.train.report longer than "
                "scale.timeout_seconds for the others. All workers have to report; one of them "
                "does not, hangs or is far slower."
            ) from error
        if isinstance(error, OSError | RuntimeError) and not isinstance(error, FileNotFoundError):
            raise  # of the machine or of another worker, perhaps: Ray Train tries again
        if str(error).startswith(FUNCTION):
            raise
        raise ValueError(
            f"{FUNCTION}: {named} failed: {user_code.describe_error(error)}."
        ) from error


def _config(job: TrainingJob, data: Prepared) -> dict[str, Any]:
    """The dictionary that the function gets."""
    network = job.build(data)
    pixels = partial(normalise, mean=network.mean, std=network.std)
    return (
        job.hyperparameters.model_dump(include=set(PASSED_ON))
        | {"model": network.classifier, "classes": list(data.labels), "shape": data.shape}
        | {split: SplitDataset(job.images, split, pixels) for split in ("train", "val")}
        | job.hyperparameters.arguments
    )


def best_network(session: Session) -> Network:
    """The network of the best report.

    Raises:
        ValueError: The function reported none; or its accuracy is not the one that was reported.
    """
    job = session.job
    named, metric = job.hyperparameters.function, job.hyperparameters.best.metric
    if session.best is None:
        reported = sorted(set().union(*session.history) - {"epoch", "seconds"})
        raise ValueError(
            f"{FUNCTION}: {named} never called ray.train.report with {metric}, by which "
            "train.best.metric finds the best report, and a checkpoint that has the network's "
            f"state_dict in a file. It reported {', '.join(reported) or 'no numbers'}, and "
            f"{session.checkpoints} checkpoints."
        )
    assert session.best.checkpoint
    network = network_of(job, Checkpoint(str(session.folder(session.best.checkpoint))))
    network.to(session.device)
    if ACCURACY in session.best.metrics:
        _check_accuracy(job, network, session.best.metrics[ACCURACY])
    return network


def _check_accuracy(job: TrainingJob, network: Network, reported: float) -> None:
    """Compares the accuracy that a function has reported with that of its network as it is served.

    Raises:
        ValueError: They are far from each other.
    """
    split, precision = SplitDataset(job.images, "val"), job.hyperparameters.precision
    logits = logits_of(network, split, job.micro_batch, precision)
    accuracy = float((logits.argmax(axis=1) == split.labels).mean())
    if abs(accuracy - reported) > FAR:
        raise ValueError(
            f"{FUNCTION}: {job.hyperparameters.function} reported {ACCURACY} {reported:.3f}, and "
            f"the network with the weights of that report has {accuracy:.3f} of the validation "
            "images right. It has to report these weights, the share of all images, from 0 to 1, "
            "and to take the images as the config has them, which is how they are served."
        )


def network_of(job: TrainingJob, checkpoint: Checkpoint) -> Network:
    """The network with the weights of a checkpoint.

    Args:
        job: The training.
        checkpoint: What was reported: the `state_dict` of the network that the section `model`
            describes, in one file, whatever its name is; under one of the names in that file, if it
            holds more. If several files hold weights of the network, its metadata
            names the one that counts: `checkpoint.set_metadata({"weights": "model.pt"})`.

    Raises:
        ValueError: No file has the weights, or several have others.
    """
    with torch.random.fork_rng(devices=[]):  # the function in this process goes on with its numbers
        network = job.build(open_prepared(job.images))
    state = {_plain(name): value for name, value in network.classifier.state_dict().items()}
    named = checkpoint.get_metadata().get(NAMED)
    with checkpoint.as_directory() as folder:
        files = sorted(path for path in Path(folder).rglob("*") if path.suffix in SUFFIXES)
        found = [
            (f"{path.relative_to(folder)}{place}", weights)
            for path in files
            for place, weights in _state_dicts(path)
            if _fit(weights, state) and named in (None, path.relative_to(folder).as_posix())
        ]
    if not found:
        raise ValueError(
            "train.function: no file of the reported checkpoint has the state_dict of the network "
            f"that the section model describes. Files are read that end in {', '.join(SUFFIXES)}."
        )
    (first, weights), *others = found
    for other, different in others:
        are_equal = weights.keys() == different.keys() and all(
            torch.equal(value, different[name]) for name, value in weights.items()
        )
        if not are_equal:
            raise ValueError(
                f"train.function: the reported checkpoint has two networks, in {first} and "
                f"{other}: which is the model? Report one, or name its file with "
                f'checkpoint.set_metadata({{"{NAMED}": "{files[0].name}"}}).'
            )
    for name, value in weights.items():
        state[name].copy_(value)
    return network


def _plain(name: str) -> str:
    return WRAPPED.sub("", name)


def _fit(weights: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
    """Whether weights are all of a network's; of tied ones, one is enough."""
    shapes = {name: value.shape for name, value in state.items()}
    pointers = {state[name].data_ptr() for name in weights.keys() & state.keys()}
    return all(value.shape == shapes.get(name) for name, value in weights.items()) and all(
        name in weights or value.data_ptr() in pointers for name, value in state.items()
    )


def _state_dicts(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The mappings of names to tensors in a file: all of it, or those that it holds, by name."""
    if path.suffix == ".safetensors":
        content = load_file(path)
    else:
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
        except Exception:  # a file of another kind, or with objects that are not read
            return
    if not isinstance(content, Mapping):
        return
    for name, state in [("", content), *((f"[{key!r}]", each) for key, each in content.items())]:
        if isinstance(state, Mapping) and all(torch.is_tensor(value) for value in state.values()):
            yield name, {_plain(str(key)): value for key, value in state.items()}
