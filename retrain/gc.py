"""Finds and removes artifacts, records and logs that are no longer needed."""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from time import time
from typing import Any

from retrain.errors import UsageError
from retrain.params import workload_names
from retrain.project import Project
from retrain.registry import lineage, snapshot, versions
from retrain.registry.versions import ModelVersion
from retrain.runs.records import LATEST
from retrain.store import Store

DAY = 86400.0  # seconds
KEEP = 5  # runs of each flow and workload
LOG_DAYS = 30


@dataclass(frozen=True)
class Garbage:
    """Something that nothing needs.

    Attributes:
        kind: `artifact`; `scratch` or `leftover`, of a run that was killed; `run`, the document of
            a run; or `log`. For `retrain maintain` also `version`, a package and its example;
            `trial`, a run in MLflow; `search`, `drift`, `report`; or `copy`, of what MLflow has.
        name: The step and the key; the flow, the workload and the run; the version; or the path.
        bytes: The size of its files.
    """

    kind: str
    name: str
    bytes: int


# Something that can go, and what removes it; it is removed before the next one is looked for,
# while its lock is held.
Finding = tuple[Garbage, Callable[[], object]]


def collect(project: Project, keep: int = KEEP, *, dry_run: bool = False) -> list[Garbage]:
    """Removes what nothing needs; takes the arguments of `findings`, and raises its errors.

    Returns:
        What was removed, or would be.
    """
    return list(take(findings(project, keep), dry_run=dry_run))


def findings(
    project: Project, keep: int = KEEP, *, without: Collection[ModelVersion] = ()
) -> Iterator[Finding]:
    """What nothing needs.

    An artifact is needed if one of the last runs made or used it, if a registered version of a
    model was trained by it, if the champion or the reference came from it, or if a run of now or of
    the last day has used or made it.

    Args:
        project: The clone with the store and the runs.
        keep: How many runs of each flow and workload are kept. The runs under names that are not
            in `params.yaml` count together, and such a name goes with its last run.
        without: Versions that need their training no more.

    Raises:
        UsageError: `keep` is less than one, or the section `retention` of the parameters is wrong.
        mlflow.exceptions.MlflowException: The registry does not answer. Nothing was removed.
    """
    if keep < 1:
        raise UsageError("--keep: at least the last run is kept.")
    store = Store(project.store)
    taken, registered = _taken(project, keep), _registered_outputs(project, keep, without)
    since = store.runs.oldest() - DAY
    yield from _old_documents(project, keep)
    yield from _old_logs(project)
    yield from _artifacts(store, taken, registered, since)
    yield from _leftovers(store, since)


def take(found: Iterable[Finding], *, dry_run: bool) -> Iterator[Garbage]:
    """Removes what was found, one after the other, unless it is a dry run; says what it was."""
    for garbage, remove in found:
        if not dry_run:
            remove()
        yield garbage


def _artifacts(
    store: Store,
    taken: Collection[tuple[str, str]],
    registered: Collection[str],
    since: float,
) -> Iterator[Finding]:
    """The artifacts that no run has taken, and that are not of what is registered."""
    from filelock import Timeout

    for step, key in store.entries():
        digest = store.inspect(step, key)[0].get("digest")
        if (step, key) in taken or digest in registered:
            continue
        with suppress(Timeout), store.lock(step, key, wait=False):
            # A run takes an artifact under this lock.
            if store.last_used(step, key) < since:
                yield _finding("artifact", store, step, key, store.folder(step, key))


def _leftovers(store: Store, since: float) -> Iterator[Finding]:
    for step, key, path in store.leftovers():
        # A half published output is of no use to anyone, but checkpoints are.
        kind = "leftover" if path.name.startswith(".") else "scratch"
        if kind == "leftover" or store.last_used(step, key) < since:
            yield _finding(kind, store, step, key, path)


def _finding(kind: str, store: Store, step: str, key: str, folder: Path) -> Finding:
    """A folder of a key; the key's lock goes with the last of them."""

    def remove() -> None:
        if kind == "artifact":
            store.discard(step, key)
        else:
            rmtree(folder)
        if not store.folder(step, key).exists():
            # A process that waits for the lock notices that its file is another one now.
            store.lock_file(step, key).unlink(missing_ok=True)

    return Garbage(kind, f"{step} {key}", _bytes_freed(folder)), remove


def _old_logs(project: Project) -> Iterator[Finding]:
    """The logs of runs; those of servers have no time in the name."""
    for path in sorted(project.logs.glob("[0-9]*-[0-9]*-*.log")):
        if path.stat().st_mtime < time() - LOG_DAYS * DAY:
            yield Garbage("log", project.relative(path), path.stat().st_size), path.unlink


def _documents(project: Project) -> list[list[tuple[Path, dict[str, Any]]]]:
    """The documents of all runs, the last first, for each flow and workload.

    The runs of a flow under names that are not in `params.yaml` are one group.
    """
    workloads, runs = workload_names(project.params), project.state / "runs"
    groups: dict[tuple[str, str], list[tuple[Path, dict[str, Any]]]] = defaultdict(list)
    for path in runs.glob("*/*/*.json"):
        document = json.loads(path.read_text(encoding="utf-8"))
        if path.stem == document.get("run") and "steps" in document:
            flow, name, _ = path.relative_to(runs).parts
            groups[flow, name if name in workloads else ""].append((path, document))
    return [
        sorted(group, key=lambda entry: str(entry[1]["time"]), reverse=True)
        for _, group in sorted(groups.items())
    ]


def _taken(project: Project, keep: int) -> frozenset[tuple[str, str]]:
    """The step and the key of all outputs of the last runs."""
    return frozenset(
        (step["step"], step["key"])
        for group in _documents(project)
        for _, document in group[:keep]
        for step in document["steps"]
    )


def last_runs(project: Project, keep: int = KEEP) -> set[str]:
    """The ids of the runs that are kept."""
    return {document["run"] for group in _documents(project) for _, document in group[:keep]}


def _old_documents(project: Project, keep: int) -> Iterator[Finding]:
    """The documents of earlier runs; failed runs of a workload keep theirs as long as reports."""
    workloads, since = workload_names(project.params), time() - project.retention.days * DAY
    for group in _documents(project):
        for path, document in group[keep:]:
            is_of_workload = path.parent.name in workloads
            if "error" in document and is_of_workload and path.stat().st_mtime >= since:
                continue
            name = path.relative_to(project.state / "runs").with_suffix("").as_posix()
            yield Garbage("run", name, path.stat().st_size), path.unlink
            other_documents = {file.name for file in path.parent.glob("*.json")} - {LATEST}
            if not is_of_workload and not other_documents:
                (path.parent / LATEST).unlink(missing_ok=True)  # with it, the name


def _registered_outputs(
    project: Project, keep: int, without: Collection[ModelVersion]
) -> frozenset[str]:
    """The digests of the trainings that are registered, and of what the opponents came from.

    The opponents are the champion and the reference. A model under a name that is not in
    `params.yaml` counts as long as one of its runs is kept. A version whose package was removed
    does not count.
    """
    old = {(version.name, version.version) for version in without}
    names = set(workload_names(project.params))
    names |= {path.parent.name for group in _documents(project) for path, _ in group[:keep]}
    digests: set[str | None] = set()
    for name in names & set(snapshot.names(project)):
        registered = snapshot.read(project, name).versions.values()
        digests |= {
            version.tags.get(versions.TRAINING)
            for version in registered
            if versions.REMOVED not in version.tags and (name, version.version) not in old
        }
        for find in (versions.champion, versions.reference):
            with suppress(ValueError):  # its lineage is gone or was changed, as `verify` says
                version = find(project, name)
                if version and (record := lineage.read(project, version)):
                    digests |= {output.digest for output in record.steps}
    return frozenset(digest for digest in digests if digest)


def _bytes_freed(folder: Path) -> int:
    """Bytes that become free with a folder: a file with another name, too, stays on the disk."""
    stats = (path.stat() for path in folder.rglob("*") if path.is_file())
    return sum(stat.st_size for stat in stats if stat.st_nlink == 1)


def size_of(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
