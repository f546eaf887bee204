"""What each project needs of a shared store, so that `retrain gc` of another one leaves it there.

The roots of a project are a file in the store. Each run adds the outputs that it used or made, and
`gc` writes the file anew, with what is still needed. They end with `retrain gc` in the project; or
`DAYS` after its last run, if the project has vanished. With a remote store, they are published
there, for the projects of other machines.
"""

import json
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import time

from retrain.atomic import write_json
from retrain.locks import locked
from retrain.project import Project
from retrain.remote import Remote
from retrain.store import ROOTS, Store

DAYS = 90


@dataclass(frozen=True)
class Roots:
    """What a project needs.

    Attributes:
        outputs: The step and the key of each output that is needed.
        digests: The digests of outputs that are needed whatever their key is.
    """

    outputs: frozenset[tuple[str, str]] = frozenset()
    digests: frozenset[str] = frozenset()

    def __or__(self, other: "Roots") -> "Roots":
        return Roots(self.outputs | other.outputs, self.digests | other.digests)


def add(project: Project, outputs: Iterable[tuple[str, str]]) -> None:
    """Adds outputs to the roots of a project; without any, the roots begin to age anew."""
    added = frozenset(outputs)
    with _locked(project) as file:
        _write(project, file, _read(file) | Roots(added), publish=bool(added))


def replace(project: Project, find: Callable[[], Roots]) -> None:
    """Writes the roots of a project anew.

    Args:
        project: The clone.
        find: Finds the roots; no run of the project adds any meanwhile.
    """
    with _locked(project) as file:
        _write(project, file, find(), publish=True)


def of_others(project: Project) -> Roots:
    """The roots of the other projects that use the store."""
    roots, own_file = Roots(), _file(project)
    for file in own_file.parent.glob("*.json"):
        if file != own_file and time() - file.stat().st_mtime < DAYS * 86400:
            roots |= _read(file)
    return roots


@contextmanager
def _locked(project: Project) -> Iterator[Path]:
    project.state.mkdir(parents=True, exist_ok=True)
    with locked(project.state / ".roots.lock"):
        file = _file(project)
        file.parent.mkdir(parents=True, exist_ok=True)
        yield file


def _file(project: Project) -> Path:
    """The file of a project, by an id that a copy of the project does not share."""
    path = project.state / "id.json"
    identity = {}
    with suppress(FileNotFoundError):
        identity = json.loads(path.read_text(encoding="utf-8"))
    if identity.get("project") != str(project.root):
        identity = {"project": str(project.root), "id": secrets.token_hex(8)}
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, identity)
    return project.store / ROOTS / f"{identity['id']}.json"


def of_all(remote: Remote, now: float) -> Roots:
    """The roots of all projects that have published theirs.

    Args:
        remote: The remote store.
        now: Seconds since the epoch.

    Raises:
        RemoteError: The remote store does not answer.
    """
    roots = Roots()
    for path, _, published in remote.listed(ROOTS):
        if now - published < DAYS * 86400:
            roots |= _parse(remote.read(path))
    return roots


def _read(file: Path) -> Roots:
    return _parse(file.read_bytes() if file.exists() else None)


def _parse(content: bytes | None) -> Roots:
    if content is None:
        return Roots()
    values = json.loads(content)
    return Roots(frozenset(map(tuple, values["outputs"])), frozenset(values["digests"]))


def _write(project: Project, file: Path, roots: Roots, *, publish: bool) -> None:
    fields = {"outputs": sorted(roots.outputs), "digests": sorted(roots.digests)}
    write_json(file, {"project": str(project.root), **fields})
    published = project.state / ".roots.published"
    # A run that has nothing to do asks no network, but for once in a while.
    is_old = not published.exists() or time() - published.stat().st_mtime > DAYS / 3 * 86400
    remote = Store.of(project).remote
    if remote and (publish or is_old):
        content = file.read_bytes()

        def send() -> None:
            remote.write(f"{ROOTS}/{file.name}", content)
            published.touch()

        remote.attempt(send)
