"""Logs trainings to MLflow: one run for each, also if it is interrupted and retried."""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any

from retrain import databases
from retrain.project import Project

if TYPE_CHECKING:
    from mlflow import MlflowClient

logger = logging.getLogger(__name__)

KEY = "retrain.key"
EPOCH_METRICS = ("train_loss", "val_loss", "val_accuracy", "lr", "images_per_second")
TABLES = ("experiments", "registered_models", "runs")  # the first has a row once it is complete
EPOCHS_PER_REQUEST = 100  # MLflow takes at most 1,000 metrics at once


@dataclass(frozen=True)
class TrackedRun:
    """A run in MLflow, by its identifiers there."""

    run_id: str
    experiment_id: str


def client(project: Project) -> "MlflowClient":
    """A client of the project's MLflow, without changes to MLflow's global state."""
    # With MLflow's defaults a step waits for minutes when the server does not answer.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    from mlflow import MlflowClient

    uri = project.tracking_uri
    path = uri.removeprefix("sqlite:///")
    if path == uri or "?" in path:
        return MlflowClient(uri, uri)
    with databases.created(Path(path), TABLES, _migrate):
        return MlflowClient(uri, uri)


def start_run(
    project: Project, workload: str, key: str, params: Mapping[str, Any], images: str
) -> TrackedRun:
    """Starts a training's run, or continues it if the training was interrupted.

    Args:
        project: The clone that uses this MLflow.
        workload: The name of the experiment.
        key: The training's key, by which its run is found again until it is finished.
        params: The parameters that the training depends on, by dotted name.
        images: The digest of the images that it is trained on.

    Raises:
        ConnectionError: MLflow cannot be reached.
    """
    from mlflow.entities import Dataset, DatasetInput, Param
    from mlflow.exceptions import MlflowException

    mlflow = client(project)
    try:
        experiment_id = _experiment(mlflow, project, workload)
        unfinished = f"tags.`{KEY}` = '{key}' and attributes.status != 'FINISHED'"
        found = mlflow.search_runs([experiment_id], unfinished, max_results=1)
        if found:
            run_id = found[0].info.run_id
            mlflow.update_run(run_id, "RUNNING")
            return TrackedRun(run_id, experiment_id)
        tags = {KEY: key, "mlflow.source.git.commit": project.commit() or "unknown"}
        name = f"{workload}-{key[:8]}"
        run_id = mlflow.create_run(experiment_id, tags=tags, run_name=name).info.run_id
        mlflow.log_batch(run_id, params=[Param(name, str(value)) for name, value in params.items()])
        # MLflow refuses a digest that is longer than its column.
        dataset = Dataset(workload, images[:36], "retrain", f'{{"digest": "{images}"}}')
        mlflow.log_inputs(run_id, [DatasetInput(dataset)])
        return TrackedRun(run_id, experiment_id)
    except MlflowException as error:
        raise ConnectionError(
            f"MLflow at {project.tracking_uri} cannot be used: {str(error).splitlines()[0]}"
        ) from error


def epochs_logged(project: Project, run_id: str) -> int:
    """How many epochs of a run are already logged."""
    history = client(project).get_metric_history(run_id, EPOCH_METRICS[0])
    return max((metric.step for metric in history), default=0)


def log_epochs(project: Project, run_id: str, epochs: Sequence[Mapping[str, Any]]) -> None:
    """Logs the metrics of epochs; the number of the epoch is MLflow's step."""
    from mlflow.entities import Metric

    now = round(time() * 1000)
    for first in range(0, len(epochs), EPOCHS_PER_REQUEST):
        metrics = [
            Metric(name, epoch[name], now, epoch["epoch"])
            for epoch in epochs[first : first + EPOCHS_PER_REQUEST]
            for name in EPOCH_METRICS
        ]
        client(project).log_batch(run_id, metrics=metrics)


def end_run(project: Project, run_id: str, status: str) -> None:
    """Ends a run.

    Args:
        project: The clone that uses this MLflow.
        run_id: The run.
        status: `FINISHED`, or `FAILED` for a run that the next try continues.
    """
    client(project).set_terminated(run_id, status)


def log_metrics(project: Project, run_id: str, metrics: Mapping[str, float]) -> bool:
    """Logs metrics of the whole run.

    Returns:
        False, with a warning, if the run was deleted.
    """
    if not is_active(project, run_id):
        return False
    from mlflow.entities import Metric

    now = round(time() * 1000)
    logged = [Metric(name, value, now, 0) for name, value in metrics.items()]
    client(project).log_batch(run_id, metrics=logged)
    return True


def log_artifacts(project: Project, run_id: str, folder: Path, path: str) -> bool:
    """Copies the files of a folder to a run's artifacts.

    Args:
        project: The clone that uses this MLflow.
        run_id: The run.
        folder: The folder to copy.
        path: The target folder in the run's artifacts.

    Returns:
        False, with a warning, if the run was deleted.
    """
    if not is_active(project, run_id):
        return False
    client(project).log_artifacts(run_id, str(folder), path)
    return True


def is_active(project: Project, run_id: str) -> bool:
    """Whether a run exists; logs a warning if it was deleted."""
    from mlflow.exceptions import MlflowException

    try:
        run = client(project).get_run(run_id)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        run = None
    if run is None or run.info.lifecycle_stage == "deleted":
        logger.warning("MLflow run %s is gone; nothing is logged to it.", run_id)
        return False
    return True


def _migrate(path: Path) -> None:
    from mlflow.db import upgrade

    upgrade.callback(f"sqlite:///{path}")


def _experiment(mlflow: "MlflowClient", project: Project, name: str) -> str:
    """The id of a workload's experiment, which is created or restored if necessary."""
    from mlflow.exceptions import MlflowException

    experiment = mlflow.get_experiment_by_name(name)
    if experiment is None:
        # A local store would put artifacts below the working directory; a server has its own place.
        local = project.tracking_uri.startswith("sqlite:")
        location = (project.root / "mlruns" / name).as_uri() if local else None
        try:
            return str(mlflow.create_experiment(name, location))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":  # another run was faster
                raise
            experiment = mlflow.get_experiment_by_name(name)
    if experiment.lifecycle_stage == "deleted":
        mlflow.restore_experiment(experiment.experiment_id)
    return str(experiment.experiment_id)
