"""Finds and removes artifacts, records and logs that are no longer needed."""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import rmtree
from time import time
from typing import Any

from retrain.errors import UsageError
from retrain.params import workload_names
from retrain.project import Project
from retrain.registry import lineage, reading, versions
from retrain.registry.versions import ModelVersion
from retrain.runs.records import LATEST
from retrain.store import Store

DAY = 86400.0  # seconds
KEEP = 5  # runs of each flow and workload
DAYS = 90  # that files of other runs are kept
# What runs leave beside the store, by its kind.
OF_RUNS = {
    "log": ".retrain/logs/[0-9]*-[0-9]*-*.log",  # those of servers have no time in the name
    "report": "reports/*/*.html",
    "search": ".retrain/searches/*/*",
    "drift": ".retrain/drift/*/*",
    "answers": ".retrain/production/*/answers/*.parquet",
    "package": ".retrain/champions/*",  # a copy of what MLflow has, like the next
    "pixels": ".retrain/learnt_pixels/*.npy",
}


@dataclass(frozen=True)
class Garbage:
    """Something that nothing needs.

    Attributes:
        kind: `artifact`; `scratch` or `leftover`, of a run that was killed; `run`, the document of
            a run; or a key of `OF_RUNS`.
        name: The step and the key; the flow, the workload and the run; or the path.
        bytes: The size of its files.
    """

    kind: str
    name: str
    bytes: int


# Something that can go, and what removes it; it is removed before the next one is looked for,
# while its lock is held.
Finding = tuple[Garbage, Callable[[], object]]


def collect(
    project: Project, keep: int = KEEP, days: int = DAYS, *, dry_run: bool = False
) -> list[Garbage]:
    """Removes what nothing needs; takes the arguments of `findings`, and raises its errors.

    Returns:
        What was removed, or would be.
    """
    return list(take(findings(project, keep, days), dry_run=dry_run))


def findings(project: Project, keep: int = KEEP, days: int = DAYS) -> Iterator[Finding]:
    """What nothing needs.

    An artifact is needed if one of the last runs made or used it, if the champion or the reference
    came from it, or if a run of now or of the last day has used or made it.

    Args:
        project: The clone with the store and the runs.
        keep: How many runs of each flow and workload are kept. The runs under names that are not
            in `params.yaml` count together, and such a name goes with its last run.
        days: How many days the logs, reports and other files of earlier runs are kept.

    Raises:
        UsageError: `keep` or `days` is less than one.
        mlflow.exceptions.MlflowException: The registry does not answer. Nothing was removed.
    """
    if keep < 1 or days < 1:
        raise UsageError("--keep, --days: at least the last run and the last day are kept.")
    store, opponents = Store(project.store), _opponents(project, keep)
    taken, behind = _taken(project, keep), _outputs_behind(project, opponents)
    before, since = time() - days * DAY, store.runs.oldest() - DAY
    yield from _old_documents(project, keep, before)
    yield from _old_files(project, before, _needed_names(project, keep, opponents))
    yield from _artifacts(store, taken, behind, since)
    yield from _leftovers(store, since)


def take(found: Iterable[Finding], *, dry_run: bool) -> Iterator[Garbage]:
    """Removes what was found, one after the other, unless it is a dry run; says what it was."""
    for garbage, remove in found:
        if not dry_run:
            remove()
        yield garbage


def _artifacts(
    store: Store, taken: Collection[tuple[str, str]], behind: Collection[str], since: float
) -> Iterator[Finding]:
    """The artifacts that no run has taken, and that no opponent came from."""
    from filelock import Timeout

    for step, key in store.entries():
        digest = store.inspect(step, key)[0].get("digest")
        if (step, key) in taken or digest in behind:
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


def _old_files(project: Project, before: float, needed: set[str]) -> Iterator[Finding]:
    """The files and folders beside the store in which nothing was written since a time."""
    for kind, pattern in OF_RUNS.items():
        for path in sorted(project.root.glob(pattern)):
            written = max(file.stat().st_mtime for file in (path, *path.rglob("*")))
            if path.stem not in needed and written < before:
                size = size_of(path) if path.is_dir() else path.stat().st_size
                remove = partial(rmtree, path) if path.is_dir() else path.unlink
                yield Garbage(kind, project.relative(path), size), remove


def _needed_names(project: Project, keep: int, opponents: list[ModelVersion]) -> set[str]:
    """The names of files and folders that stay: of the last runs, and of the opponents."""
    runs = {document["run"] for group in _documents(project) for _, document in group[:keep]}
    models = {name for version in opponents for name in (version.package_digest, version.run_id)}
    return {"latest", "index", *runs, *models}


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


def _old_documents(project: Project, keep: int, before: float) -> Iterator[Finding]:
    """The documents of earlier runs; failed runs of a workload keep theirs as long as reports."""
    workloads = workload_names(project.params)
    for group in _documents(project):
        for path, document in group[keep:]:
            is_of_workload = path.parent.name in workloads
            if "error" in document and is_of_workload and path.stat().st_mtime >= before:
                continue
            name = path.relative_to(project.state / "runs").with_suffix("").as_posix()
            yield Garbage("run", name, path.stat().st_size), path.unlink
            other_documents = {file.name for file in path.parent.glob("*.json")} - {LATEST}
            if not is_of_workload and not other_documents:
                (path.parent / LATEST).unlink(missing_ok=True)  # with it, the name


def _opponents(project: Project, keep: int) -> list[ModelVersion]:
    """The champions and the references of all models.

    A model under a name that is not in `params.yaml` counts as long as one of its runs is kept.
    """
    names = set(workload_names(project.params))
    names |= {path.parent.name for group in _documents(project) for path, _ in group[:keep]}
    found = [
        find(project, name)
        for name in sorted(names & set(reading.names(project)))
        for find in (versions.champion, versions.reference)
    ]
    return [version for version in found if version]


def _outputs_behind(project: Project, opponents: list[ModelVersion]) -> frozenset[str]:
    """The digests of what models were made from."""
    digests: set[str] = set()
    for version in opponents:
        with suppress(ValueError):  # its lineage is gone or was changed, as `verify` says
            digests |= {output.digest for output in lineage.read(project, version).steps}
    return frozenset(digests)


def total(garbage: Collection[Garbage]) -> str:
    """How many pieces there are, and their size, for a person."""
    from rich.filesize import decimal

    return f"{len(garbage) or 'nothing'}, {decimal(sum(piece.bytes for piece in garbage))}"


def _bytes_freed(folder: Path) -> int:
    """Bytes that become free with a folder: a file with another name, too, stays on the disk."""
    stats = (path.stat() for path in folder.rglob("*") if path.is_file())
    return sum(stat.st_size for stat in stats if stat.st_nlink == 1)


def size_of(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
