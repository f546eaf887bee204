"""Fetches data under DVC: the folder `data/`, whose version is in `data.dvc`."""

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any

from retrain.errors import UsageError, without_login
from retrain.params import parse_yaml
from retrain.project import Project
from retrain.runs import console
from retrain.step import digest_of
from tasks.data.listing import link_file, list_files
from tasks.pull.file_sources import inside, map_in_threads, reaching

ADD_REMOTE = "DVC has no default remote: dvc remote add -d NAME URL"
DIFFERS = (
    "data/ differs from data.dvc, and the run uses the version of data.dvc: dvc add data to use "
    "what is there."
)
MAX_COMPARED = 100_000  # files, which takes a second


@dataclass(frozen=True)
class DvcSource:
    """A part of the folder `data/`, which `data.dvc` pins.

    DVC's cache gets what it lacks, by DVC's own means but without its lock: an object is written
    under its hash once it is complete, so a `dvc push` beside it does no harm. The working tree's
    `data/` is not changed.

    Attributes:
        project: The clone.
        part: Relative to `data/`; `.` for all of it.
        revision: The git revision whose `data.dvc` is used; None is the working tree.
    """

    project: Project
    part: PurePath
    revision: str | None

    def digest(self) -> str:
        """DVC's hash of `data/`, an MD5 (hex) with the suffix `.dir`.

        Of a part it is SHA-256 (hex) over the names and hashes of its files, so that what changes
        beside it is no new version of it. That takes DVC's listing of `data/`, from its cache.

        Raises:
            UsageError: Nothing is pinned, or the part is not in it.
            OSError: The listing is not in the cache, and the remote does not give it.
        """
        return self.pin() if self.part == PurePath() else digest_of(self._files())

    def pin(self) -> str:
        """DVC's hash of all of `data/`."""
        return str(self._pinned["md5"])

    def warning(self) -> str | None:
        """A sentence if the working tree's `data/` visibly differs from the pinned version.

        The names of the part's files are compared, and the size of all of `data/` if it has no
        other names elsewhere; a change that keeps both is not seen. A missing folder, one with too
        many files, and data at another revision count as equal.
        """
        folder, pinned = self.project.root / "data", self._pinned
        too_many = pinned.get("nfiles", 0) > MAX_COMPARED
        if self.revision is not None or too_many or not folder.is_dir():
            return None
        try:
            sizes, listed = dict(list_files(folder, hidden=True)), self._listing
        except OSError:  # the remote is away, and `pull` says so if it is needed
            return None
        except ValueError:  # a file that DVC does not take
            return DIFFERS
        is_other = self._below(sizes).keys() != self._below(listed).keys()
        is_resized = sizes.keys() == listed.keys() and sum(sizes.values()) != pinned.get("size")
        return DIFFERS if sizes and (is_other or is_resized) else None

    def uncommitted(self) -> str | None:
        """A sentence if nobody else can know of this version of the data; else None."""
        is_pinned_here = self.revision is None and self.project.commit is not None
        if is_pinned_here and self.project.git("status", "--porcelain", "--", "data.dvc"):
            return (
                "data.dvc is not committed, so nobody else knows of this version of the data: git "
                "add data.dvc, git commit."
            )
        return None

    def fetch(self, digest: str, folder: Path, scratch: Path) -> None:
        """Links to DVC's cache, after what is missing there was fetched from the remote."""
        if self.digest() != digest:
            raise ValueError("data.dvc has changed since the run started: run it again.")
        files = self._files()
        targets = [inside(folder, name) for name in files]
        objects = self._objects([*files.values()])
        map_in_threads(lambda pair: link_file(*pair), zip(objects, targets, strict=True))

    def _files(self) -> dict[str, str]:
        """The MD5 (hex) of each file of the part."""
        listed = self._listing
        files = {below: listed[name] for below, name in self._below(listed).items()}
        if not files:
            tops = sorted({name.split("/")[0] for name in listed})
            raise UsageError(
                f"data.path: version {self.pin()[:8]} of data/ has no {self.part}, but "
                f"{', '.join(tops)}. If it is new, put it under DVC first: dvc add data"
            )
        return files

    def _below(self, names: Collection[str]) -> dict[str, str]:
        """The files of the part, by their names below it; or the one file that the part names."""
        part = self.part.as_posix()
        if part in names:
            return {self.part.name: part}
        prefix = "" if part == "." else f"{part}/"
        return {name.removeprefix(prefix): name for name in names if name.startswith(prefix)}

    @cached_property
    def _listing(self) -> dict[str, str]:
        """The MD5 (hex) of each file of `data/`, by its name there.

        DVC is asked only if the listing is not in the cache in its usual place.
        """
        pin = self.pin()
        path = self.project.root / ".dvc/cache/files/md5" / pin[:2] / pin[2:]
        text = path.read_bytes() if path.exists() else b""
        if hashlib.md5(text).hexdigest() != pin.removesuffix(".dir"):
            text = self._objects([pin])[0].read_bytes()
        md5s = {entry["relpath"]: entry["md5"] for entry in json.loads(text)}
        if not all(re.fullmatch("[0-9a-f]{32}", md5) for md5 in md5s.values()):
            raise ValueError(
                "DVC's listing of data/ is damaged. Write it anew: dvc add data, dvc push"
            )
        return md5s

    @cached_property
    def _pinned(self) -> dict[str, Any]:
        """The entry of the folder `data/` in `data.dvc`."""
        from ruamel.yaml.error import YAMLError

        try:
            if self.revision is None:
                text = (self.project.root / "data.dvc").read_text(encoding="utf-8")
            else:
                text = self.project.git("show", f"{self.revision}:./data.dvc")
            outs = parse_yaml(text)["outs"]
            [pinned] = [out for out in outs if out["path"] == "data"]
            if not re.fullmatch(r"[0-9a-f]{32}\.dir", pinned["md5"]):
                raise ValueError(pinned["md5"])
        except (OSError, YAMLError, KeyError, TypeError, ValueError):
            where = f"the git revision {self.revision!r}" if self.revision else "this clone"
            raise UsageError(
                f"There is no data.dvc in {where} that pins the folder data/. Put it under DVC "
                "(dvc add data), or set data.path to a place outside data/; of revisions, git "
                "fetch gets new ones."
            ) from None
        if pinned.get("hash") != "md5":
            raise UsageError(
                "data.dvc is of DVC 2, whose hashes are others (md5-dos2unix): dvc cache migrate "
                "--dvc-files, dvc push, git commit data.dvc."
            )
        return dict(pinned)

    def _repo(self) -> Any:
        from dvc.repo import Repo

        config = {} if self.project.is_in_git() else {"core": {"no_scm": True}}
        return Repo(str(self.project.root), config=config)

    def _objects(self, md5s: Sequence[str]) -> list[Path]:
        """The files of objects in DVC's cache, fetched if they are missing, and checked."""
        with self._repo() as repo:
            cache, remote = repo.cache.local, repo.config["core"].get("remote")
            objects = {md5: Path(cache.oid_to_path(md5)) for md5 in md5s}
            missing = [md5 for md5, path in objects.items() if not path.exists()]
            if missing and remote is None:
                raise UsageError(f"The data is not in DVC's cache, and {ADD_REMOTE}")
            if missing:
                url = without_login(repo.config["remote"][remote]["url"])
                with (
                    reaching(
                        f"The DVC remote {remote!r} ({url}) does not give the data. Is it there, "
                        "with the data pushed to it?"
                    ),
                    console.progress(f"downloading {len(missing):,} files"),
                ):
                    source = repo.cloud.get_remote_odb(remote)
                    places = [source.oid_to_path(md5) for md5 in missing]
                    cache.add(places, source.fs, missing, batch_size=source.fs.jobs)
        _check_objects(objects)
        return [objects[md5] for md5 in md5s]


def _check_objects(objects: Mapping[str, Path]) -> None:
    """Checks each byte of objects in DVC's cache: DVC believes what a remote sends.

    Raises:
        OSError: Some are damaged; these are deleted.
    """

    def digest(path: Path) -> str:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "md5").hexdigest()

    with console.progress(f"checking {len(objects):,} files"):
        digests = map_in_threads(digest, objects.values())
    found = dict(zip(objects, digests, strict=True))
    damaged = [md5 for md5 in objects if found[md5] != md5.removesuffix(".dir")]
    for md5 in damaged:
        objects[md5].unlink(missing_ok=True)
    if damaged:
        raise OSError(
            f"DVC's copy of {len(damaged)} of {len(objects)} files is damaged. It is gone from the "
            "cache now, and another try fetches it anew. If that does not help, the remote is "
            f"damaged: delete files/md5/{damaged[0][:2]}/{damaged[0][2:]} there and run dvc push "
            "where the data is whole."
        )
