"""Runs a training function of the user's, as `TorchTrainer` does, and takes its best report.

`docs/port-your-loop.md` says what the function gets and what it has to do.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from ray.train import Checkpoint
from ray.train.torch import get_device
from safetensors.torch import load_file

from models import user_code
from models.network import normalise
from retrain.errors import PrunedError
from retrain.workload import PASSED_ON
from tasks.data.shards import Prepared, open_prepared
from tasks.train import calibration
from tasks.train.datasets import SplitDataset
from tasks.train.device import set_threads
from tasks.train.job import TrainingJob
from tasks.train.reports import Reports, reporting_in_process

KEY = "train.function"
NO_METRICS = {"checkpoint", "epoch", "seconds"}  # of an entry of the history

# With it, Accelerate and so the Trainer of transformers find the workers of a training on CPUs.
# Without it, each worker takes itself for the only one, and they train as many networks.
ACCELERATE_ON_CPU = "ACCELERATE_USE_CPU"
# What Ray says when a worker waited too long in `ray.train.report`.
NOT_ALL_REPORTED = "collective operation timed out"
# Of files that may hold weights.
SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
# What is in the names of a network that was saved inside DDP, `torch.compile` or a wrapper for
# activation checkpointing.
WRAPPED = re.compile(r"^((module|_orig_mod)\.)+|\b(_orig_mod|_checkpoint_wrapped_module)\.")


def callbacks(job: TrainingJob) -> list[Reports]:
    """The callbacks for Ray Train's controller: they keep what is reported."""
    return [Reports(job)]


def work(job: TrainingJob) -> dict[str, Any]:
    """Runs the function, as one of the workers.

    Returns:
        The `threads` of this worker.

    Raises:
        PrunedError: The training is a trial of a search, which ends it.
        ValueError: The function failed, and another try would not help.
    """
    named = job.hyperparameters.function
    assert named is not None
    data = open_prepared(job.images)
    threads = set_threads(get_device(), job.scale.threads)
    if get_device().type == "cpu":
        os.environ[ACCELERATE_ON_CPU] = "true"
    function = user_code.find(named, KEY, job.root)
    keeping: Any = nullcontext()
    if not torch.distributed.is_initialized():  # Ray Train keeps nothing of what is reported
        reports = Reports(job)
        job.check_pruned(reports.history)
        keeping = reporting_in_process(job, reports, sys.modules[function.__module__])
    torch.manual_seed(job.hyperparameters.seed)
    with chdir(job.root), keeping:
        _call(function, _config(job, data), named)
    return {"threads": threads}


def _call(function: Callable[..., Any], config: dict[str, Any], named: str) -> None:
    """Calls the function.

    Raises:
        ValueError: The function failed, and another try would not help.
    """
    try:
        function(config)
    except (PrunedError, MemoryError):
        raise
    except Exception as error:
        if NOT_ALL_REPORTED in str(error):
            raise ValueError(
                f"{KEY}: a worker waited in ray.train.report longer than scale.timeout_seconds for "
                "the others. All workers have to report; one of them does not, hangs or is far "
                "slower."
            ) from error
        if isinstance(error, OSError | RuntimeError) and not isinstance(error, FileNotFoundError):
            raise  # of the machine or of another worker, perhaps: Ray Train tries again
        if str(error).startswith(KEY):
            raise
        raise ValueError(f"{KEY}: {named} failed: {user_code.said_by(error)}.") from error


def _config(job: TrainingJob, data: Prepared) -> dict[str, Any]:
    """The dictionary that the function gets."""
    network = job.build(data)
    pixels = partial(normalise, mean=network.mean, std=network.std)
    memory = job.scale.memory_gb
    return (
        job.hyperparameters.model_dump(include=set(PASSED_ON))
        | {"model": network.classifier, "classes": list(data.labels), "shape": data.shape}
        | {split: SplitDataset(job.images, split, memory, pixels) for split in ("train", "val")}
        | job.hyperparameters.arguments
    )


def finish(job: TrainingJob, result: Mapping[str, Any]) -> dict[str, Any]:
    """Saves the network of the best report, after the function has ended on all workers.

    Args:
        job: The training.
        result: What the function `work` returned on the first worker.

    Returns:
        `history` (what was reported), `best` (the best report), `parameters` (how many) and
        `numerics` (how it was calculated).

    Raises:
        PrunedError: The training is a trial of a search, which ends it.
        ValueError: The function did not do what it has to.
    """
    [reports] = callbacks(job)
    job.check_pruned(reports.history)  # of a function that was over
    best = _best(job, reports)
    reports.show_progress()
    return {
        "history": reports.history,
        "best": best,
        "parameters": _save(job, reports.best_checkpoint),
        "numerics": {"told_precision": job.hyperparameters.precision, **result},
    }


def _best(job: TrainingJob, reports: Reports) -> dict[str, Any]:
    """The best report.

    Raises:
        ValueError: There is none that could be.
    """
    if reports.best:
        return reports.best
    reported = sorted(set().union(*reports.history) - NO_METRICS)
    checkpoints = sum(entry["checkpoint"] for entry in reports.history)
    raise ValueError(
        f"{KEY}: {job.hyperparameters.function} never called ray.train.report with "
        f"{job.hyperparameters.best.metric}, by which train.best.metric finds the best report, and "
        f"a checkpoint that has the network's state_dict in a file. It reported "
        f"{', '.join(reported) or 'no numbers'}, and {checkpoints} checkpoints."
    )


def _save(job: TrainingJob, checkpoint: Checkpoint) -> int:
    """Saves the network with the weights of a checkpoint, as `models.save` does.

    Returns:
        The number of its parameters.

    Raises:
        ValueError: No file of the checkpoint has the weights of the network.
    """
    data = open_prepared(job.images)
    network = job.build(data)
    state = {_plain(name): value for name, value in network.classifier.state_dict().items()}
    with checkpoint.as_directory() as folder:
        for path in sorted(path for path in Path(folder).rglob("*") if path.suffix in SUFFIXES):
            for weights in _state_dicts(path):
                if _fit(weights, state):
                    for name, value in weights.items():
                        state[name].copy_(value)
                    calibration.save(job, network, data)
                    return sum(parameter.numel() for parameter in network.parameters())
    raise ValueError(
        f"{KEY}: no file of the best report's checkpoint has the state_dict of the network that "
        f"the section model describes. Files are read that end in {', '.join(SUFFIXES)}."
    )


def _plain(name: str) -> str:
    return WRAPPED.sub("", name)


def _fit(weights: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
    """Whether weights are all of a network's; of tied ones, one is enough."""
    shapes = {name: value.shape for name, value in state.items()}
    pointers = {state[name].data_ptr() for name in weights.keys() & state.keys()}
    return all(value.shape == shapes.get(name) for name, value in weights.items()) and all(
        name in weights or value.data_ptr() in pointers for name, value in state.items()
    )


def _state_dicts(path: Path) -> Iterator[dict[str, Any]]:
    """The mappings of names to tensors in a file: all of it, or one that it holds."""
    if path.suffix == ".safetensors":
        content = load_file(path)
    else:
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
        except Exception:  # a file of another kind, or with objects that are not read
            return
    candidates = [content, *content.values()] if isinstance(content, Mapping) else []
    for state in candidates:
        if isinstance(state, Mapping) and all(torch.is_tensor(value) for value in state.values()):
            yield {_plain(str(name)): value for name, value in state.items()}
