"""The mirror behind the stores of several machines: S3, Google Cloud Storage, or a shared folder.

What one machine has made, the others take from here instead of making it again. Below the URL lies
`<step>/<key>/`, an output as in the store, whose manifest is written last.

The libraries take the endpoint and the credentials from the environment: `AWS_ENDPOINT_URL`,
`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_DEFAULT_REGION`; or
`GOOGLE_APPLICATION_CREDENTIALS`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from rich.markup import escape

from retrain.errors import MirrorError, UsageError, shorten
from retrain.file_io import sha256_of, write_json
from retrain.outputs import MANIFEST, parse_manifest
from retrain.runs import console

T = TypeVar("T")

AT_ONCE = 32  # files; the library may bring them side by side
OPTIONS: dict[str, dict[str, Any]] = {
    "file": {"auto_mkdir": True},
    "s3": {
        "config_kwargs": {  # the library itself tries again
            "connect_timeout": 5,
            "read_timeout": 60,
            "retries": {"max_attempts": 0},
        }
    },
}
_away: set[str] = set()  # the URLs that have not answered in this process


@dataclass(frozen=True)
class Mirror:
    """A mirror of stores. The record can be sent to other processes.

    Attributes:
        url: `s3://bucket/prefix`, `gs://bucket/prefix`, or `file:///folder`.
    """

    url: str

    def attempt(self, call: Callable[[], T]) -> T | None:
        """Calls what asks the mirror; None if it is away, which is told once.

        It is not asked again in this process then.
        """
        if self.url in _away:
            return None
        try:
            return call()
        except MirrorError as error:
            _away.add(self.url)
            console.say(
                escape(f"{error} This run goes on with what is here, and sends nothing there.")
            )
            return None

    def has(self, step: str, key: str) -> bool:
        """Whether the mirror has an output, as far as its manifest says.

        Raises:
            MirrorError: It does not answer, or refuses.
        """
        return self._manifest(step, key) is not None

    def fetch(self, step: str, key: str, folder: Path) -> bool:
        """Fetches an output whole, and compares each file with its SHA-256.

        Args:
            step: The step that made it.
            key: Its key.
            folder: An empty folder, where the manifest is written last.

        Returns:
            Whether it was there, whole and undamaged. If not, its manifest goes, so that it is sent
            anew.

        Raises:
            MirrorError: It does not answer, or refuses.
        """
        if (manifest := self._manifest(step, key)) is None:
            return False
        entries, place = manifest["files"], self._place(step, key)
        size = sum(entry["bytes"] for entry in entries)
        with self._answers() as files, console.counted(f"fetching {step}", size, "bytes") as show:
            with suppress(FileNotFoundError):
                for some, here, there in _batches(entries, folder, place):
                    files.get(there, here)
                    if any(
                        sha256_of(path, show) != entry["sha256"]
                        for path, entry in zip(here, some, strict=True)
                    ):
                        break
                else:
                    write_json(folder / MANIFEST, manifest)
                    return True
            files.rm_file(f"{place}/{MANIFEST}")
        return False

    def send(self, step: str, key: str, folder: Path) -> None:
        """Sends an output, if the mirror does not have it: all files, and then the manifest.

        Raises:
            MirrorError: It does not answer, or refuses.
        """
        if self.has(step, key):
            return
        manifest = parse_manifest((folder / MANIFEST).read_bytes(), key)
        assert manifest
        entries, place = manifest["files"], self._place(step, key)
        size = sum(entry["bytes"] for entry in entries)
        with self._answers() as files, console.counted(f"sending {step}", size, "bytes") as show:
            for some, here, there in _batches(entries, folder, place):
                files.put(here, there)
                show(sum(entry["bytes"] for entry in some))
            files.put_file(str(folder / MANIFEST), f"{place}/{MANIFEST}")

    def _manifest(self, step: str, key: str) -> dict[str, Any] | None:
        """The manifest of an output; None if there is none, or it is damaged."""
        with (
            self._answers() as files,
            suppress(FileNotFoundError, ValueError, KeyError, TypeError),
        ):
            return parse_manifest(files.cat_file(f"{self._place(step, key)}/{MANIFEST}"), key)
        return None

    def _place(self, step: str, key: str) -> str:
        return f"{self.url}/{step}/{key}"

    @contextmanager
    def _answers(self) -> Iterator[Any]:
        """Gives the files of fsspec; makes one kind of error of all that may happen."""
        try:
            yield _files(self.url)
        except ImportError as error:
            raise UsageError(f"store.remote: {self.url}: {error}.") from None
        except Exception as error:  # each library has errors of its own
            reason = shorten(str(error).partition("\n")[0] or type(error).__name__, 200)
            raise MirrorError(f"The remote store {self.url} does not answer: {reason}.") from error


def _batches(
    entries: Sequence[Mapping[str, Any]], folder: Path, place: str
) -> Iterator[tuple[Sequence[Mapping[str, Any]], list[str], list[str]]]:
    """Some files of an output at a time: their entries, and their places here and there."""
    for first in range(0, len(entries), AT_ONCE):
        some = entries[first : first + AT_ONCE]
        here = [str(folder / entry["path"]) for entry in some]
        yield some, here, [f"{place}/{entry['path']}" for entry in some]


@cache
def _files(url: str) -> Any:
    from fsspec.core import url_to_fs

    options = OPTIONS.get(url.partition("://")[0], {})
    files, _ = url_to_fs(url, skip_instance_cache=True, **options)
    return files
