"""Trains the network, and tracks it in MLflow.

- `job.py` has the arguments of a training; it finds faults before a run, and the best epoch
- `train.py` is the project's own training, from the data to the weights
- `recipe.py`, `augmentation.py` and `data_loading.py` have what it consists of; `stream.py` brings
  images that are not prepared, `distributed.py` puts the network on a device, with others beside it
- `session.py` keeps checkpoints and what is reported, and writes how far it is
- `launch.py` has Ray Train run it, here or on workers; `user_function.py` runs one of the user's
"""

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any

from rich.markup import escape

import models
from models import user_code
from retrain.code import libraries_of
from retrain.file_io import write_json
from retrain.registry import packages, tracking
from retrain.runs import console
from retrain.servers import ray_cluster
from retrain.step import Chosen, Facts, Input, Workspace, step
from retrain.store import Artifact
from retrain.workload import Model, Scale, Train, Workload, flatten
from tasks.data.shards import prepared_by
from tasks.train.job import (
    FIRST_BATCH,
    PROGRESS,
    STREAM,
    Epoch,
    TrainingJob,
    check,
    try_network,
    try_settings,
    used_by,
)

if TYPE_CHECKING:
    from tasks.data.champion import RegisteredVersion

logger = logging.getLogger(__name__)

MODEL = "model"
TRACKED = "mlflow.json"  # the training's run in MLflow
VALIDATION = ("val_accuracy", "val_loss")  # metrics of the best epoch that are facts
# The settings of the section that change the network.
SCALE = ("workers", "strategy", "threads")

TICK_SECONDS = 0.25
# MLflow logging is rare: on a small machine it takes time from the training.
LOG_SECONDS = 5.0
LINE_SECONDS = 2.0  # between the lines of two epochs
LONG_SECONDS = 60.0  # after which a line is due in a log even if no epoch has ended
# Of an epoch's entry; its number is shown otherwise.
NOT_SHOWN = ("epoch", "seconds", "val_macro_recall", "lr", "images_per_second")


def dependencies(workload: Workload, images: Artifact, pulled: Artifact, start: Input) -> Chosen:
    """The modules and libraries that the step uses because of the settings."""
    _, *users = models.modules_of(workload.model.family, workload.model.model_dump())
    if function := workload.train.function:
        users.append(user_code.module_of(function))
    modules = (f"models.{workload.model.family}", *users)
    libraries = libraries_of(users)
    if workload.train.augment.by_kornia:
        libraries += ("kornia",)
    if images.facts["storage"] == "source":
        modules += (STREAM,)
        libraries += ("pillow", "pyarrow")
    return Chosen(modules, libraries)


def digest_of_input(source: Artifact | Input) -> str:
    """The digest of an input, without the test split of the images."""
    return source.facts["learnt"] if isinstance(source, Artifact) else source.digest


@step(
    inputs=lambda workload: (prepared_by(workload), "pull", "start"),
    reads=("model", "train", *(f"scale.{name}" for name in SCALE)),
    not_in_key=("pull",),
    digest_of_input=digest_of_input,
    libraries=("numpy", "safetensors", "torch", "transformers"),
    hours=7 * 24,
    chosen=dependencies,
    check=check,
    notices=try_settings,
)
def train(
    model: Model,
    hyperparameters: Train,
    scale: Scale,
    images: Artifact,
    pulled: Artifact,
    start: "RegisteredVersion | None",
    workspace: Workspace,
) -> Facts:
    """Trains a network; continues from the last checkpoint of an interrupted training.

    Writes `model/` (of the best epoch), `report/history.json` (a list with an entry for each
    epoch), `report/mlflow.json` and, of the project's own loop, `report/first_batch.npz`.

    Args:
        model: The settings of the network.
        hyperparameters: The settings of the training.
        scale: The settings of the workers.
        images: The output of `preprocess`, or of `embed`.
        pulled: The output of `pull`, for images that are not prepared.
        start: The version whose weights it starts from; None for new ones.
        workspace: The scratch folder in it holds the checkpoints.

    Returns:
        The facts that `_facts` collects.

    Raises:
        ValueError: The parameters do not go together or with the images, or training diverged.
        ConnectionError: MLflow cannot be reached.
        ray.train.TrainingFailedError: Ray Train has given the training up.
    """
    job = TrainingJob(
        model=model,
        hyperparameters=hyperparameters,
        scale=scale,
        images=images.folder,
        pulled=pulled.folder,
        start=start.package / packages.MODEL if start else None,
        root=workspace.project.root,
        scratch=workspace.scratch,
        output=workspace.folder / MODEL,
        streams=images.facts["storage"] == "source",
    )
    if (rows := images.facts["rows"]["train"]) < scale.workers:
        raise ValueError(
            f"There are {rows} training images for {scale.workers} workers: make scale.workers "
            "smaller."
        )
    for line in notices(job, start):
        console.say(line)
    if model.family == "custom":
        try_network(job)
    with _tracked(workspace, job, digest_of_input(images)) as run_id:
        log = partial(tracking.log_epochs, workspace.project, run_id)
        with console.progress("train") as update, follow_progress(job.scratch, update, log):
            if scale.workers:
                update(None, f"starts {scale.workers} workers")
            result = train_and_save(job)
        _write_report(workspace, run_id, result)
    return _facts(job, rows, start, result)


def notices(job: TrainingJob, start: "RegisteredVersion | None") -> Iterator[str]:
    """Says where a training starts, and how its batches and images differ from the settings."""
    if start:
        yield f"train starts from the weights of version {start.version.version}."
    configured = job.hyperparameters.batch_size
    if job.batch_size < configured:
        yield (
            f"train takes batches of {job.batch_size} images: {configured} cannot be divided among "
            f"{job.scale.workers} workers."
        )


def train_and_save(job: TrainingJob) -> dict[str, Any]:
    """Trains, from the last checkpoint if there is one, and saves the best network.

    Returns:
        `history` (one mapping for each epoch), `best` (the best of them), `parameters` (how many)
        and `numerics` (how they were calculated).
    """
    from tasks.train import distributed, train as own, user_function
    from tasks.train.launch import launch
    from tasks.train.session import Session

    device, is_own = distributed.default_device(), job.hyperparameters.function is None
    if job.scale.workers or job.streams:
        ray_cluster.connect()
        ray_cluster.check_store()
    if step := Session(job).step:
        console.say(f"train continues at step {step}, from its last checkpoint.")
    try:
        numerics = launch(job)
    except KeyboardInterrupt:
        if step := Session(job).step:
            console.say(f"train ended at step {step}. The same command goes on from there.")
        raise

    session = Session(job, device=device)
    distributed.set_threads(device, job.scale.threads)
    network = (own if is_own else user_function).best_network(session)
    own.save(job, network.to(device))
    session.show_progress()
    assert session.best
    return {
        "history": session.history,
        "best": session.best.metrics,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "numerics": numerics,
    }


def _write_report(workspace: Workspace, run_id: str, result: Mapping[str, Any]) -> None:
    """Writes what is shown of the training, here and in MLflow."""
    tracking.log_best(workspace.project, run_id, result["best"])
    write_json(workspace.report / "history.json", result["history"])
    write_json(workspace.report / TRACKED, {"run_id": run_id})
    if (first := workspace.scratch / FIRST_BATCH).exists():  # the project's own loop keeps it
        shutil.copy(first, workspace.report)
    tracking.log_artifacts(workspace.project, run_id, workspace.report, "train")


def _parameters(job: TrainingJob, workload: Workload | None) -> dict[str, Any]:
    """The parameters that are recorded in MLflow."""
    followed = job.hyperparameters.model_dump(include=used_by(job.hyperparameters))
    images = workload.images.model_dump() if workload else {}
    named = flatten({"images": images, "model": job.model.model_dump(), "train": followed})
    return named | {f"scale.{name}": getattr(job.scale, name) for name in SCALE}


def _facts(
    job: TrainingJob, rows: int, start: "RegisteredVersion | None", result: dict[str, Any]
) -> Facts:
    """The facts about a training on a number of images that is over.

    Returns:
        `weights` (SHA-256 of the weights' file), `parameters` (how many), `temperature`, `numerics`
        (`precision`, `attention`, whether `compiled`, and CPU `threads`), `batch_size` (over all
        workers, as it was), `best_epoch`, `start` (SHA-256 of the weights it started from, if not
        new), and the metric by which it is the best, with `val_accuracy` and `val_loss` where the
        loop has them.
    """
    history, best = result["history"], result["best"]
    workers = max(job.scale.workers, 1)
    metric, patience = job.hyperparameters.best.metric, job.hyperparameters.early_stopping
    if patience and len(history) < job.hyperparameters.epochs:
        console.say(
            f"train ended early: {metric} was no better in the last {patience} of "
            f"{len(history)} evaluations."
        )
    elif best["epoch"] < len(history) // 2:
        console.say(
            f"train kept epoch {best['epoch']} of {len(history)}: by {metric}, those after it "
            "brought nothing. Fewer epochs, or a lower train.lr, may do better."
        )
    weights = (job.output / models.WEIGHTS).read_bytes()
    described = json.loads((job.output / models.MODEL).read_text(encoding="utf-8"))
    return {
        "weights": hashlib.sha256(weights).hexdigest(),
        "parameters": result["parameters"],
        "temperature": described["temperature"],
        "numerics": result["numerics"],
        "batch_size": min(job.batch_size, rows // workers * workers),
        "best_epoch": best["epoch"],
        **({"start": start.version.weights} if start else {}),
        **{name: best[name] for name in sorted({metric, *VALIDATION} & best.keys())},
    }


@contextmanager
def _tracked(workspace: Workspace, job: TrainingJob, images: str) -> Iterator[str]:
    """Starts or continues the training's run in MLflow, and ends it as it ended."""
    project, memory = workspace.project, workspace.scratch / TRACKED
    before = json.loads(memory.read_text())["run_id"] if memory.exists() else None
    run_id = tracking.start_run(
        project,
        workspace.workload,
        workspace.key,
        _parameters(job, workspace.configuration),
        images,
        continued=before,
    )
    write_json(memory, {"run_id": run_id})
    try:
        yield run_id
    except BaseException:
        try:
            tracking.end_run(project, run_id, "FAILED")
        except Exception as error:  # must not hide why the training failed
            logger.warning("MLflow could not record that the training failed: %s", error)
        raise
    tracking.end_run(project, run_id, "FINISHED")


@contextmanager
def follow_progress(
    scratch: Path, show: console.Show, log: Callable[[Sequence[Epoch]], None]
) -> Iterator[None]:
    """Shows and logs what a loop writes, while the training runs and once after it.

    Args:
        scratch: The scratch folder of the training.
        show: Called whenever the progress has changed, with the fraction that is done and a text.
        log: Called from time to time with all epochs so far; called again later if it fails.

    Raises:
        Exception: The error of the last call of `log`.
    """
    file, lines = scratch / PROGRESS, EpochLines()
    file.unlink(missing_ok=True)  # of a try that was interrupted

    def take(*, is_over: bool = False) -> Sequence[Epoch]:
        """Shows what is written; returns the epochs that are over."""
        progress = json.loads(file.read_text(encoding="utf-8"))
        if console.is_live():
            show(progress["fraction"], progress["text"])
        else:
            lines.show(progress, is_over=is_over)
        history: Sequence[Epoch] = progress["history"]
        return history

    def follow() -> None:
        written_at, logged, log_after = None, 0, monotonic() + LOG_SECONDS
        while not over.wait(TICK_SECONDS):
            before, written_at = written_at, file.stat().st_mtime_ns if file.exists() else None
            if written_at == before:
                continue
            history = take()
            if len(history) > logged and monotonic() > log_after:
                try:
                    log(history)
                    logged = len(history)
                except Exception as error:  # the server is unreachable; the training continues
                    logger.warning("The epochs so far could not be logged yet: %s", error)
                log_after = monotonic() + LOG_SECONDS

    over = Event()
    # In the context of the run, in which Prefect assigns the lines to it.
    thread = Thread(target=copy_context().run, args=(follow,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    log(take(is_over=True))


class EpochLines:
    """Shows a training where there is no live bar: a line for each epoch that is over.

    An epoch has none if it ends within two seconds of the line before it, except the last one; if
    the training ends within two seconds, there is none at all.
    """

    def __init__(self) -> None:
        """Starts the clock."""
        self._last, self._epochs = monotonic(), 0

    def show(self, progress: Mapping[str, Any], *, is_over: bool) -> None:
        """Shows the newest epoch, if it is due; between epochs, a line every minute."""
        history = progress["history"]
        seconds, is_new = monotonic() - self._last, len(history) > self._epochs
        if is_new and (seconds >= LINE_SECONDS or (is_over and self._epochs)):
            metrics = "  ".join(
                f"{name} {console.number(value)}"
                for name, value in history[-1].items()
                if name not in NOT_SHOWN
            )
            ended = f"epoch {len(history)}/{progress['epochs']}"
            line = f"{ended}  {metrics}  {progress['seconds_left']:.0f} s left"
        elif seconds >= LONG_SECONDS:
            line = progress["text"]
        else:
            return
        self._last, self._epochs = monotonic(), len(history)
        console.say(escape(f"  train  {line}"))
