"""Spreads work over the machines of a cluster that do not see the store of the run.

They take what a unit reads from the remote store, and send there what it writes; `machine.py` is
their side. Of each file that was sent, the run gets a record, `<name>.sent`, in the scratch where
the file itself would be, so that a run which was killed goes on.
"""

import json
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from rich.markup import escape

from retrain import exchange
from retrain.atomic import write_json
from retrain.errors import DamagedArtifactError, RemoteError
from retrain.outputs import MANIFEST
from retrain.project import find_project
from retrain.remote import Remote
from retrain.runs import console
from retrain.servers import machines, ray_cluster
from retrain.step import Workspace
from retrain.store import Artifact, Store
from retrain.workload import Workload
from tasks.compute import machine
from tasks.data.listing import link_file

T = TypeVar("T")
R = TypeVar("R")
# The files of a unit: of artifacts, or of the scratch.
Paths = Callable[[T], Iterable[Path]]


def is_lazy() -> bool:
    """Whether the files of units are fetched when units need them, and not before the step."""
    return ray_cluster.is_remote() and _store().remote is not None


def fetching(*steps: str) -> Callable[[Workload], dict[str, tuple[str, ...]]]:
    """The `opens` of a step that itself fetches what it needs of the outputs of others."""
    return lambda workload: dict.fromkeys(steps, ()) if is_lazy() else {}


def _store() -> Store:
    return Store.of(find_project())


def is_apart() -> bool:
    """Whether the machines of a cluster have to exchange files through the remote store."""
    return is_lazy() and not machines.machines_share_the_store()


def place(is_free: bool) -> dict[str, Any]:
    """Where the work of a plan runs: anywhere, or here where no other machine sees the files.

    Args:
        is_free: Whether it is known which files the work reads, so that others can fetch them.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    if not ray_cluster.is_remote() or machines.machines_share_the_store():
        return {}
    if is_free and is_lazy():
        return {}
    _say_that_it_stays(is_free)
    here = ray.get_runtime_context().get_node_id()
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=False)}


@cache
def _say_that_it_stays(is_free: bool) -> None:
    store = escape(str(find_project().store))
    if is_free:
        console.say(
            "Only this machine of the cluster does the work before and after a training: the "
            f"others do not see the store in {store}. Set store.remote to an object store, such as "
            "s3://bucket/prefix, or RETRAIN_STORE to a folder that all machines see."
        )
    else:
        console.say(
            "Only this machine of the cluster reads the input: the others do not see the store in "
            f"{store}. They would help if RETRAIN_STORE and the input were where all see them."
        )


def bring(units: Iterable[T], reads: Paths[T] | None) -> None:
    """Fetches to this machine what units read, if the step has not done so."""
    if reads and is_lazy():
        machine.bring(_store(), dict.fromkeys(path for unit in units for path in reads(unit)))


def packed(function: Any) -> tuple[str, bytes]:
    """The URL of the remote store, and a function as `machine.Errands` takes it."""
    project = find_project()
    assert project.store_remote
    return project.store_remote, machine.pack(function, project)


def errands(units: Iterable[T], reads: Paths[T], writes: Paths[T]) -> list[bytes]:
    """The units as `machine.Errands` takes them; the remote store has what they read.

    Raises:
        RemoteError: It cannot be sent there.
    """
    project, store = find_project(), _store()
    assert store.remote
    sent: set[tuple[str, str]] = set()
    own: dict[Path, dict[str, Any]] = {}  # files of the scratch, and what was sent of them
    errands = []
    for unit in units:
        paths = list(reads(unit))
        for path in paths:
            step, key, _ = path.relative_to(store.root).as_posix().split("/", 2)
            if not (store.folder(step, key) / MANIFEST).exists():
                own[path] = own.get(path) or exchange.send_file(store.remote, path)
            elif (step, key) not in sent:
                send(store, step, key)
                sent.add((step, key))
        copies = [(path, own[path]) for path in paths if path in own]
        artifacts = [path for path in paths if path not in own]
        errands.append(machine.pack((unit, artifacts, copies, list(writes(unit))), project))
    return errands


def send(store: Store, step: str, key: str) -> None:
    """Makes sure that the remote store has an artifact.

    Raises:
        RemoteError: It cannot be sent there.
    """
    with store.lock(step, key):
        store.push(step, key)
        if not store.can_fetch(store.inspect(step, key)[0]):
            assert store.remote
            raise RemoteError(f"The output of {step} could not be sent to {store.remote.url}.")


def recorded(
    mapped: Generator[tuple[R, Sequence[Any]]], units: Iterable[T], writes: Paths[T]
) -> Generator[R]:
    """Records what other machines have sent of each unit; yields the results alone.

    Raises:
        DamagedArtifactError: A file has changed in the remote store, or is gone there; the artifact
            has to be made again.
    """
    try:
        with closing(mapped):
            for unit, (result, sent) in zip(units, mapped, strict=True):
                for path, entry in zip(writes(unit), sent, strict=True):
                    write_json(_record(path), entry)
                yield result
    except DamagedArtifactError as error:
        store = _store()
        with store.lock(error.step, error.key):
            store.discard(error.step, error.key)
        raise


def _record(path: Path) -> Path:
    return path.with_name(f"{path.name}.sent")


def made(paths: Sequence[Path]) -> set[Path]:
    """Those of some files of a scratch that are here, or were sent to the remote store.

    A record counts only if the remote store still has the content.
    """
    here = {path for path in paths if path.exists()}
    sent = [path for path in paths if path not in here and _record(path).exists()]
    if not sent or (remote := _store().remote) is None:
        return here
    with ThreadPoolExecutor(exchange.THREADS) as pool:
        has = pool.map(lambda path: exchange.has(remote, _entry(path), patient=True), sent)
        return here | {path for path, is_there in zip(sent, has, strict=True) if is_there}


def _entry(path: Path) -> dict[str, Any]:
    entry: dict[str, Any] = json.loads(_record(path).read_text(encoding="utf-8"))
    return entry


def add(file: Path, workspace: Workspace, path: str) -> None:
    """Adds a file of the scratch to a step's output, wherever its content is.

    Args:
        file: The file; `made` has found it.
        workspace: The workspace of the step.
        path: Its path in the output.
    """
    if file.exists():
        # Should this run be killed before the output is published, the next finds it.
        link_file(file, workspace.folder / path)
    else:
        workspace.sent.append({"path": path} | _entry(file))


def pass_on(source: Artifact, begin: str, workspace: Workspace, above: str) -> None:
    """Adds files of an input to a step's output, wherever their content is.

    Args:
        source: The input.
        begin: What the paths of the files in it begin with.
        workspace: The workspace of the step.
        above: The folder for them in the output: it comes before their paths.
    """
    for path in source.folder.glob(f"{begin}*"):
        link_file(path, workspace.folder / above / path.relative_to(source.folder))
    if source.remote:
        for entry in _store().inspect(source.step, source.key)[0]["files"]:
            path = source.folder / entry["path"]
            if entry["path"].startswith(begin) and not path.exists():
                workspace.sent.append(entry | {"path": f"{above}{entry['path']}"})


def receive(files: Sequence[Path], folder: Path) -> None:
    """Fetches files of a scratch folder whose content is in the remote store.

    Raises:
        RemoteError: The remote store does not answer, or has lost one: it is to be made again.
    """
    missing = [
        {"path": file.relative_to(folder).as_posix()} | _entry(file)
        for file in files
        if not file.exists()
    ]
    if missing:
        remote = _store().remote
        assert isinstance(remote, Remote)
        damage = exchange.receive(remote, missing, folder, folder / ".partial")
        if damage:
            raise RemoteError(damage)
