"""Trains the network with Ray Train, in this process or on workers, and tracks it in MLflow.

- `checks.py` finds faults before a run, and `notices.py` says what may surprise
- `launch.py` starts the workers; `loops/` has the training loops, of which one is imported, and
  `job.py` their arguments
- `sampler.py`, `balance.py` and `ingest.py` bring the images; `augment.py` changes them, with
  `transforms.py` and `mixing.py`
- `optimizer.py`, `averaging.py`, `device.py` and `collective.py` train the network
- `validation.py` and `selection.py` find the best epoch
- `checkpoint.py` and `progress.py` keep and show how far it is, `interrupt.py` ends it at Ctrl-C
"""

import hashlib
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import models
from retrain import tracking
from retrain.atomic import write_json
from retrain.code import libraries_of
from retrain.errors import PrunedError
from retrain.runs import console
from retrain.step import Chosen, Facts, Workspace, step
from retrain.store import Artifact
from retrain.workload import Model, Scale, Train, Workload, flatten
from tasks.data.embeddings import prepared_by
from tasks.data.raw_dataset import READERS
from tasks.data.shards import SOURCE_MODULE
from tasks.train import notices
from tasks.train.augment import TRANSFORMS, modules_for
from tasks.train.checks import check, check_slowly
from tasks.train.estimate import forecast
from tasks.train.ingest import DATALOADER, STREAM
from tasks.train.job import TrainingJob
from tasks.train.launch import launch
from tasks.train.loop import loop_of, module_name, modules_of_the_user
from tasks.train.progress import FILE, followed
from tasks.train.selection import of_equals, stops_early

if TYPE_CHECKING:
    from tasks.data.champion import Start

logger = logging.getLogger(__name__)

MODEL = "model"
TRACKED = "mlflow.json"  # the training's run in MLflow
VALIDATION = ("val_accuracy", "val_loss")  # metrics of the best epoch that are facts
SCALE = (
    "workers",
    "strategy",
    "backend",
    "threads",
    "ingest",
    "memory_gb",
)  # the settings of the section that change the network


@step(
    inputs=lambda workload: (prepared_by(workload), "pull", "start"),
    reads=("model", "train", *(f"scale.{name}" for name in SCALE)),
    looked_up=("pull",),
    libraries=("numpy", "safetensors", "torch", "transformers"),
    reports_with=(
        "models.processing",
        "tasks.compute.placement",
        "tasks.train.checks",
        "tasks.train.estimate",
        "tasks.train.interrupt",
        "tasks.train.notices",
        "tasks.train.progress",
        "tasks.train.rehearsal",
    ),
    hours=7 * 24,
    imports=("mlflow", "torch", "ray.train.torch", "transformers.modeling_utils"),
)
def train(
    model: Model,
    hyperparameters: Train,
    scale: Scale,
    images: Artifact,
    pulled: Artifact,
    start: "Start",
    workspace: Workspace,
) -> Facts:
    """Trains a network; continues from the last checkpoint of an interrupted training.

    Writes `model/` (as `models.save` does; of the best epoch), `report/history.json` (a list with
    an entry for each epoch) and `report/mlflow.json`.

    Args:
        model: Which network.
        hyperparameters: How it is trained.
        scale: On how many workers.
        images: The output of `preprocess`, or of `embed`.
        pulled: That of `pull`; only images that are not prepared are read there.
        start: Which weights it starts from.
        workspace: Its scratch holds the checkpoints.

    Returns:
        As `_facts` does.

    Raises:
        PrunedError: The training is a trial of a search, which ends it.
        ValueError: The parameters do not go together or with the images, or training diverged.
        ConnectionError: MLflow cannot be reached.
        TimeoutError, ray.train.TrainingFailedError: As `launch` does.
    """
    job = _job(model, hyperparameters, scale, images, pulled, start, workspace)
    _say_what_to_know(scale, job, images, start)
    used = hyperparameters.model_dump(include=set(loop_of(hyperparameters).USED))
    params = flatten({"model": model.model_dump(), "train": used})
    params |= {f"scale.{name}": getattr(scale, name) for name in SCALE}
    with _tracked(workspace, params, images.digest) as run:
        log = partial(tracking.log_epochs, workspace.project, run.run_id)
        try:
            with console.training_progress() as show, followed(job.scratch / FILE, show, log):
                result = launch(job, scale)
        except PrunedError as pruned:
            log(pruned.history)
            raise
        write_json(workspace.report / "history.json", result["history"])
        write_json(workspace.report / TRACKED, asdict(run))
        tracking.log_artifacts(workspace.project, run.run_id, workspace.report, "train")
    return _facts(job, scale, start, result)


def _job(
    model: Model,
    hyperparameters: Train,
    scale: Scale,
    images: Artifact,
    pulled: Artifact,
    start: "Start",
    workspace: Workspace,
) -> TrainingJob:
    """Describes the training to its loop."""
    assert scale.threads != "auto", "retrain.params decides it"
    return TrainingJob(
        family=model.family,
        settings=model.model_dump(exclude={"family"}),
        hyperparameters=hyperparameters,
        images=images.folder,
        scratch=workspace.scratch,
        output=workspace.folder / MODEL,
        start=start.model,
        pulled=pulled.folder,
        root=workspace.project.root,
        checkpoint_seconds=scale.checkpoint_seconds,
        keep_checkpoints=scale.keep_checkpoints,
        strategy=scale.strategy,
        ingest="stream" if images.facts["storage"] == "source" else scale.ingest,
        memory_gb=scale.memory_gb,
        data_cpus=scale.data_cpus,
        threads=scale.threads,
        bounds=workspace.trial.bounds if workspace.trial else {},
    )


def _say_what_to_know(scale: Scale, job: TrainingJob, images: Artifact, start: "Start") -> None:
    """Says what the training starts from, and what may surprise."""
    wanted, taken = job.hyperparameters.batch_size, _batch_size(job.hyperparameters, scale)
    if start.registered:
        console.say(f"train starts from the weights of version {start.registered.version.version}.")
    if taken < wanted:
        console.say(
            f"train takes batches of {taken} images: {wanted} cannot be divided among "
            f"{scale.workers} workers."
        )
    notices.say_how_images_differ(job.settings, images, job.root)
    crop = job.hyperparameters.augment.crop
    if crop and job.ingest != "stream":
        notices.say_what_is_enlarged(crop, images)


def _batch_size(hyperparameters: Train, scale: Scale) -> int:
    """The images of a batch over all workers, of which each has as many."""
    workers = max(scale.workers, 1)
    return hyperparameters.batch_size // workers * workers


def _facts(job: TrainingJob, scale: Scale, start: "Start", result: dict[str, Any]) -> Facts:
    """What is known of a training that is over.

    Returns:
        `weights` (SHA-256 of the weights' file), `parameters` (how many), `numerics` (`precision`,
        `attention`, whether `compiled`, and CPU `threads`), `batch_size` (over all workers, as it
        was), `best_epoch`, `of_equals` (why that one, if others have the same metric), `start`
        (SHA-256 of the weights it started from, if not new), and the metric by which it is the
        best, with `val_accuracy` and `val_loss` where the loop has them.
    """
    history, best = result["history"], result["best"]
    rule, choice = job.hyperparameters.early_stopping, job.hyperparameters.best
    if stops_early(history, choice, rule) and len(history) != job.hyperparameters.epochs:
        assert rule is not None
        console.say(
            f"train ended early: {choice.metric} was no better in the last {rule.patience} of "
            f"{len(history)} evaluations."
        )
    weights = (job.output / models.WEIGHTS).read_bytes()
    facts = {
        "weights": hashlib.sha256(weights).hexdigest(),
        "parameters": result["parameters"],
        "numerics": result["numerics"],
        "batch_size": _batch_size(job.hyperparameters, scale),
        "best_epoch": best["epoch"],
    }
    if equals := of_equals(history, best, choice):
        facts["of_equals"] = equals
    if start.registered:
        facts["start"] = start.weights
    return facts | {name: best[name] for name in sorted({choice.metric, *VALIDATION} & best.keys())}


@contextmanager
def _tracked(
    workspace: Workspace, params: dict[str, Any], images: str
) -> Iterator[tracking.TrackedRun]:
    """Starts or continues the training's run in MLflow, and ends it as it ended."""
    project, memory = workspace.project, workspace.scratch / TRACKED
    before = json.loads(memory.read_text())["run_id"] if memory.exists() else None
    run = tracking.start_run(
        project,
        workspace.workload,
        workspace.key,
        params,
        images,
        continued=before,
        again=workspace.anew,
        parent=workspace.trial.parent if workspace.trial else None,
    )
    write_json(memory, asdict(run))
    try:
        yield run
    except BaseException as ended:
        try:
            status = "KILLED" if isinstance(ended, PrunedError) else "FAILED"
            tracking.end_run(project, run.run_id, status)
        except Exception as error:  # must not hide why the training failed
            logger.warning("MLflow could not record that the training failed: %s", error)
        raise
    tracking.end_run(project, run.run_id, "FINISHED")


@train.chooses
def _chosen(workload: Workload, images: Artifact, pulled: Artifact, start: "Start") -> Chosen:
    users = modules_of_the_user(workload)
    modules = (module_name(workload.train), f"models.{workload.model.family}", *users)
    if workload.scale.ingest == "dataloader":
        modules += (DATALOADER,)
    libraries = libraries_of(users)
    modules += (changes := modules_for(workload.train.augment))
    if TRANSFORMS in changes:
        libraries += ("kornia",)
    if workload.train.lora:
        libraries += ("peft",)
    if images.facts["storage"] == "source":
        modules += (STREAM, SOURCE_MODULE, READERS[pulled.facts["format"]])
        libraries += ("pillow", "pyarrow")
    return Chosen(modules, libraries)


train.checks(check)
train.checks_slowly(check_slowly)
train.forecasts(forecast)
