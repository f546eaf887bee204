"""Runs a training function of the user's, as `TorchTrainer` does, and keeps what it reports.

`docs/port-your-loop.md` says what the function gets and what it has to do.
"""

import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from models import custom, user_code
from retrain.atomic import write_json
from retrain.errors import PrunedError
from retrain.runs.console import Progress
from retrain.workload import PASSED_ON, Train, Workload
from tasks.data.shards import Prepared, open_prepared
from tasks.train.device import known_to_accelerate, set_threads
from tasks.train.job import TrainingJob
from tasks.train.progress import FILE
from tasks.train.reports import ReportError, Reports

KEY = "train.function"
NAME = "the loop of train.function"
METRICS = None  # any that the function reports
NO_METRICS = {"checkpoint", "epoch", "seconds"}  # of an entry of the history
STRATEGIES = ("ddp",)  # or what the function does itself
INGESTS = ("auto", "dataloader")
USED = (*PASSED_ON, "function", "arguments", "best", "loop")

# Of files that may hold weights.
SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
# What is in the names of a network that was saved inside DDP, `torch.compile` or a wrapper for
# activation checkpointing.
WRAPPED = re.compile(r"^((module|_orig_mod)\.)+|\b(_orig_mod|_checkpoint_wrapped_module)\.")


def faults(workload: Workload) -> Iterator[str]:
    """A sentence for each setting that does not go with a function."""
    if workload.model.family != "custom":
        yield (
            "model.family: with train.function it is custom, and model.factory names the function "
            "that makes the network."
        )


def slow_faults(hyperparameters: Train, root: Path) -> Iterator[str]:
    """Why the function cannot be imported."""
    assert hyperparameters.function is not None
    try:
        user_code.find(hyperparameters.function, KEY, root)
    except ValueError as error:
        yield str(error)


def work(config: Mapping[str, TrainingJob]) -> dict[str, Any]:
    """Runs the function, as one of the workers; the first one saves the network of the best report.

    Args:
        config: The job, under `job`.

    Returns:
        Of the first worker: `history` (what was reported), `best` (the best report), `parameters`
        (how many) and `numerics` (how it was calculated).

    Raises:
        PrunedError: The training is a trial of a search, which ends it.
        ValueError: The function failed, or did not do what it has to.
    """
    import torch
    from ray.train import get_context
    from ray.train.torch import get_device

    job = config["job"]
    data = open_prepared(job.images)
    threads = set_threads(get_device(), job.threads)
    torch.manual_seed(job.hyperparameters.seed)
    with chdir(job.root), known_to_accelerate(threads is not None):
        with _kept(job, len(data.split("train"))) as reports:
            _call(job, data)
        if get_context().get_world_rank():
            return {}
        job.check_pruned(reports.history)  # of a function that was over, or went on
        best = _best(job, reports)
        _show(job, len(data.split("train")), reports.history)
        parameters = _save(job, data, reports.folder(best))
    return {
        "history": reports.history,
        "best": best,
        "parameters": parameters,
        "numerics": {
            "told_precision": job.hyperparameters.precision,
            "threads": threads,
        },
    }


def _call(job: TrainingJob, data: Prepared) -> None:
    """Calls the function.

    Raises:
        ValueError: It failed in a way that another try would not mend.
    """
    named = job.hyperparameters.function
    assert named is not None
    function = user_code.find(named, KEY, job.root)
    try:
        function(_config(job, data))
    except (ReportError, PrunedError):
        raise
    except (OSError, RuntimeError, MemoryError) as error:
        if not isinstance(error, FileNotFoundError):
            raise  # of the machine or of another worker, perhaps: Ray Train tries again
        raise ValueError(f"{KEY}: {named} failed: {user_code.said_by(error)}.") from error
    except Exception as error:
        raise ValueError(f"{KEY}: {named} failed: {user_code.said_by(error)}.") from error


def _config(job: TrainingJob, data: Prepared) -> dict[str, Any]:
    """The dictionary that the function gets."""
    from models.network import in_stored_units, normalise
    from tasks.train.datasets import SplitDataset

    settings = custom.Settings.model_validate(job.settings)
    mean, std = map(in_stored_units, custom.normalisation(settings, data.shape[2]))
    pixels = partial(normalise, mean=mean, std=std)
    return (
        job.hyperparameters.model_dump(include=set(PASSED_ON))
        | {"classes": list(data.labels), "shape": data.shape}
        | {"files": custom.files(settings, job.root)}
        | {
            split: SplitDataset(job.images, split, job.memory_gb, pixels)
            for split in ("train", "val")
        }
        | job.hyperparameters.arguments
    )


@contextmanager
def _kept(job: TrainingJob, images: int) -> Iterator[Reports]:
    """Keeps what is reported to Ray Train, and gives it back when the function resumes.

    Args:
        job: The training.
        images: Of the training split.
    """
    from ray.train import Checkpoint
    from ray.train.v2._internal.execution.train_fn_utils import get_train_fn_utils

    # Ray Train says that this object may be patched. All of `ray.train` calls it, however a
    # function imports it.
    train = get_train_fn_utils()
    report = train.report
    show = partial(_show, job, images)
    rank = train.get_context().get_world_rank()
    best, kept = job.hyperparameters.best, job.keep_checkpoints
    reports = Reports(job.scratch, rank, best, kept, partial(_wait, train.barrier), show)

    def keep(metrics: Mapping[str, Any], checkpoint: Any = None, **options: Any) -> None:
        reports.add(metrics, checkpoint)
        if rank == 0:  # whose metrics count; the others are ended with it
            job.check_pruned(reports.history)
        if checkpoint and options.get("delete_local_checkpoint_after_upload"):
            shutil.rmtree(checkpoint.path)
        report(metrics)

    def resume() -> Any:
        folder = reports.last()
        return Checkpoint.from_directory(folder) if folder else None

    train.report, train.get_checkpoint = keep, resume
    try:
        yield reports
    finally:
        del train.report, train.get_checkpoint


def _wait(barrier: Callable[[], None]) -> None:
    """Waits for all workers, as long as `scale.timeout_seconds` says.

    Raises:
        ReportError: They do not come.
    """
    from ray.train.v2._internal.exceptions import CollectiveTimeoutError

    try:
        barrier()
    except CollectiveTimeoutError as error:
        raise ReportError(
            f"{KEY}: a worker waited in ray.train.report longer than scale.timeout_seconds for the "
            "others. All workers have to report; one of them does not, hangs or is far slower."
        ) from error


def _show(job: TrainingJob, images: int, history: list[dict[str, Any]]) -> None:
    """Writes the progress: a report is taken for an epoch."""
    epochs, done = job.hyperparameters.epochs, len(history)
    took = history[-1]["seconds"]
    progress = Progress(
        epoch=min(done, epochs),  # whose loss it is
        epochs=epochs,
        fraction=min(done / epochs, 1.0),
        images_per_second=images / took,
        loss=history[-1].get("train_loss", history[-1].get("loss")),
        seconds_left=max(epochs - done, 0) * took,
    )
    document = {"progress": asdict(progress), "history": history, "resumed_at": None}
    write_json(job.scratch / FILE, document)


def _best(job: TrainingJob, reports: Reports) -> dict[str, Any]:
    """The best report.

    Raises:
        ValueError: There is none that could be.
    """
    named, metric = job.hyperparameters.function, job.hyperparameters.best.metric
    if not reports.history:
        raise ValueError(f"{KEY}: {named} never called ray.train.report.")
    reported = sorted(set().union(*reports.history) - NO_METRICS)
    if metric not in reported:
        raise ValueError(
            f"{KEY}: {named} never reported {metric}, by which train.best.metric finds the best "
            f"report. It reported {', '.join(reported) or 'no numbers'}."
        )
    if best := reports.best():
        return best
    raise ValueError(
        f"{KEY}: {named} reported no checkpoint with {metric}: pass one to ray.train.report, with "
        "the network's state_dict in a file."
    )


def _save(job: TrainingJob, data: Prepared, checkpoint: Path) -> int:
    """Saves the network with the weights of a checkpoint, as `models.save` does.

    Returns:
        The number of its parameters.

    Raises:
        ValueError: No file of the checkpoint has the weights of the network.
    """
    settings = custom.Settings.model_validate(job.settings)
    network = custom.build(settings, data.shape, len(data.labels), loaded=True)
    own = {_plain(name): value for name, value in network.classifier.state_dict().items()}
    for path in sorted(path for path in checkpoint.rglob("*") if path.suffix in SUFFIXES):
        for weights in _state_dicts(path):
            if _fit(weights, own):
                for name, value in weights.items():
                    own[name].copy_(value)
                job.save(network, data)
                return sum(each.numel() for each in network.parameters())
    factory = job.settings["factory"]
    raise ValueError(
        f"{KEY}: no file of the best report's checkpoint has the state_dict of the network that "
        f"model.factory makes ({factory}). Files are read that end in {', '.join(SUFFIXES)}."
    )


def _plain(name: str) -> str:
    return WRAPPED.sub("", name)


def _fit(weights: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    """Whether weights are all of a network's; of tied ones, one is enough."""
    shapes = {name: value.shape for name, value in own.items()}
    given = {own[name].data_ptr() for name in weights.keys() & own.keys()}
    return all(value.shape == shapes.get(name) for name, value in weights.items()) and all(
        name in weights or value.data_ptr() in given for name, value in own.items()
    )


def _state_dicts(path: Path) -> Iterator[dict[str, Any]]:
    """The mappings of names to tensors in a file: all of it, or one that it holds."""
    import torch
    from safetensors.torch import load_file

    if path.suffix == ".safetensors":
        content = load_file(path)
    else:
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
        except Exception:  # a file of another kind, or with objects that are not read
            return
    held = [content, *content.values()] if isinstance(content, Mapping) else []
    for each in held:
        if isinstance(each, Mapping) and all(torch.is_tensor(value) for value in each.values()):
            yield {_plain(str(name)): value for name, value in each.items()}
