"""Fetches data under DVC: the folder `data/`, whose version is in `data.dvc`."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from retrain.errors import UsageError
from retrain.logins import without_login
from retrain.params import parse_yaml
from retrain.project import Project
from retrain.runs import console
from tasks.data.listing import link_file, list_files
from tasks.pull.transfer import arriving, in_time, inside, map_in_threads, reaching

NO_REMOTE = (
    "The data is not in DVC's cache, and there is no default remote to fetch it from: dvc remote "
    "add -d NAME URL"
)
_FILE = re.compile(r"[0-9a-f]{32}\Z")  # MD5
_FOLDER = re.compile(r"[0-9a-f]{32}\.dir\Z")  # MD5
STARTER = "starter"  # the remote with the starter data, which is a part of the repository
REMOTE_SECONDS = 5.0  # to wait for the remote, before a run
MAX_COUNTED = 100_000  # files, which takes a second


@dataclass(frozen=True)
class DvcSource:
    """A part of the folder `data/`, which `data.dvc` pins.

    The working tree's `data/` is neither read nor changed.

    Attributes:
        project: The clone.
        part: Relative to `data/`; `.` for all of it.
        revision: The git revision whose `data.dvc` is used; None is the working tree.
    """

    project: Project
    part: PurePath
    revision: str | None

    def digest(self) -> str:
        """DVC's hash of `data/`: the MD5 (hex) of its listing, with the suffix `.dir`."""
        return str(self._pinned()["md5"])

    def warning(self) -> str | None:
        """A sentence if the working tree's `data/` visibly differs from the pinned version.

        It compares the number of files and their total size, which takes milliseconds; a change
        that keeps both is not seen. A missing folder, one with too many files, and data at another
        revision count as equal.
        """
        pinned, folder = self._pinned(), self.project.root / "data"
        files = pinned.get("nfiles", MAX_COUNTED)
        if self.revision is not None or files >= MAX_COUNTED or not folder.is_dir():
            return None
        sizes = [size for _, size in list_files(folder, hidden=True)]
        if not sizes or (len(sizes), sum(sizes)) == (files, pinned["size"]):
            return None
        return (
            "data/ differs from data.dvc, and the run uses the version of data.dvc: "
            "dvc add data to use what is there."
        )

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
                objects.fs.info(objects.oid_to_path(self.digest()))
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

    def _repo(self) -> Any:
        from dvc.repo import Repo

        config = {} if self.project.is_in_git() else {"core": {"no_scm": True}}
        return Repo(str(self.project.root), config=config)

    def _pinned(self) -> dict[str, Any]:
        """The entry of the folder `data/` in `data.dvc`."""
        from ruamel.yaml.error import YAMLError

        text = self._pin()
        try:
            outs = parse_yaml(text)["outs"]
            [pinned] = [out for out in outs if out["path"] == "data" and _FOLDER.match(out["md5"])]
        except (YAMLError, KeyError, TypeError, ValueError):
            raise UsageError(
                "data.dvc does not pin the folder data/. Write it with: dvc add data"
            ) from None
        return dict(pinned)

    def _pin(self) -> str:
        """The text of `data.dvc`."""
        try:
            if self.revision is None:
                return (self.project.root / "data.dvc").read_text(encoding="utf-8")
            return self.project.git("show", f"{self.revision}:./data.dvc")
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

    def fetch(self, digest: str, folder: Path, scratch: Path) -> None:
        """Links to DVC's cache, after `dvc fetch` of what is missing there."""
        with self._repo() as repo:
            cache = _cache_of(repo)
            listing = _object_path(cache, digest)
            is_whole = self.part == PurePath()
            self._download(repo, [listing], self._pinned().get("size") if is_whole else None)
            _check_objects([listing], [digest])
            files = self.below(_read_listing(listing), digest)
            targets = [inside(folder, name) for name in files]
            objects = [_object_path(cache, md5) for md5 in files.values()]
            self._download(repo, objects)
            _check_objects(objects, list(files.values()))
            map_in_threads(lambda pair: link_file(*pair), zip(objects, targets, strict=True))

    def below(self, md5s: Mapping[str, str], digest: str) -> dict[str, str]:
        """The files of the part, by their names below it; or the one file that the part names.

        Raises:
            UsageError: The version of the data has no such part.
        """
        part = self.part.as_posix()
        if part in md5s:
            return {self.part.name: md5s[part]}
        prefix = "" if part == "." else f"{part}/"
        files = {
            name.removeprefix(prefix): md5 for name, md5 in md5s.items() if name.startswith(prefix)
        }
        if not files:
            tops = sorted({name.split("/")[0] for name in md5s})
            raise UsageError(
                f"data.path: version {digest[:8]} of data/ has no {self.part}, but "
                f"{', '.join(tops)}. If it is new, put it under DVC first: dvc add data"
            )
        return files

    def _download(self, repo: Any, objects: Sequence[Path], size: int | None = None) -> None:
        """Runs `dvc fetch` for the part, unless the objects that it takes are in the cache.

        Args:
            repo: DVC's repository.
            objects: The files of the objects in the cache.
            size: The bytes of the part, if they are known.
        """
        from dvc.exceptions import DvcException

        if all(path.exists() for path in objects):
            return
        name = repo.config["core"].get("remote")
        if name is None:
            raise UsageError(NO_REMOTE)
        remote = dict(repo.config["remote"][name])
        root, revisions = self.project.root, None
        if self.revision:  # whose tree DVC reads from `/` on
            root = Path("/", self.project.git("rev-parse", "--show-prefix").strip())
            revisions = [self.revision]
        with reaching(
            f"The DVC remote {name!r} ({without_login(remote['url'])}) does not give the data. Is "
            "it there, with the data pushed to it?"
        ):
            try:
                with arriving(_cache_of(repo), size):
                    repo.fetch(
                        targets=[str(root / "data" / self.part)],
                        revs=revisions,
                        workspace=revisions is None,
                        # Today's remote, whatever the revision says.
                        config={"core": {"remote": name}, "remote": {name: remote}},
                    )
            except DvcException:
                if not all(path.exists() for path in objects):  # else the part is not in it
                    raise
            if missing := [path.name for path in objects if not path.exists()]:
                raise FileNotFoundError(f"{len(missing)} files are missing")


def _cache_of(repo: Any) -> Path:
    """The folder of the objects in DVC's cache, as `dvc cache dir` and DVC's manual have it."""
    root = repo.config["cache"].get("dir") or Path(repo.root_dir, ".dvc", "cache")
    return Path(root, "files", "md5")


def _object_path(cache: Path, md5: str) -> Path:
    """The file of an object in the cache."""
    return cache / md5[:2] / md5[2:]


def _read_listing(path: Path) -> dict[str, str]:
    """The MD5 (hex) of each file of a version of `data/`, by the file's name in it."""
    entries = json.loads(path.read_text(encoding="utf-8"))
    md5s = {entry["relpath"]: entry["md5"] for entry in entries}
    if not all(map(_FILE.match, md5s.values())):
        raise ValueError("DVC's listing of data/ is damaged. Write it anew: dvc add data, dvc push")
    return md5s


def _check_objects(objects: Sequence[Path], md5s: Sequence[str]) -> None:
    """Checks each byte of objects in DVC's cache: DVC believes what a remote sends.

    Raises:
        OSError: Some are damaged; these are deleted.
    """

    def is_damaged(item: tuple[Path, str]) -> bool:
        path, md5 = item
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "md5").hexdigest()
        show(path.stat().st_size)
        return digest != md5.removesuffix(".dir")

    size = sum(path.stat().st_size for path in objects)
    with console.counted("checking", size, "bytes") as show:
        checked = map_in_threads(is_damaged, zip(objects, md5s, strict=True))
    damaged = [path for path, is_bad in zip(objects, checked, strict=True) if is_bad]
    for path in damaged:
        path.unlink(missing_ok=True)
    if damaged:
        raise OSError(
            f"DVC's copy of {len(damaged)} of {len(objects)} files is damaged. It is gone from the "
            "cache now, and another try fetches it anew. If that does not help, the remote is "
            f"damaged: delete files/md5/{damaged[0].parent.name}/{damaged[0].name} there and run "
            "dvc push where the data is whole."
        )
