"""Removes what was not used for long: outputs in the store, and what earlier runs have left.

One rule: what no run of any clone has used for some days goes, unless a champion, a reference or a
version that waits for approval came from it. When something was last used is written beside it, as
the time of its files, because clones may share a store. If the registry cannot be read, nothing
goes.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from shutil import rmtree
from time import time

from retrain.errors import UsageError
from retrain.params import workload_names
from retrain.project import Project
from retrain.registry import tracking, versions
from retrain.runs.liveness import Processes
from retrain.servers import serving
from retrain.store import Store

DAY = 86400.0  # seconds
DAYS = 90
LATEST = "latest"  # the stem of the last run's document, and of its report
# What runs leave beside the store, by its kind.
OF_RUNS = {
    "log": ".retrain/logs/[0-9]*-[0-9]*-*.log",  # those of servers have no time in the name
    "run": ".retrain/runs/*/*/*.json",
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
        kind: `artifact`; `scratch`, of a run that was killed; or a key of `OF_RUNS`.
        name: The step and the key; or the path.
        bytes: The size of its files.
    """

    kind: str
    name: str
    bytes: int


# Something that can go, and what removes it; it is removed before the next one is looked for,
# while its lock is held.
Finding = tuple[Garbage, Callable[[], object]]


def collect(project: Project, days: int = DAYS, *, dry_run: bool = False) -> list[Garbage]:
    """Removes what was not used for some days.

    Args:
        project: The clone, with its store and the files of its runs.
        days: How many days something stays after its last use. While a run goes on, and after it
            was killed until another has begun, they are counted from the start of that run.
        dry_run: Remove nothing.

    Returns:
        What was removed, or would be.

    Raises:
        UsageError: `days` is less than one.
        ValueError: The registry, or the record of a model in it, cannot be read. Nothing was
            removed.
        ConnectionError: The registry does not answer. Nothing was removed.
    """
    if days < 1:
        raise UsageError("--days: what was used in the last day is kept.")
    outputs, files = _needed(project)
    store = Store(project.store)
    before = min(time(), Processes(project.store).oldest()) - days * DAY
    garbage = []
    for piece, remove in chain(_outputs(store, outputs, before), _files(project, files, before)):
        if not dry_run:
            remove()
        garbage.append(piece)
    return garbage


def _needed(project: Project) -> tuple[set[str], set[str]]:
    """What models in use came from: the digests of outputs, and the names of files and folders."""
    outputs, files = set[str](), set[str]()
    for name in tracking.model_names(project):
        ledger = tracking.read_model(project, name)
        if versions.numbers(ledger) or ledger.lost:  # else a model of other people
            used = [versions.champion(project, name), versions.reference(project, name)]
            if ledger.waiting:
                used.append(versions.get(project, name, ledger.waiting.version))
            # A server keeps to the version before while the champion cannot be served.
            files.add(Path(serving.read(project, name).package).name)
            for version in filter(None, used):
                files |= {version.package_digest, version.run_id}
                record = versions.read_record(project, version)
                outputs |= {output["digest"] for output in record["steps"]}
    return outputs, files


def _outputs(store: Store, needed: Collection[str], before: float) -> Iterator[Finding]:
    """The outputs that were not used since a time, and what killed runs have left of others."""
    from filelock import Timeout

    stored = ((step, key, store.folder(step, key)) for step, key in store.entries())
    for step, key, path in chain(stored, store.leftovers()):
        # A run takes an output under this lock. A process that waits for it notices when its file
        # is another one.
        with suppress(Timeout), store.lock(step, key, wait=False):
            kind, remove = "scratch", partial(rmtree, path)
            if path == store.folder(step, key):
                kind, remove = "artifact", partial(store.discard, step, key)
            if store.last_used(step, key) < before and not (
                kind == "artifact" and store.inspect(step, key)[0].get("digest") in needed
            ):
                yield Garbage(kind, f"{step} {key}", size_of(path)), remove
            if not store.folder(step, key).exists():
                store.lock_file(step, key).unlink()


def _files(project: Project, needed: Collection[str], before: float) -> Iterator[Finding]:
    """The files and folders beside the store in which nothing was written since a time.

    The document and the report of the last run of each workload in `params.yaml` stay.
    """
    workloads = workload_names(project.params)
    for kind, pattern in OF_RUNS.items():
        for path in sorted(project.root.glob(pattern)):
            is_last = path.stem == LATEST and path.parent.name in workloads
            written = max(file.stat().st_mtime for file in (path, *path.rglob("*")))
            if path.stem not in needed and not is_last and written < before:
                remove = partial(rmtree, path) if path.is_dir() else path.unlink
                yield Garbage(kind, project.relative(path), size_of(path)), remove


def total(garbage: Collection[Garbage]) -> str:
    """How many pieces there are, and their size, for a person."""
    from rich.filesize import decimal

    return f"{len(garbage) or 'nothing'}, {decimal(sum(piece.bytes for piece in garbage))}"


def size_of(folder: Path) -> int:
    """Bytes of a file, or of all files in a folder; one with another name, too, is not freed."""
    stats = [path.stat() for path in (folder, *folder.rglob("*")) if path.is_file()]
    return sum(stat.st_size for stat in stats if stat.st_nlink == 1)
