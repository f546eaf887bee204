"""Runs a training function of the user's, as `TorchTrainer` does, and takes its best report.

`docs/port-your-loop.md` says what the function gets and what it has to do.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import chdir
from functools import partial
from typing import Any

import torch
from ray.train.torch import get_device

from models import user_code
from models.network import Network, normalise
from retrain.errors import PrunedError
from retrain.workload import PASSED_ON
from tasks.data.shards import Prepared, open_prepared
from tasks.train import calibration
from tasks.train.datasets import SplitDataset
from tasks.train.device import set_threads
from tasks.train.job import TrainingJob
from tasks.train.reported_weights import network_of
from tasks.train.reports import Reports, keep_in_process

KEY = "train.function"
NO_METRICS = {"checkpoint", "epoch", "seconds"}  # of an entry of the history

# With it, Accelerate and so the Trainer of transformers find the workers of a training on CPUs.
# Without it, each worker takes itself for the only one, and they train as many networks.
ACCELERATE_ON_CPU = "ACCELERATE_USE_CPU"
# What Ray says when a worker waited too long in `ray.train.report`.
NOT_ALL_REPORTED = "collective operation timed out"
# The accuracy that was reported, and how far from it the network's own may be.
ACCURACY, FAR = "val_accuracy", 0.1


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
    if not torch.distributed.is_initialized():  # Ray Train keeps nothing of what is reported
        reports = Reports(job)
        job.check_pruned(reports.history)
        keep_in_process(job, reports)
    torch.manual_seed(job.hyperparameters.seed)
    with chdir(job.root):
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
    return (
        job.hyperparameters.model_dump(include=set(PASSED_ON))
        | {"model": network.classifier, "classes": list(data.labels), "shape": data.shape}
        | {split: SplitDataset(job.images, split, pixels) for split in ("train", "val")}
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
    data, network = open_prepared(job.images), network_of(job, reports.best_checkpoint)
    _check_accuracy(job, network, best)
    calibration.save(job, network, data)
    return {
        "history": reports.history,
        "best": best,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
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


def _check_accuracy(job: TrainingJob, network: Network, best: Mapping[str, Any]) -> None:
    """Compares the accuracy that a function has reported with that of its network as it is served.

    Raises:
        ValueError: They are far from each other.
    """
    if ACCURACY not in best:
        return
    accuracy = calibration.accuracy(job, network, SplitDataset(job.images, "val"))
    if abs(accuracy - best[ACCURACY]) > FAR:
        raise ValueError(
            f"{KEY}: {job.hyperparameters.function} reported {ACCURACY} {best[ACCURACY]:.3f}, and "
            f"the network with the weights of that report has {accuracy:.3f} of the validation "
            "images right. It has to report these weights, the share of all images, from 0 to 1, "
            "and to take the images as the config has them, which is how they are served."
        )
