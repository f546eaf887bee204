"""The files of the data by name, with their content here or in the remote store."""

import json
import zlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any
from uuid import uuid4

from retrain import exchange
from retrain.outputs import MANIFEST
from retrain.remote import Remote
from retrain.store import Artifact, Store
from tasks.data.listing import has_split_folders, is_below_a_split, is_hidden, list_files
from tasks.data.room import make_room

CHUNK = 4096  # files that are packed together
THREADS = 8
FETCHED_SHARE = 0.01  # of the data, after which a process looks at the room that is left

Entry = tuple[str, int, str]  # a file's name, bytes and SHA-256


@dataclass(frozen=True)
class Files:
    """The files of a folder; or of an output of `pull`, whose content may be in the remote store.

    Then their names and sizes are those of the output's manifest, and each machine fetches what is
    opened there.

    Attributes:
        root: The folder.
        pulled: The output of `pull`, of which it is the folder `data`, if the remote store has it.
    """

    root: Path
    pulled: Artifact | None = field(default=None, compare=False)

    def __reduce__(self) -> Any:
        return Files, (self.root, self.pulled)  # other machines read the manifest themselves

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """Each file's name with `/` and its bytes, in order of the names; no hidden ones."""
        if self.pulled is None:
            return list_files(self.root)
        entries = (entry for chunk in range(len(self._chunks)) for entry in self._unpack(chunk))
        return ((name, size) for name, size, _ in entries if not is_hidden(name))

    @property
    def manifest(self) -> Path:
        """The manifest of the output, with which a machine fetches the rest itself."""
        return self.root.parent / MANIFEST

    def digests(self, names: Iterable[str]) -> dict[str, str]:
        """SHA-256 (hex) of some files of an output of `pull`, by their names."""
        return {name: sha256 for name, _, sha256 in self._entries(names)}

    def have_split_folders(self) -> bool:
        """Whether the class folders lie in folders that are named as splits."""
        if self.pulled is None:
            return has_split_folders(self.root)
        return any(is_below_a_split(name) for name, _ in self)

    def path(self, name: str) -> Path:
        """A file on this machine, which is fetched if it is not here."""
        self.fetch([name])
        return self.root / name

    def fetch(self, names: Iterable[str]) -> None:
        """Brings files from the remote store that are not here; several processes bring each once.

        Raises:
            DamagedArtifactError: One has changed in the remote store, or is gone there.
            RemoteError: The remote store does not answer.
        """
        if missing := self.missing(names):
            with ThreadPoolExecutor(THREADS) as pool:
                self._fetched.append(sum(pool.map(self._receive, self._entries(missing))))
            if sum(self._fetched) > FETCHED_SHARE * self._total:
                self._fetched.clear()
                make_room(self.root, self._total)

    def missing(self, names: Iterable[str]) -> list[str]:
        """Those of some files that are not on this machine and can be fetched."""
        if self.pulled is None:
            return []
        return [name for name in names if not (self.root / name).exists()]

    @cached_property
    def _fetched(self) -> list[int]:
        """The bytes that have been fetched since the last look at the room, a number each time."""
        return []

    @cached_property
    def _total(self) -> int:
        return sum(size for _, size in self)

    @cached_property
    def _store(self) -> Store:
        assert self.pulled
        assert self.pulled.remote
        return Store(self.pulled.folder.parents[1], Remote(self.pulled.remote))

    @cached_property
    def _chunks(self) -> list[tuple[str, bytes]]:
        """The first name of each chunk and its packed entries: 60 bytes for a file, not 400."""
        if not self.manifest.exists():  # on another machine than the run's
            assert self.pulled
            self._store.fetch(self.pulled, lambda path: False)
        text = self.manifest.read_text(encoding="utf-8")
        above = f"{self.root.name}/"
        entries = (
            (file["path"].removeprefix(above), file["bytes"], file["sha256"])
            for file in _listed(text)
            if file["path"].startswith(above)
        )
        chunks = []
        while chunk := list(islice(entries, CHUNK)):
            chunks.append((chunk[0][0], zlib.compress(json.dumps(chunk).encode(), level=1)))
        return chunks

    def _unpack(self, chunk: int) -> list[Entry]:
        entries: list[Entry] = json.loads(zlib.decompress(self._chunks[chunk][1]))
        return entries

    def _entries(self, names: Iterable[str]) -> Iterator[Entry]:
        """What the manifest says of some files; nothing of those that it does not have."""
        wanted = defaultdict(set)
        for name in names:
            after = bisect_right(self._chunks, name, key=itemgetter(0))
            wanted[max(0, after - 1)].add(name)
        for chunk, inside in wanted.items():
            yield from (entry for entry in self._unpack(chunk) if entry[0] in inside)

    def _receive(self, entry: Entry) -> int:
        """Brings a file, if no other process has done so; returns its bytes."""
        name, size, sha256 = entry
        assert self.pulled
        assert self._store.remote
        step, key = self.pulled.step, self.pulled.key
        # A lock for each file would leave a file for each.
        with self._store.lock(step, f"{key}-{sha256[:2]}"):
            if (self.root / name).exists():
                return 0
            file = {"path": f"{self.root.name}/{name}", "bytes": size, "sha256": sha256}
            aside = self.pulled.folder.with_name(f".{key}.{uuid4().hex}.partial")
            damage = exchange.receive(self._store.remote, [file], self.pulled.folder, aside)
        if damage:
            self._store.fetch(self.pulled, file["path"].__eq__)  # withdraws it
        return size


def _listed(manifest: str) -> Iterator[dict[str, Any]]:
    """The files in the text of a manifest, one at a time: a million of them take 400 MB."""
    decode = json.JSONDecoder().raw_decode
    at = manifest.index("[", manifest.index('\n "files":'))
    while True:
        begin = manifest.index("{", at)  # of the plan, after the last file
        if "]" in manifest[at:begin]:
            return
        file, at = decode(manifest, begin)
        yield file
