"""Finds and removes artifacts, records and logs that are no longer needed."""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
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
from retrain.registry import lineage, versions
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
Documents = list[tuple[Path, dict[str, Any]]]  # of runs, the last first


def collect(
    project: Project, keep: int = KEEP, days: int = DAYS, *, dry_run: bool = False
) -> list[Garbage]:
    """Removes what nothing needs.

    An artifact is needed if one of the last runs made or used it, if the champion or the reference
    came from it, or if a run of now or of the last day has used or made it.

    Args:
        project: The clone with the store and the runs.
        keep: How many runs of each flow and workload are kept. The runs under names that are not
            in `params.yaml` count together, and such a name goes with its last run.
        days: How many days the logs, reports and other files of earlier runs are kept.
        dry_run: Remove nothing.

    Returns:
        What was removed, or would be.

    Raises:
        UsageError: `keep` or `days` is less than one.
        ConnectionError: The registry does not answer. Nothing was removed.
    """
    if keep < 1 or days < 1:
        raise UsageError("--keep, --days: at least the last run and the last day are kept.")
    garbage = []
    for piece, remove in _findings(project, keep, days):
        if not dry_run:
            remove()
        garbage.append(piece)
    return garbage


def _findings(project: Project, keep: int, days: int) -> Iterator[Finding]:
    store, groups = Store(project.store), _documents(project)
    last = [document for group in groups for _, document in group[:keep]]
    kept = {path.parent.name for group in groups for path, _ in group[:keep]}
    taken = {(step["step"], step["key"]) for document in last for step in document["steps"]}
    behind, models = _of_opponents(project, {*workload_names(project.params), *kept})
    needed = {"latest", "index", *models, *(document["run"] for document in last)}
    before, since = time() - days * DAY, store.runs.oldest() - DAY
    yield from _old_documents(project, groups, keep, before)
    yield from _old_files(project, before, needed)
    yield from _artifacts(store, taken, behind, since)
    for step, key, path in store.leftovers():
        # A half published output is of no use to anyone, but checkpoints are.
        kind = "leftover" if path.name.startswith(".") else "scratch"
        if kind == "leftover" or store.last_used(step, key) < since:
            yield _finding(kind, store, step, key, path)


def _of_opponents(project: Project, names: Iterable[str]) -> tuple[set[str], set[str]]:
    """What champions and references need: the digests of outputs, and the names of folders."""
    digests, folders = set[str](), set[str]()
    for name in sorted(names):
        for find in (versions.champion, versions.reference):
            with suppress(ValueError):  # it, or its lineage, is gone or changed: `verify` says so
                if version := find(project, name):
                    folders |= {version.package_digest, version.run_id}
                    digests |= {each["digest"] for each in lineage.read(project, version)["steps"]}
    return digests, folders


def _artifacts(
    store: Store, taken: Collection[tuple[str, str]], behind: Collection[str], since: float
) -> Iterator[Finding]:
    """The artifacts that no run has taken, and that no opponent came from."""
    from filelock import Timeout

    for step, key in store.entries():
        if (step, key) in taken or store.inspect(step, key)[0].get("digest") in behind:
            continue
        with suppress(Timeout), store.lock(step, key, wait=False):
            # A run takes an artifact under this lock.
            if store.last_used(step, key) < since:
                yield _finding("artifact", store, step, key, store.folder(step, key))


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

    # A file with another name, too, stays on the disk.
    stats = [path.stat() for path in folder.rglob("*") if path.is_file()]
    size = sum(stat.st_size for stat in stats if stat.st_nlink == 1)
    return Garbage(kind, f"{step} {key}", size), remove


def _old_files(project: Project, before: float, needed: Collection[str]) -> Iterator[Finding]:
    """The files and folders beside the store in which nothing was written since a time."""
    for kind, pattern in OF_RUNS.items():
        for path in sorted(project.root.glob(pattern)):
            written = max(file.stat().st_mtime for file in (path, *path.rglob("*")))
            if path.stem not in needed and written < before:
                remove = partial(rmtree, path) if path.is_dir() else path.unlink
                yield Garbage(kind, project.relative(path), size_of(path)), remove


def _documents(project: Project) -> list[Documents]:
    """The documents of all runs, the last first, for each flow and workload.

    The runs of a flow under names that are not in `params.yaml` are one group.
    """
    workloads, runs = workload_names(project.params), project.state / "runs"
    groups: dict[tuple[str, str], Documents] = defaultdict(list)
    for path in runs.glob("*/*/*.json"):
        document = json.loads(path.read_text(encoding="utf-8"))
        if path.stem == document.get("run") and "steps" in document:
            flow, name, _ = path.relative_to(runs).parts
            groups[flow, name if name in workloads else ""].append((path, document))
    return [
        sorted(group, key=lambda entry: str(entry[1]["time"]), reverse=True)
        for _, group in sorted(groups.items())
    ]


def _old_documents(
    project: Project, groups: Sequence[Documents], keep: int, before: float
) -> Iterator[Finding]:
    """The documents of earlier runs; failed runs of a workload keep theirs as long as reports."""
    workloads = workload_names(project.params)
    for path, document in (entry for group in groups for entry in group[keep:]):
        is_of_workload = path.parent.name in workloads
        if "error" in document and is_of_workload and path.stat().st_mtime >= before:
            continue
        name = path.relative_to(project.state / "runs").with_suffix("").as_posix()
        yield Garbage("run", name, path.stat().st_size), path.unlink
        other_documents = {file.name for file in path.parent.glob("*.json")} - {LATEST}
        if not is_of_workload and not other_documents:
            (path.parent / LATEST).unlink(missing_ok=True)  # with it, the name


def total(garbage: Collection[Garbage]) -> str:
    """How many pieces there are, and their size, for a person."""
    from rich.filesize import decimal

    return f"{len(garbage) or 'nothing'}, {decimal(sum(piece.bytes for piece in garbage))}"


def size_of(folder: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    return sum(path.stat().st_size for path in (folder, *folder.rglob("*")) if path.is_file())
