"""Sends data under DVC from its remote to the remote store, by all machines of a cluster.

It is for a cluster whose machines share no disk. Each task takes the objects of some files from
DVC's remote, checks their MD5, and sends them on; the step learns their sizes and SHA-256. So the
data is never whole on one disk, and the output has the digest of a pull on one machine.
"""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from retrain import exchange
from retrain.atomic import write_json
from retrain.remote import Remote
from retrain.runs import console
from tasks.compute import spread
from tasks.compute.ray_data import map_units
from tasks.pull.transfer import inside, map_in_threads, reaching

T = TypeVar("T")

# A killed run loses the unfinished tasks, so they are short; a cluster has many of them at once.
MAX_FILES, TASKS = 1000, 256
# What a file costs one core, roughly: its requests, and its bytes on their way in and out.
SECONDS_PER_FILE, SECONDS_PER_BYTE = 5e-3, 10e-9


@dataclass(frozen=True)
class Objects:
    """The objects in a remote of DVC; the record can be sent to other machines.

    Attributes:
        database: What DVC reads the remote with; it has the settings and the login of the remote.
        place: The name of the remote and where it is, for errors.
    """

    database: Any
    place: str

    def get(self, name: str, md5: str, target: Path) -> None:
        """Downloads a file.

        Args:
            name: Its name in the data.
            md5: The MD5 (hex) of its content, which names the object.
            target: Where to; the folders above it are made.

        Raises:
            ConnectionError: The remote does not answer, or has no such object.
            OSError: The object is damaged.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        path = self.database.oid_to_path(md5)
        with reaching(
            f"The DVC remote {self.place} does not give {name}. Is it there, with the data pushed "
            "to it?"
        ):
            self.database.fs.get_file(path, str(target))
        with target.open("rb") as file:
            is_damaged = hashlib.file_digest(file, "md5").hexdigest() != md5.removesuffix(".dir")
        if is_damaged:
            target.unlink()
            raise OSError(
                f"The DVC remote {self.place} has a damaged object for {name}: delete "
                f"files/md5/{md5[:2]}/{md5[2:]} there and run dvc push where the data is whole."
            )


@dataclass(frozen=True)
class SendTask:
    """The files that one task sends.

    Attributes:
        files: The name in the data and the MD5 (hex) of each.
        record: The file about them, which the task writes: `path`, `bytes` and `sha256` of each,
            as a manifest has them.
    """

    files: Sequence[tuple[str, str]]
    record: Path


def send(
    objects: Objects, md5s: Mapping[str, str], size: float, remote: Remote, folder: Path
) -> Iterator[dict[str, Any]]:
    """Sends files to the remote store, except those that a killed run has sent.

    Args:
        objects: Where they are.
        md5s: The MD5 (hex) of each file, by its name in the data.
        size: The bytes of each, roughly.
        remote: The remote store.
        folder: The folder of the records, which remains after a kill.

    Yields:
        What the manifest of the output says of each file.

    Raises:
        OSError: An object of a file is damaged, or the remote of DVC or the remote store is away.
    """
    folder.mkdir(exist_ok=True)
    tasks = [SendTask(*piece) for piece in cut([*md5s.items()], folder)]
    records = [task.record for task in tasks]
    done = _believed(spread.made(records), folder, remote)
    missing = [task for task in tasks if task.record not in done]
    count = sum(len(task.files) for task in missing)
    with console.counted("sending the data", count, "files") as show:
        map_units(
            partial(_send_files, objects, remote),
            missing,
            seconds=(SECONDS_PER_FILE + SECONDS_PER_BYTE * size) * count,
            done=lambda task: show(len(task.files)),
            reads=lambda task: (),
            writes=lambda task: [task.record],
        )
    spread.receive(records, folder)
    for record in records:
        yield from json.loads(record.read_text(encoding="utf-8"))


def cut(files: Sequence[T], folder: Path) -> Iterator[tuple[Sequence[T], Path]]:
    """The files of each task, and the file in a folder that records what was sent of them."""
    step = min(MAX_FILES, -(-len(files) // TASKS))
    for first in range(0, len(files), step):
        yield files[first : first + step], folder / f"{first:09}.json"


def _believed(records: Collection[Path], folder: Path, remote: Remote) -> set[Path]:
    """Those of some records whose files the remote store still has."""
    spread.receive([*records], folder)
    has = partial(exchange.has, remote, patient=True)
    believed = set()
    for record in records:
        if all(map_in_threads(has, json.loads(record.read_text(encoding="utf-8")))):
            believed.add(record)
        else:
            record.unlink()
    return believed


def _send_files(objects: Objects, remote: Remote, task: SendTask) -> None:
    with TemporaryDirectory(dir=task.record.parent) as aside:

        def send_file(file: tuple[str, str]) -> dict[str, Any]:
            (name, md5), path = file, inside(Path(aside), file[0])
            objects.get(name, md5, path)
            entry = {"path": f"data/{name}", **exchange.send_file(remote, path)}
            path.unlink()
            return entry

        write_json(task.record, map_in_threads(send_file, task.files))
