"""The project's MLflow: the runs of trainings, and what it keeps about a registered model.

A training has one run, also if it is interrupted and retried. Of a model there are its aliases, its
versions and its ledger. To import MLflow takes longer than all else in a run that finds nothing
changed: so a model is read from an SQLite file as the database that it is, and only a server is
asked through MLflow.
"""

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from time import time
from typing import Any
from urllib.parse import urlparse
from urllib.request import url2pathname

from rich.markup import escape

from retrain.errors import without_login
from retrain.project import Project
from retrain.registry.ledger import Ledger, Row, parse
from retrain.runs import console
from retrain.servers import databases, reachable

logger = logging.getLogger(__name__)

KEY = "retrain.key"
NOTE = "mlflow.note.content"  # the tag that MLflow shows as the description of a run
OF_TRAININGS = (
    "The trainings of the workload {0}, a run for each. In the project: `retrain status {0}`, "
    "`retrain report {0}`."
)
LEDGER_RUN = "retrain.ledger_run"  # the tag of a registered model with the id of its ledger's run
LEDGER_OF = "retrain.ledger"  # the tag of that run with the name of the model
OWN_LEDGER = (  # the run with decisions that says itself that they are a model's
    "SELECT run_uuid FROM runs JOIN params USING (run_uuid) JOIN tags USING (run_uuid) "
    f"WHERE tags.key = '{LEDGER_OF}' AND tags.value = ? AND lifecycle_stage = 'active'"
)
DECISIONS = "Decisions"  # the experiment of the ledgers' runs
OF_LEDGERS = "The decisions about the models of each workload. In the project: `retrain history`."
MOST_VERSIONS, MOST_MODELS = 200_000, 1_000  # the most that MLflow gives at once
NO_METRICS = ("checkpoint", "seconds")  # in the entry of an epoch
NOT_BEST = {"lr", "images_per_second", *NO_METRICS}  # what does not make an epoch the best


def client(project: Project) -> Any:
    """A client of the project's MLflow, without changes to MLflow's global state."""
    check(project)
    from mlflow import MlflowClient

    uri, file = project.tracking_uri, mended(project)
    if file is None:
        return MlflowClient(uri, uri)
    with databases.created(file, databases.create_mlflow):
        return MlflowClient(uri, uri)


def check(project: Project) -> None:
    """Checks that the project's MLflow answers, if it is on a network.

    Raises:
        ConnectionError: MLflow does not answer within seconds.
    """
    uri = project.tracking_uri
    if "://" in uri and not uri.startswith("sqlite:"):
        reachable.check("MLFLOW_TRACKING_URI", uri, "/health")


def start_run(
    project: Project,
    workload: str,
    key: str,
    params: Mapping[str, Any],
    images: str,
    *,
    continued: str | None = None,
) -> str:
    """Starts a training's run, or continues the one of an earlier try, in any state.

    Args:
        project: The clone that uses this MLflow.
        workload: The name of the experiment.
        key: The training's key.
        params: The parameters that the training depends on, by dotted name.
        images: The digest of the images that it is trained on.
        continued: The id of the run to continue; None for the first try.

    Returns:
        The id of the run.

    Raises:
        ConnectionError: MLflow cannot be reached.
    """
    from mlflow.entities import Dataset, DatasetInput, Param
    from mlflow.exceptions import MlflowException

    mlflow = client(project)
    try:
        place = experiment(mlflow, project, workload, OF_TRAININGS.format(workload))
        run_id = continued if continued and is_active(project, continued) else None
        if run_id is None:  # a try that was killed before it could note its run has left one
            unfinished = f"tags.`{KEY}` = '{key}' AND attributes.status != 'FINISHED'"
            run_id = next(
                (run.info.run_id for run in mlflow.search_runs([place], unfinished)), None
            )
        if run_id:
            mlflow.update_run(run_id, "RUNNING")
        else:
            tags = {KEY: key, "mlflow.source.git.commit": project.commit or "unknown"}
            created = mlflow.create_run(place, tags=tags, run_name=f"{workload}-{key[:8]}")
            run_id = str(created.info.run_id)
        logged = mlflow.get_run(run_id).data.params
        new = [Param(name, str(value)) for name, value in params.items() if name not in logged]
        mlflow.log_batch(run_id, params=new)
        # MLflow refuses a digest that is longer than its column, and keeps one of two datasets.
        dataset = Dataset(workload, images[:36], "retrain", f'{{"digest": "{images}"}}')
        set_at_once(mlflow.log_inputs, run_id, [DatasetInput(dataset)])
        return run_id
    except MlflowException as error:
        raise ConnectionError(
            f"MLflow at {without_login(project.tracking_uri)} cannot be used: "
            f"{str(error).splitlines()[0]}"
        ) from error


def set_at_once(function: Callable[..., object], *arguments: Any) -> None:
    """Sets what another process may set for the first time at the same moment.

    The database then refuses one of the two, which finds it there when it tries again.
    """
    from mlflow.exceptions import MlflowException

    try:
        function(*arguments)
    except MlflowException:
        function(*arguments)


def log_epochs(project: Project, run_id: str, epochs: Sequence[Mapping[str, Any]]) -> None:
    """Logs the metrics of epochs that are not logged yet; MLflow's step is the epoch's number."""
    from mlflow.entities import Metric

    mlflow, timestamp = client(project), round(time() * 1000)
    logged = {metric.step for metric in mlflow.get_metric_history(run_id, "epoch")}
    metrics = [
        Metric(name, epoch[name], timestamp, epoch["epoch"])
        for epoch in epochs
        if epoch["epoch"] not in logged
        for name in sorted(epoch.keys() - NO_METRICS)
    ]
    mlflow.log_batch(run_id, metrics=metrics)


def log_best(project: Project, run_id: str, epoch: Mapping[str, Any]) -> None:
    """Logs the metrics of the best epoch as `best_…`.

    As the value of a metric itself, MLflow shows the one of the last epoch, and sorts runs by it.
    """
    log_metrics(project, run_id, {f"best_{name}": epoch[name] for name in epoch.keys() - NOT_BEST})


def end_run(project: Project, run_id: str, status: str) -> None:
    """Ends a run.

    Args:
        project: The clone that uses this MLflow.
        run_id: The run.
        status: `FINISHED`, or `FAILED` for a run that the next try continues.
    """
    client(project).set_terminated(run_id, status)


def log_metrics(project: Project, run_id: str, metrics: Mapping[str, float]) -> bool:
    """Logs metrics of the whole run, but for those that a killed try has logged.

    Returns:
        False, with a warning, if the run was deleted.
    """
    if not is_active(project, run_id):
        return False
    mlflow = client(project)
    logged = mlflow.get_run(run_id).data.metrics
    for name, value in metrics.items():
        if logged.get(name) != value:
            mlflow.log_metric(run_id, name, value)
    return True


def log_artifacts(project: Project, run_id: str, folder: Path, path: str) -> None:
    """Copies the files of a folder to a run's artifacts; a warning says if the run was deleted.

    Args:
        project: The clone that uses this MLflow.
        run_id: The run.
        folder: The folder to copy.
        path: The target folder in the run's artifacts.
    """
    if is_active(project, run_id):
        client(project).log_artifacts(run_id, str(folder), path)


def read_artifact(project: Project, run_id: str, path: str) -> bytes | None:
    """The content of an artifact of a run; None if there is no such run or artifact."""
    run = find_run(project, run_id)
    if run is None:
        return None
    local = local_path(run.info.artifact_uri)
    if local is not None:  # MLflow would ask its database for the run four more times
        return (local / path).read_bytes() if (local / path).is_file() else None
    mlflow = client(project)
    listed = mlflow.list_artifacts(run_id, str(PurePosixPath(path).parent))
    if path not in [artifact.path for artifact in listed]:
        return None
    with TemporaryDirectory() as folder:
        return Path(mlflow.download_artifacts(run_id, path, folder)).read_bytes()


def tell(line: str) -> None:
    """Tells a person what was mended: in a run on its screen, else on standard error."""
    if console.Output.log:
        console.say(escape(line))
    else:
        print(line, file=sys.stderr)


def local_path(uri: str) -> Path | None:
    """The path of a URI; None if it is not on this machine."""
    place = urlparse(uri)
    return Path(url2pathname(place.path)) if place.scheme in ("", "file") else None


def experiment(mlflow: Any, project: Project, name: str, about: str) -> str:
    """The id of an experiment, which is created with a description or restored if necessary."""
    from mlflow.exceptions import MlflowException

    existing = mlflow.get_experiment_by_name(name)
    if existing is None:
        # A local store would put artifacts below the working directory; a server has its own place.
        local = project.tracking_uri.startswith("sqlite:")
        location = (project.home / "mlruns" / name).as_uri() if local else None
        with suppress(MlflowException):  # another run was faster
            mlflow.create_experiment(name, location, {NOTE: about})
        existing = mlflow.get_experiment_by_name(name)
    if existing.lifecycle_stage == "deleted":
        mlflow.restore_experiment(existing.experiment_id)
    return str(existing.experiment_id)


def is_active(project: Project, run_id: str) -> bool:
    """Whether a run exists; logs a warning if it was deleted."""
    run = find_run(project, run_id)
    if run is None or run.info.lifecycle_stage == "deleted":
        logger.warning("MLflow run %s is gone; nothing is logged to it.", run_id)
        return False
    return True


def find_run(project: Project, run_id: str) -> Any:
    """A run, which may have been deleted; None if MLflow does not know it any more."""
    return _found(client(project).get_run, run_id)


def _found(find: Callable[[str], Any], name: str) -> Any:
    """What MLflow finds; None if there is no such thing."""
    from mlflow.exceptions import MlflowException

    try:
        return find(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None


def mended(project: Project) -> Path | None:
    """The SQLite file of MLflow's store, with the places of a clone that was moved set right.

    None for another kind of store.

    Raises:
        UsageError: Another release of MLflow has made it, or it is damaged.
        ValueError: It is gone.
    """
    file = databases.of_mlflow(project)
    if file and not file.exists() and (project.root / "mlruns").exists():
        raise ValueError(
            f"{file} is gone, and mlruns/ has what was registered in it: bring it back. Nobody "
            "knows what is in production without it; to begin anew, move mlruns/ away."
        )
    if file:
        databases.check(file, "mlflow")
    if file == project.root / databases.MLFLOW and (kept := databases.mend_moved(project.root)):
        tell(
            f"The clone was moved: {file.name} has its new place now, and {kept.name} is as it was."
        )
    return file


def read_model(project: Project, name: str) -> Ledger:
    """Reads a model; one that is not registered has neither versions nor entries.

    Raises:
        ValueError: An entry was changed, so that it cannot be read.
    """
    file = mended(project)
    if file is None:
        return _ask(project, name)
    if not file.exists():
        return Ledger(name)
    return _select(file, name)


def _select(file: Path, name: str) -> Ledger:
    """Reads a model from MLflow's tables, all of it as it was at one moment."""
    with databases.opened(file, "mlflow") as database:

        def rows(query: str, value: str) -> list[Any]:
            return database.execute(query, [value]).fetchall()

        database.execute("BEGIN")
        aliases = rows("SELECT alias, version FROM registered_model_aliases WHERE name = ?", name)
        of_model = rows("SELECT key, value FROM registered_model_tags WHERE name = ?", name)
        named = dict(of_model).get(LEDGER_RUN)
        run = named or next((own for (own,) in rows(OWN_LEDGER, name)), None)
        entries = rows("SELECT key, value FROM params WHERE run_uuid = ?", run or "")
        tags: dict[int, dict[str, str]] = {}
        query = "SELECT version, key, value FROM model_version_tags WHERE name = ?"
        for number, key, value in rows(query, name):
            tags.setdefault(number, {})[key] = value
        query = (
            "SELECT version, run_id, source, creation_time FROM model_versions "
            "WHERE name = ? AND current_stage != 'Deleted_Internal'"
        )
        versions = {
            number: Row(run_id or "", source, created, tags.get(number, {}))
            for number, run_id, source, created in rows(query, name)
        }
    return Ledger(name, parse(name, dict(entries)), run, bool(named), dict(aliases), versions)


def _ask(project: Project, name: str) -> Ledger:
    """Asks MLflow for a model, for its ledger last."""
    mlflow = client(project)
    model = _found(mlflow.get_registered_model, name)
    versions = {
        int(found.version): Row(
            found.run_id or "", found.source, found.creation_timestamp, found.tags
        )
        for found in mlflow.search_model_versions(f"name = '{name}'", MOST_VERSIONS)
    }
    aliases = {alias: int(number) for alias, number in model.aliases.items()} if model else {}
    named = model.tags.get(LEDGER_RUN) if model else None
    if named:
        run = find_run(project, named)
    else:
        run = next((run for run in _ledgers(mlflow) if run.data.tags[LEDGER_OF] == name), None)
    entries = parse(name, run.data.params if run else {})
    run_id = named or (run.info.run_id if run else None)
    return Ledger(name, entries, run_id, bool(named), aliases, versions)


def _ledgers(mlflow: Any) -> list[Any]:
    """The runs with the decisions about models, but for those that a person has deleted."""
    place = mlflow.get_experiment_by_name(DECISIONS)
    runs = mlflow.search_runs([place.experiment_id]) if place else ()
    return [run for run in runs if LEDGER_OF in run.data.tags and run.data.params]


def model_names(project: Project) -> list[str]:
    """The names of all models with versions or decisions; no database is made to find none."""
    file = mended(project)
    if file and not file.exists():
        return []
    mlflow = client(project)
    models = mlflow.search_registered_models(max_results=MOST_MODELS)
    ledgers = [run.data.tags[LEDGER_OF] for run in _ledgers(mlflow)]
    return sorted({*(model.name for model in models), *ledgers})
