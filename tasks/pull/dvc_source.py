"""Fetches data under DVC: the folder `data/`, whose version is in `data.dvc`."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from pathlib import Path, PurePath
from typing import Any, TypeVar

from retrain.errors import UsageError
from retrain.logins import without_login
from retrain.params import parse_yaml
from retrain.project import Project
from retrain.runs import console
from retrain.step import digest_of
from tasks.data.listing import link_file, list_files
from tasks.pull.transfer import arriving, in_time, inside, map_in_threads, reaching

NO_REMOTE = (
    "The data is not in DVC's cache, and there is no default remote to fetch it from: dvc remote "
    "add -d NAME URL"
)
DIFFERS = (
    "data/ differs from data.dvc, and the run uses the version of data.dvc: dvc add data to use "
    "what is there."
)
_FILE = re.compile(r"[0-9a-f]{32}\Z")  # MD5
_FOLDER = re.compile(r"[0-9a-f]{32}\.dir\Z")  # MD5
STARTER = "starter"  # the remote with the starter data, which is a part of the repository
REMOTE_SECONDS = 5.0  # to wait for the remote, before a run
MAX_COMPARED = 100_000  # files, which takes a second


T = TypeVar("T")


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
        folder = self.project.root / "data"
        too_many = self._pinned.get("nfiles", 0) > MAX_COMPARED
        if self.revision is not None or too_many or not folder.is_dir():
            return None
        try:
            sizes, listed = dict(list_files(folder, hidden=True)), self._listing
        except OSError:  # the remote is away, and `pull` says so if it is needed
            return None
        except ValueError:  # a file that DVC does not take
            return DIFFERS
        total = sum(sizes.values())
        if not sizes or (
            sizes.keys() == listed.keys() and total == self._pinned.get("size", total)
        ):
            return None
        is_beside = (
            sizes.keys() != listed.keys()
            and self._below(sizes).keys() == self._below(listed).keys()
        )
        return None if is_beside else DIFFERS

    def warnings(self) -> Iterator[str]:
        """A sentence for each reason for which nobody else can have this version of the data.

        The remote is asked for a single object, which `dvc push` sends last; what cannot be known
        within seconds is not mentioned.
        """
        is_pinned_here = self.revision is None and self.project.is_in_git()
        if is_pinned_here and self.project.git("status", "--porcelain", "--", "data.dvc"):
            yield (
                "data.dvc is not committed, so nobody else knows of this version of the data: git "
                "add data.dvc, git commit."
            )
        if sentence := in_time(REMOTE_SECONDS, self._unpushed):
            yield sentence

    def _unpushed(self) -> str | None:
        """A sentence if the default remote lacks this version, or there is none."""
        with self._repo() as repo:
            name = repo.config["core"].get("remote")
            if name is None:
                return (
                    "DVC has no default remote, so this version of the data is on this machine "
                    "alone: dvc remote add -d NAME URL, dvc push."
                )
            objects = repo.cloud.get_remote_odb(name)
            try:
                objects.fs.info(objects.oid_to_path(self.pin()))
            except FileNotFoundError as error:
                if isinstance(error.__cause__, OSError):  # over HTTP, a server that is away
                    return None
                own = ("dvc fetch data.dvc", "dvc remote add --default team PLACE")
                commands = [*(own if name == STARTER else ()), "dvc push data.dvc"]
                return (
                    f"This version of the data is not in the DVC remote {name!r}: "
                    f"{', '.join(commands)}."
                )
            return None

    def fetch(self, digest: str, folder: Path, scratch: Path) -> None:
        """Links to DVC's cache, after what is missing there was fetched from the remote."""
        if self.digest() != digest:
            raise ValueError("data.dvc has changed since the run started: run it again.")
        files = self._files()
        targets = [inside(folder, name) for name in files]
        size = self._pinned.get("size") if self.part == PurePath() else None
        objects = self._objects(list(files.values()), size)
        map_in_threads(lambda pair: link_file(*pair), zip(objects, targets, strict=True))

    def _files(self) -> dict[str, str]:
        """The MD5 (hex) of each file of the part."""
        files = self._below(self._listing)
        if not files:
            tops = sorted({name.split("/")[0] for name in self._listing})
            raise UsageError(
                f"data.path: version {self.pin()[:8]} of data/ has no {self.part}, but "
                f"{', '.join(tops)}. If it is new, put it under DVC first: dvc add data"
            )
        return files

    def _below(self, files: Mapping[str, T]) -> dict[str, T]:
        """The files of the part, by their names below it; or the one file that the part names."""
        part = self.part.as_posix()
        if part in files:
            return {self.part.name: files[part]}
        prefix = "" if part == "." else f"{part}/"
        return {
            name.removeprefix(prefix): value
            for name, value in files.items()
            if name.startswith(prefix)
        }

    @cached_property
    def _listing(self) -> dict[str, str]:
        """The MD5 (hex) of each file of `data/`, by its name there.

        Where DVC's cache has its usual place and the listing, DVC is not asked.
        """
        pin = self.pin()
        path = self.project.root / ".dvc" / "cache" / "files" / "md5" / pin[:2] / pin[2:]
        text = path.read_bytes() if path.exists() else b""
        if hashlib.md5(text).hexdigest() != pin.removesuffix(".dir"):
            text = self._objects([pin])[0].read_bytes()
        md5s = {entry["relpath"]: entry["md5"] for entry in json.loads(text)}
        if not all(map(_FILE.match, md5s.values())):
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
        except FileNotFoundError:
            raise UsageError(
                "There is no data.dvc, so data/ has no version. Put it under DVC (dvc add "
                "data), or set data.path to a place outside data/."
            ) from None
        except ValueError:
            raise UsageError(
                f"There is no data.dvc in git revision {self.revision!r}, or no such revision "
                "here: name a branch, a tag or a commit (git fetch gets new ones)."
            ) from None
        try:
            outs = parse_yaml(text)["outs"]
            [pinned] = [out for out in outs if out["path"] == "data" and _FOLDER.match(out["md5"])]
        except (YAMLError, KeyError, TypeError, ValueError):
            raise UsageError(
                "data.dvc does not pin the folder data/. Write it with: dvc add data"
            ) from None
        return dict(pinned)

    def _repo(self) -> Any:
        from dvc.repo import Repo

        config = {} if self.project.is_in_git() else {"core": {"no_scm": True}}
        return Repo(str(self.project.root), config=config)

    def _objects(self, md5s: Sequence[str], size: int | None = None) -> list[Path]:
        """The files of objects in DVC's cache, fetched if they are missing, and checked.

        Args:
            md5s: The names of the objects.
            size: Their bytes, if they are known.
        """
        with self._repo() as repo:
            cache, remote = repo.cache.local, repo.config["core"].get("remote")
            objects = [Path(cache.oid_to_path(md5)) for md5 in md5s]
            missing = sorted(
                {md5 for md5, path in zip(md5s, objects, strict=True) if not path.exists()}
            )
            if missing and remote is None:
                raise UsageError(NO_REMOTE)
            if missing:
                url = without_login(repo.config["remote"][remote]["url"])
                with (
                    reaching(
                        f"The DVC remote {remote!r} ({url}) does not give the data. Is it there, "
                        "with the data pushed to it?"
                    ),
                    arriving(Path(cache.path), size),
                ):
                    source = repo.cloud.get_remote_odb(remote)
                    places = [source.oid_to_path(md5) for md5 in missing]
                    cache.add(places, source.fs, missing, batch_size=source.fs.jobs)
        _check_objects(objects)
        return objects


def _check_objects(objects: Sequence[Path]) -> None:
    """Checks each byte of objects in DVC's cache: DVC believes what a remote sends.

    Raises:
        OSError: Some are damaged; these are deleted.
    """

    def is_damaged(path: Path) -> bool:
        with path.open("rb") as file:
            md5 = hashlib.file_digest(file, "md5").hexdigest()
        show(path.stat().st_size)
        return f"{path.parent.name}{path.stem}" != md5

    size = sum(path.stat().st_size for path in objects)
    with console.counted("checking", size, "bytes") as show:
        checked = map_in_threads(is_damaged, objects)
    if damaged := [*compress(objects, checked)]:
        for path in damaged:
            path.unlink(missing_ok=True)
        raise OSError(
            f"DVC's copy of {len(damaged)} of {len(objects)} files is damaged. It is gone from the "
            "cache now, and another try fetches it anew. If that does not help, the remote is "
            f"damaged: delete files/md5/{damaged[0].parent.name}/{damaged[0].name} there and run "
            "dvc push where the data is whole."
        )
