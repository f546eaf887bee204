"""Finds what old runs have left beside the store: trials in MLflow, searches, and files."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from shutil import rmtree

from retrain import artifacts, tracking
from retrain.gc import Finding, Garbage, size_of
from retrain.locks import locked
from retrain.project import Project
from retrain.registry.snapshot import all_pages
from retrain.search import LOCK


def trials(project: Project, names: Iterable[str], since: float) -> Iterator[Finding]:
    """The MLflow runs of trials that have ended, whose search has too.

    A trial that became a version stays. The run of the search has its table and its plots.

    Args:
        project: The clone that uses this MLflow.
        names: The names of the workloads.
        since: What has ended after that stays; seconds since the epoch.
    """
    file = tracking.database_of(project)
    if file and not file.exists():
        return
    mlflow = tracking.client(project)
    experiments = [found for name in names if (found := mlflow.get_experiment_by_name(name))]
    for experiment in experiments:
        search = partial(mlflow.search_runs, [experiment.experiment_id])
        going_on = {run.info.run_id for run in all_pages(partial(search, "status = 'RUNNING'"))}
        ended = f"end_time < {round(since * 1000)} and status != 'RUNNING'"
        of_searches = f"tags.`{tracking.PARENT}` LIKE '%' and {ended}"
        for run in [*all_pages(partial(search, of_searches))]:
            run_id = run.info.run_id
            if run.data.tags[tracking.PARENT] in going_on:
                continue
            if not mlflow.search_model_versions(f"run_id = '{run_id}'"):
                size = artifacts.size_of(project, run_id)
                remove = partial(_remove_run, project, run_id)
                yield Garbage("trial", f"{experiment.name} {run_id[:8]}", size), remove


def _remove_run(project: Project, run_id: str) -> None:
    """Deletes a run's artifacts and the run, which `mlflow gc` then removes for good."""
    artifacts.delete(project, run_id)
    tracking.client(project).delete_run(run_id)


def searches(project: Project, since: float) -> Iterator[Finding]:
    """The searches in which nothing was written since then, and that nobody works at."""
    from filelock import Timeout

    for folder in sorted((project.state / "searches").glob("*/*")):
        with suppress(Timeout), locked(folder / LOCK, wait=False):
            written = [path.stat().st_mtime for path in folder.rglob("*") if path.name != LOCK]
            if max(written, default=0.0) < since:
                garbage = Garbage("search", project.relative(folder), size_of(folder))
                yield garbage, partial(rmtree, folder)


def files(project: Project, kind: str, paths: Iterable[Path], since: float) -> Iterator[Finding]:
    """Those of some files and folders that were written before.

    Args:
        project: The clone.
        kind: What they are, in a word.
        paths: The files and folders.
        since: Seconds since the epoch.
    """
    for path in sorted(paths):
        status = path.stat()
        if status.st_mtime < since:
            is_folder = path.is_dir()
            size = size_of(path) if is_folder else status.st_size
            remove = partial(rmtree, path) if is_folder else path.unlink
            yield Garbage(kind, project.relative(path), size), remove
