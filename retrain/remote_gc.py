"""Finds what no project needs in the remote store, for `retrain gc --remote`.

What was written in the last day stays, so that a run which is not recorded yet keeps what it makes.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from time import time
from typing import Any

from retrain import roots
from retrain.exchange import THREADS
from retrain.remote import Remote
from retrain.roots import Roots
from retrain.store import ROOTS

DAY = 86400.0  # seconds
SCRATCH_DAYS = 7


@dataclass(frozen=True)
class Garbage:
    """Something that nothing needs.

    Attributes:
        kind: `artifact`; `scratch` or `leftover`, of a run that was killed; `run`, the document of
            a run; `log`; or `remote`, of the remote store. For `retrain maintain` also `version`, a
            package and its example; `trial`, a run in MLflow; `search`, `drift`, `report`; or
            `copy`, of what MLflow has.
        name: The step and the key; the flow, the workload and the run; the version; or the path.
        bytes: The size of its files.
    """

    kind: str
    name: str
    bytes: int


# Something that can go, and what removes it; it is removed before the next one is looked for,
# while its lock is held.
Finding = tuple[Garbage, Callable[[], object]]


def findings(remote: Remote, own: Roots) -> Iterator[Finding]:
    """What can go from a remote store.

    An artifact is needed if the roots of a project name it, and a file if an artifact that stays
    has it. Leases go after a day, and the checkpoints of a training a week after the last one.

    Args:
        remote: The remote store.
        own: What this project needs; the other projects have published theirs.

    Raises:
        RemoteError: The remote store does not answer.
    """
    # By the clock of the remote, where this project has just published its roots.
    newest = max((written for _, _, written in remote.listed(ROOTS)), default=0.0)
    began = min(time(), newest)
    needed, since = own | roots.of_all(remote, began), began - DAY
    files = list(remote.listed("files"))  # before the manifests, which are written after them
    kept: set[str] = set()
    listed = list(remote.listed("artifacts"))
    with ThreadPoolExecutor(THREADS) as pool:
        manifests = list(pool.map(partial(_manifest, remote), [path for path, _, _ in listed]))
    for (path, size, written), manifest in zip(listed, manifests, strict=True):
        _, step, name = path.split("/")
        key = name.removesuffix(".json")
        is_needed = (step, key) in needed.outputs or manifest.get("digest") in needed.digests
        if is_needed or written > since:
            kept |= {file["sha256"] for file in manifest.get("files", ())}
        else:
            yield Garbage("remote", f"{step} {key}", size), partial(remote.delete, [path])
    unused = [file for file in files if file[2] < since and file[0].rpartition("/")[2] not in kept]
    if unused:
        paths = [path for path, _, _ in unused]
        garbage = Garbage("remote", f"{len(unused):,} files", sum(size for _, size, _ in unused))
        yield garbage, partial(_delete_files, remote, paths, began)
    if not remote.url.startswith("file:"):  # there they are locks, which may be held
        yield from _left(remote, "leases", since)
    yield from _left(remote, "scratch", began - SCRATCH_DAYS * DAY)


def _left(remote: Remote, folder: str, since: float) -> Iterator[Finding]:
    """The objects of works that have written nothing for long."""
    works: dict[str, list[tuple[str, int, float]]] = defaultdict(list)
    for found in remote.listed(folder):
        works["/".join(found[0].split("/")[:3])].append(found)
    for name, objects in works.items():
        if max(written for _, _, written in objects) < since:
            paths = [path for path, _, _ in objects]
            size = sum(size for _, size, _ in objects)
            yield Garbage("remote", name, size), partial(remote.delete, paths)


def _delete_files(remote: Remote, paths: Sequence[str], began: float) -> None:
    """Deletes files, and what was sent meanwhile and counted on them, to be sent anew."""
    remote.delete(paths)
    gone = {path.rpartition("/")[2] for path in paths}
    for path, _, written in remote.listed("artifacts"):
        if written > began - 60:  # the clocks may differ
            files = _manifest(remote, path).get("files", ())
            if gone & {file["sha256"] for file in files}:
                remote.delete([path])


def _manifest(remote: Remote, path: str) -> dict[str, Any]:
    """A manifest; empty if it is damaged or gone."""
    try:
        return dict(json.loads(remote.read(path) or "{}"))
    except ValueError:
        return {}
