"""Trains the network, and tracks it in MLflow.

- `checks.py` finds faults before a run, and tries a network of the user's
- `train.py` is the project's own training, from the data to the weights
- `recipe.py`, `augment.py` and `data.py` have what it consists of; `stream.py` brings images that
  are not prepared, `distributed.py` puts the network on a device, with others beside it
- `session.py` keeps checkpoints and what is reported; `best_epoch.py` says which is the best, and
  `progress.py` shows how far it is
- `launch.py` has Ray Train run it, here or on workers; `function.py` runs one of the user's
- `workload_proposal.py` proposes a workload for images, for `retrain init`
"""

import hashlib
import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import models
from models import user_code
from retrain.code import libraries_of
from retrain.disk import write_json
from retrain.registry import tracking
from retrain.runs import console
from retrain.servers import ray_cluster
from retrain.step import Chosen, Facts, Input, Workspace, step
from retrain.store import Artifact
from retrain.workload import Model, Scale, Train, Workload, flatten
from tasks.data.shards import prepared_by
from tasks.train.checks import check, try_network, try_settings
from tasks.train.job import FIRST_BATCH, STREAM, TrainingJob, used_by
from tasks.train.progress import followed

if TYPE_CHECKING:
    from tasks.data.champion import Start

logger = logging.getLogger(__name__)

MODEL = "model"
TRACKED = "mlflow.json"  # the training's run in MLflow
VALIDATION = ("val_accuracy", "val_loss")  # metrics of the best epoch that are facts
# The settings of the section that change the network.
SCALE = ("workers", "strategy", "threads")


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
    looked_up=("pull",),
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
    start: "Start",
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
        start: The weights that it starts from.
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
        start=start.model,
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
        with console.progress("train") as update, followed(job.scratch, update, log):
            if scale.workers:
                update(None, f"starts {scale.workers} workers")
            result = train_and_save(job)
        _write_report(workspace, run_id, result)
    return _facts(job, rows, start, result)


def notices(job: TrainingJob, start: "Start") -> Iterator[str]:
    """Says where a training starts, and how its batches and images differ from the settings."""
    if start.registered:
        yield f"train starts from the weights of version {start.registered.version.version}."
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
    from tasks.train import distributed, train as own
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
    if is_own:
        network = own.best_network(session)
    else:
        from tasks.train import function

        network = function.best_network(session)
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


def _facts(job: TrainingJob, rows: int, start: "Start", result: dict[str, Any]) -> Facts:
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
        **({"start": start.weights} if start.registered else {}),
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
