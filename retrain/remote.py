"""The object store behind the stores of all machines: S3, Google Cloud Storage, or a shared folder.

What one machine has made, the others find here. Below the URL lie `files/<2 hex>/<sha256>`, the
content of all files; `artifacts/<step>/<key>.json`, the manifests, each written after its files;
`leases/<step>/<key>`, which machine makes what; `roots/<project>.json`, what each project needs;
and `scratch/`, the checkpoints of trainings on a cluster.

The library takes the endpoint and the credentials from the environment: `AWS_ENDPOINT_URL`,
`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`; `GOOGLE_APPLICATION_CREDENTIALS`.
"""

import hashlib
import json
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import url2pathname

from rich.markup import escape

from retrain.errors import RemoteError
from retrain.faults import shorten
from retrain.locks import AGAIN_SECONDS, locked, signature
from retrain.runs import console

if TYPE_CHECKING:
    from obstore.store import ObjectStore

T = TypeVar("T")

PIECE = 4 << 20  # bytes that are read at a time
AWAY_SECONDS = 30.0  # after a failure the remote is not asked for so long, where it can be spared
BEAT_SECONDS = 15.0  # between two heartbeats of a lease
TAKEOVER_SECONDS = 60.0  # without a heartbeat
POLL_SECONDS = 2.0  # between two looks of a machine that waits for a lease

_away: dict[str, float] = {}  # by URL, until when the remote is not asked


@dataclass(frozen=True)
class Remote:
    """An object store. The record can be sent to other processes.

    Attributes:
        url: `s3://bucket/prefix`, `gs://bucket/prefix`, or `file:///folder`.
    """

    url: str

    def read(self, path: str, *, patient: bool = False) -> bytes | None:
        """The content of a small object; None if there is none.

        Args:
            path: Its path below the URL.
            patient: Wait for minutes for a remote that is away, because nothing goes on without.

        Raises:
            RemoteError: The remote does not answer, or refuses.
        """
        import obstore

        with self._answers(), suppress(FileNotFoundError):
            return bytes(obstore.get(_client(self.url, patient), path).bytes())
        return None

    def write(self, path: str, content: bytes | Path, *, patient: bool = False) -> None:
        """Writes an object, from bytes or a file, in place of another one.

        Args:
            path: Its path below the URL.
            content: What is written.
            patient: As in `read`; always so with a file.

        Raises:
            RemoteError: The remote does not answer, or refuses.
        """
        import obstore

        with self._answers():
            obstore.put(_client(self.url, patient or isinstance(content, Path)), path, content)

    def size(self, path: str, *, patient: bool = False) -> int | None:
        """The bytes of an object; None if there is none. The arguments are those of `read`.

        Raises:
            RemoteError: The remote does not answer, or refuses.
        """
        import obstore

        with self._answers(), suppress(FileNotFoundError):
            return obstore.head(_client(self.url, patient), path)["size"]
        return None

    def download(self, path: str, file: Path, show: Callable[[int], object]) -> str | None:
        """Writes an object to a file, and waits for minutes for a remote that is away.

        Args:
            path: Its path below the URL.
            file: The file.
            show: Called with the number of the bytes of each piece.

        Returns:
            SHA-256 (hex) of what was read; None if there is no such object.

        Raises:
            RemoteError: The remote does not answer, or refuses.
        """
        import obstore

        digest = hashlib.sha256()
        with self._answers(), suppress(FileNotFoundError), file.open("wb") as sink:
            for piece in obstore.get(_client(self.url, patient=True), path).stream(PIECE):
                digest.update(piece)
                sink.write(piece)
                show(len(piece))
            return digest.hexdigest()
        return None

    def delete(self, paths: Iterable[str]) -> None:
        """Deletes objects; it does not matter whether they are there.

        Raises:
            RemoteError: The remote does not answer, or refuses.
        """
        import obstore

        with self._answers(), suppress(FileNotFoundError):
            obstore.delete(_client(self.url), list(paths))

    def listed(self, folder: str) -> Iterator[tuple[str, int, float]]:
        """The path, the bytes and the time (seconds since the epoch) of each object of a folder.

        Raises:
            RemoteError: The remote does not answer, or refuses.
        """
        import obstore

        with self._answers():
            for chunk in obstore.list(_client(self.url), f"{folder}/"):
                for found in chunk:
                    yield found["path"], found["size"], found["last_modified"].timestamp()

    def attempt(self, call: Callable[[], T]) -> T | None:
        """Calls what asks the remote; None if it is away, which is told once.

        It is not asked again for a while then.
        """
        if monotonic() < _away.get(self.url, 0.0):
            return None
        try:
            return call()
        except RemoteError as error:
            if self.url not in _away:
                console.say(
                    escape(f"{error} Until it answers, the work goes on with what is here, and is ")
                    + "sent later."
                )
            _away[self.url] = monotonic() + AWAY_SECONDS
            return None

    @contextmanager
    def lease(self, name: str, purpose: str) -> Iterator[None]:
        """Holds a lease, so that only one of two machines does a work.

        While it lasts, a thread writes a heartbeat. A machine that waits takes the lease over when
        no heartbeat has come for `TAKEOVER_SECONDS` of its own clock. If the remote is away, the
        work is done without: it may be done twice then, with the same outcome.

        Args:
            name: The name of the work.
            purpose: The sentence for people about a wait, to which the other process is added.
        """
        path = f"leases/{name}"
        if self.url.startswith("file:"):
            file = _folder(self.url) / path
            file.parent.mkdir(parents=True, exist_ok=True)
            with locked(file, purpose=purpose):
                yield
            return
        lease = _Lease(self, path)
        if not self.attempt(lambda: lease.acquire(purpose)):
            yield
            return
        ended = threading.Event()
        beating = threading.Thread(target=lease.beat, args=(ended,), daemon=True)
        beating.start()
        try:
            yield
        finally:
            ended.set()
            beating.join()
            self.attempt(lease.release)

    @contextmanager
    def _answers(self) -> Iterator[None]:
        """Makes one kind of error of all that may happen, without what only programmers read."""
        from obstore.exceptions import (
            AlreadyExistsError,
            BaseError,
            PermissionDeniedError,
            PreconditionError,
            UnauthenticatedError,
        )

        try:
            yield
        except (AlreadyExistsError, PreconditionError):
            raise
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise RemoteError(f"The remote store {self.url} refuses the credentials.") from error
        except FileNotFoundError as error:  # of something that is written
            raise RemoteError(f"The remote store {self.url} is not there: make it.") from error
        except BaseError as error:
            reason = shorten(str(error).partition("\n")[0], 200)
            raise RemoteError(f"The remote store {self.url} does not answer: {reason}.") from error


class _Lease:
    """A lease of this process on a work."""

    def __init__(self, remote: Remote, path: str) -> None:
        self._remote, self._path = remote, path
        self._token, self._beats, self._holder = secrets.token_hex(8), 0, signature()
        self._version: Any = None  # of the object, as the last write has left it

    def acquire(self, purpose: str) -> bool:
        """Waits until no other process has it, which is told from time to time; returns True."""
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        seen, since, told = "", monotonic(), monotonic() - AGAIN_SECONDS + console.QUIET_SECONDS
        while True:
            with suppress(AlreadyExistsError):
                self._write("create")
                return True
            found = self._read()
            if found is None:
                continue
            version, other = found
            if other["token"] == self._token:  # its answer was lost
                self._version = version
                return True
            if version["e_tag"] != seen:
                seen, since = version["e_tag"], monotonic()
            elif monotonic() - since > TAKEOVER_SECONDS:
                with suppress(PreconditionError, RemoteError):  # another process was faster
                    self._write(version)
                    return True
            if monotonic() - told > AGAIN_SECONDS:
                told = monotonic()
                console.say(escape(f"{purpose}: {other['holder']}."))
            sleep(POLL_SECONDS)

    def beat(self, ended: threading.Event) -> None:
        """Writes heartbeats until the work has ended, or another process has taken it over."""
        from obstore.exceptions import PreconditionError

        while not ended.wait(BEAT_SECONDS):
            with suppress(RemoteError):
                try:
                    self._write(self._version)
                except PreconditionError:
                    found = self._read()
                    if found is None or found[1]["token"] != self._token:
                        return
                    self._version = found[0]  # the answer to an earlier one was lost

    def release(self) -> None:
        """Deletes the lease, unless another process has it."""
        found = self._read()
        if found and found[1]["token"] == self._token:
            self._remote.delete([self._path])

    def _write(self, mode: Any) -> None:
        import obstore

        self._beats += 1
        if isinstance(mode, dict):  # the library takes no None
            mode = {name: value for name, value in mode.items() if value}
        fields = {"token": self._token, "beats": self._beats, "holder": self._holder}
        client, content = _client(self._remote.url), json.dumps(fields).encode()
        with self._remote._answers():
            self._version = obstore.put(client, self._path, content, mode=mode)

    def _read(self) -> tuple[Any, dict[str, Any]] | None:
        import obstore

        with self._remote._answers(), suppress(FileNotFoundError):
            found = obstore.get(_client(self._remote.url), self._path)
            version = {name: found.meta[name] for name in ("e_tag", "version")}
            return version, json.loads(bytes(found.bytes()))
        return None


def _folder(url: str) -> Path:
    return Path(url2pathname(urlsplit(url).path))


@cache
def _client(url: str, patient: bool = False) -> "ObjectStore":
    """The library's client; a patient one waits for three minutes for a remote that is away."""
    from obstore.store import from_url

    if url.startswith("file:"):
        return from_url(url, mkdir=True)
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
    return from_url(
        url,
        client_options={
            "allow_http": endpoint.startswith("http://"),
            "connect_timeout": timedelta(seconds=3),
            "read_timeout": timedelta(seconds=30 if patient else 5),
            "timeout": timedelta(hours=1) if patient else timedelta(seconds=10),
        },
        retry_config={
            "max_retries": 1000 if patient else 2,  # a server that is busy answers at once
            "retry_timeout": timedelta(seconds=180 if patient else 10),
            "backoff": {"max_backoff": timedelta(seconds=5)},
        },
    )
