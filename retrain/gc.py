"""Finds and removes artifacts, records, logs and searches that are no longer needed."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import rmtree
from time import time
from typing import Any

from retrain import roots, tracking
from retrain.errors import UsageError
from retrain.locks import locked
from retrain.params import workload_names
from retrain.project import Project
from retrain.registry import lineage, versions
from retrain.roots import Roots
from retrain.runs.records import LATEST
from retrain.search import LOCK as SEARCH_LOCK
from retrain.store import Store
from retrain.verify import leftovers

KEEP = 5  # runs of each flow and workload
DAY = 86400.0  # seconds; what was used or made since then stays
STAMP = len("20261123-150000-")  # before the name of a run's log


@dataclass(frozen=True)
class Garbage:
    """Something that nothing needs.

    Attributes:
        kind: `artifact`; `scratch` or `leftover`, of a run that was killed; `run`, the document of
            a run; `log`; `search`; `lock`, of an artifact that no longer exists; or `project`, what
            one that has vanished needed of the store.
        name: The step and the key; the flow, the workload and the run; or the path.
        bytes: The size of its files.
    """

    kind: str
    name: str
    bytes: int


# Something that can go, and what removes it; it is removed before the next one is looked for,
# while its lock is held.
Finding = tuple[Garbage, Callable[[], object]]


def collect(project: Project, keep: int = KEEP, *, dry_run: bool = False) -> list[Garbage]:
    """Removes what nothing needs.

    An artifact is needed if one of the last runs made or used it, if a registered version of a
    model was trained by it, if the champion or the reference came from it, if another project that
    uses the store needs it, or if a run of now or of the last day has used or made it.

    Args:
        project: The clone with the store and the runs.
        keep: How many runs of each flow and workload are kept. The runs under names that are not
            in `params.yaml` count together, and such a name goes with its last run.
        dry_run: Remove nothing.

    Returns:
        What was removed, or would be.

    Raises:
        UsageError: `keep` is less than one.
        mlflow.exceptions.MlflowException: The registry does not answer. Nothing was removed.
    """
    if keep < 1:
        raise UsageError("--keep: at least the last run is kept.")
    store, digests = Store(project.store), _registered_outputs(project, keep)
    collected: list[Garbage] = []

    def take(findings: Iterator[Finding]) -> None:
        for garbage, remove in findings:
            collected.append(garbage)
            if not dry_run:
                remove()

    take(_old_documents(project, keep))
    take(_logs(project, keep))
    take(_searches(project, keep))
    take(_vanished(project))
    if not dry_run:
        roots.replace(project, lambda: Roots(_taken(project, keep), digests))
    take(_artifacts(project, store, keep, digests))
    take(_leftovers(store))
    take(_locks(store))
    return collected


def _vanished(project: Project) -> Iterator[Finding]:
    for place, file in roots.of_vanished(project):
        yield Garbage("project", place, file.stat().st_size), _unlink(file)


def _artifacts(
    project: Project, store: Store, keep: int, digests: frozenset[str]
) -> Iterator[Finding]:
    from filelock import Timeout

    def needed() -> Roots:
        # The held ones come first: a run releases them after it has written its document.
        held = Roots(frozenset(store.held()))
        return held | Roots(_taken(project, keep), digests) | roots.of_others(project)

    def is_needed(step: str, key: str, roots_: Roots) -> bool:
        return (step, key) in roots_.outputs or digest in roots_.digests

    before = needed()
    for step, key in store.entries():
        digest = store.inspect(step, key)[0].get("digest")
        if is_needed(step, key, before):
            continue
        with suppress(Timeout), store.lock(step, key, wait=False):
            # Asked again: a run takes an artifact under this lock.
            if not is_needed(step, key, needed()) and not _is_recent(store.last_used(step, key)):
                size = size_of(store.folder(step, key))
                garbage = Garbage("artifact", f"{step} {key}", size)
                yield garbage, partial(store.discard, step, key)


def _leftovers(store: Store) -> Iterator[Finding]:
    from filelock import Timeout

    for left in leftovers(store):
        kind = "leftover" if left.path.name.startswith(".") else "scratch"
        with suppress(Timeout), store.lock(left.step, left.key, wait=False):
            if (left.step, left.key) in store.held():  # of a run that waits to try again
                continue
            # What was half published is of no use to anyone; checkpoints are.
            if kind == "leftover" or not _is_recent(store.last_used(left.step, left.key)):
                yield Garbage(kind, f"{left.step} {left.key}", size_of(left.path)), left.remove


def _locks(store: Store) -> Iterator[Finding]:
    from filelock import Timeout

    used = {*store.entries(), *((left.step, left.key) for left in store.leftovers())}
    for step, key in store.locks():
        if (step, key) in used:
            continue
        with suppress(Timeout), store.lock(step, key, wait=False):
            if not store.folder(step, key).exists():
                # A process that waits for the lock notices that the file was replaced.
                yield Garbage("lock", f"{step} {key}", 0), _unlink(store.lock_file(step, key))


def _logs(project: Project, keep: int) -> Iterator[Finding]:
    """The logs of old runs, counted as the runs are; those of servers have no time in the name."""
    known = _workloads(project)
    groups: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(project.logs.glob("[0-9]*-[0-9]*-*.log"), reverse=True):
        name = path.stem[STAMP:]
        flow, _, workload = name.partition("-")
        groups[name if workload in known else flow].append(path)
    for path in (path for group in groups.values() for path in group[keep:]):
        if not _is_recent(path.stat().st_mtime):
            yield Garbage("log", project.relative(path), path.stat().st_size), _unlink(path)


def _searches(project: Project, keep: int) -> Iterator[Finding]:
    """The trials of searches that none of the last runs made, and no process works at."""
    from filelock import Timeout

    kept = {
        document["search"]["key"]
        for group in _documents(project)
        for _, document in group[:keep]
        if document.get("search")
    }
    for folder in sorted((project.state / "searches").glob("*/*")):
        if any(key.startswith(folder.name) for key in kept):
            continue
        with suppress(Timeout), locked(folder / SEARCH_LOCK, wait=False):
            files = [path for path in folder.rglob("*") if path.suffix != ".lock"]
            if not _is_recent(max((path.stat().st_mtime for path in files), default=0)):
                garbage = Garbage("search", project.relative(folder), size_of(folder))
                yield garbage, partial(rmtree, folder)


def _unlink(path: Path) -> Callable[[], object]:
    return partial(path.unlink, missing_ok=True)


def _is_recent(time_: float) -> bool:
    return time() - time_ < DAY


def _workloads(project: Project) -> set[str]:
    return set(workload_names(project.params))


def _documents(project: Project) -> list[list[tuple[Path, dict[str, Any]]]]:
    """The documents of all runs, the last first, for each flow and workload.

    Those of a flow under names that are not in `params.yaml` are together.
    """
    known, runs = _workloads(project), project.state / "runs"
    groups: dict[tuple[str, str], list[tuple[Path, dict[str, Any]]]] = defaultdict(list)
    for path in runs.glob("*/*/*.json"):
        with suppress(FileNotFoundError):  # another gc has removed it
            document = json.loads(path.read_text(encoding="utf-8"))
            if path.stem == document.get("run") and "steps" in document:
                flow, name, _ = path.relative_to(runs).parts
                groups[flow, name if name in known else ""].append((path, document))
    return [
        sorted(group, key=lambda each: str(each[1]["time"]), reverse=True)
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


def _old_documents(project: Project, keep: int) -> Iterator[Finding]:
    known = _workloads(project)
    for group in _documents(project):
        for path, _ in group[keep:]:
            name = path.relative_to(project.state / "runs").with_suffix("").as_posix()
            yield Garbage("run", name, path.stat().st_size), _unlink(path)
            others = {each.name for each in path.parent.glob("*.json")} - {LATEST}
            if path.parent.name not in known and not others:
                (path.parent / LATEST).unlink(missing_ok=True)  # with it, the name


def _registered_outputs(project: Project, keep: int) -> frozenset[str]:
    """The digests of the trainings that are registered, and of what the opponents came from.

    The opponents are the champion and the reference. A model under a name that is not in
    `params.yaml` counts as long as one of its runs is kept.
    """
    scheme, _, path = project.tracking_uri.partition(":///")
    if scheme == "sqlite" and not Path(path).exists():
        return frozenset()
    names = _workloads(project)
    names |= {path.parent.name for group in _documents(project) for path, _ in group[:keep]}
    client, digests, token = tracking.client(project), set(), None
    while True:
        page = client.search_model_versions(max_results=1000, page_token=token)
        found = (each for each in page if each.name in names)
        digests |= {version.tags.get("retrain.train_digest") for version in found}
        token = page.token
        if not token:
            break
    for name in names:
        for find in (versions.champion, versions.reference):
            with suppress(ValueError):  # its lineage is gone or was changed, as `verify` says
                version = find(project, name)
                if version and (record := lineage.read(project, version)):
                    digests |= {made.digest for made in record.steps}
    return frozenset(digests - {None})


def size_of(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
