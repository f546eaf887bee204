"""Finds and removes artifacts and records of runs that are no longer needed."""

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrain import tracking
from retrain.errors import UsageError
from retrain.project import Project
from retrain.store import Store
from retrain.verify import leftovers

KEEP = 5  # runs of each flow and workload


@dataclass(frozen=True)
class Garbage:
    """Something that nothing needs.

    Attributes:
        kind: `artifact`; `scratch` or `leftover`, of a run that was killed; `run`, the document of
            a run; or `lock`, of an artifact that no longer exists.
        name: The step and the key, or the flow, the workload and the run.
        bytes: The size of its files.
    """

    kind: str
    name: str
    bytes: int


def collect(project: Project, keep: int = KEEP, *, dry_run: bool = False) -> list[Garbage]:
    """Removes what nothing needs.

    An artifact is needed if one of the last runs made or used it, if a registered version of a
    model was made from it, or if a run in progress uses it. Only runs of this clone are known.

    Args:
        project: The clone with the store and the runs.
        keep: How many runs of each flow and workload are kept.
        dry_run: Remove nothing.

    Returns:
        What was removed, or would be.

    Raises:
        UsageError: `keep` is less than one.
        mlflow.exceptions.MlflowException: The registry does not answer. Nothing was removed.
    """
    if keep < 1:
        raise UsageError("--keep: at least the last run is kept.")
    store, registered = Store(project.store), _registered_outputs(project)
    garbage = list(_old_documents(project, keep, dry_run))
    garbage += _artifacts(project, store, keep, registered, dry_run)
    garbage += _leftovers(store, dry_run)
    return garbage + list(_locks(store, dry_run))


def _artifacts(
    project: Project, store: Store, keep: int, registered: set[str], dry_run: bool
) -> Iterator[Garbage]:
    from filelock import Timeout

    for step, key in store.entries():
        with suppress(Timeout), store.lock(step, key, wait=False):
            # Both are read again: a run takes an artifact under this lock. The held ones come
            # first, because a run releases them after it has written its document.
            if (step, key) in store.held() | _taken(project, keep):
                continue
            if store.inspect(step, key)[0].get("digest") in registered:
                continue
            yield Garbage("artifact", f"{step} {key}", size_of(store.folder(step, key)))
            if not dry_run:
                store.discard(step, key)


def _leftovers(store: Store, dry_run: bool) -> Iterator[Garbage]:
    from filelock import Timeout

    for left in leftovers(store):
        kind = "leftover" if left.path.name.startswith(".") else "scratch"
        with suppress(Timeout), store.lock(left.step, left.key, wait=False):
            yield Garbage(kind, f"{left.step} {left.key}", size_of(left.path))
            if not dry_run:
                left.remove()


def _locks(store: Store, dry_run: bool) -> Iterator[Garbage]:
    from filelock import Timeout

    used = {*store.entries(), *((left.step, left.key) for left in store.leftovers())}
    for step, key in store.locks():
        if (step, key) in used:
            continue
        with suppress(Timeout), store.lock(step, key, wait=False):
            if not store.folder(step, key).exists():
                yield Garbage("lock", f"{step} {key}", 0)
                if not dry_run:
                    # A process that waits for the lock notices that the file was replaced.
                    store.lock_file(step, key).unlink(missing_ok=True)


def _documents(project: Project) -> list[list[tuple[Path, dict[str, Any]]]]:
    """The documents of all runs, the last first, for each flow and workload."""
    groups: dict[Path, list[tuple[Path, dict[str, Any]]]] = defaultdict(list)
    for path in (project.state / "runs").rglob("*.json"):
        with suppress(FileNotFoundError):  # another gc has removed it
            document = json.loads(path.read_text(encoding="utf-8"))
            if path.stem == document.get("run") and "steps" in document:
                groups[path.parent].append((path, document))
    return [
        sorted(group, key=lambda each: str(each[1]["time"]), reverse=True)
        for _, group in sorted(groups.items())
    ]


def _taken(project: Project, keep: int) -> set[tuple[str, str]]:
    """The step and the key of all outputs of the last runs."""
    return {
        (step["step"], step["key"])
        for group in _documents(project)
        for _, document in group[:keep]
        for step in document["steps"]
    }


def _old_documents(project: Project, keep: int, dry_run: bool) -> Iterator[Garbage]:
    for group in _documents(project):
        for path, _ in group[keep:]:
            name = path.relative_to(project.state / "runs").with_suffix("").as_posix()
            yield Garbage("run", name, path.stat().st_size)
            if not dry_run:
                path.unlink()


def _registered_outputs(project: Project) -> set[str]:
    """The digests of the trainings that are registered as versions of a model."""
    scheme, _, path = project.tracking_uri.partition(":///")
    if scheme == "sqlite" and not Path(path).exists():
        return set()
    client, digests, token = tracking.client(project), set(), None
    while True:
        page = client.search_model_versions(max_results=1000, page_token=token)
        digests |= {version.tags.get("retrain.train_digest") for version in page}
        token = page.token
        if not token:
            return digests - {None}


def size_of(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
