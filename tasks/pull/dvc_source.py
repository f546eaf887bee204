"""Data under DVC: the folder `data/`, whose version is in `data.dvc`."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from retrain.errors import UsageError
from retrain.logins import without_login
from retrain.project import Project
from tasks.data.listing import link_file, list_files
from tasks.pull.transfer import each, inside, reaching

MD5 = "[0-9a-f]{32}"
MAX_COUNTED = 100_000  # files, which takes a second


@dataclass(frozen=True)
class DvcSource:
    """A part of the folder `data/`, which `data.dvc` pins.

    The working tree's `data/` is neither read nor changed.

    Attributes:
        project: The clone.
        part: Relative to `data/`; empty for all of it.
        revision: The git revision whose `data.dvc` is used; None is the working tree.
    """

    project: Project
    part: str
    revision: str | None

    def digest(self) -> str:
        """DVC's hash of `data/`: the MD5 (hex) of its listing, with the suffix `.dir`."""
        return str(self._pinned()["md5"])

    def is_outdated(self) -> bool:
        """Whether the working tree's `data/` visibly differs from the pinned version.

        It compares the number of files and their total size, which takes milliseconds; a change
        that keeps both is not seen. A missing folder, one with too many files, and data at another
        revision count as equal.
        """
        pinned, folder = self._pinned(), self.project.root / "data"
        files, size = pinned.get("nfiles"), pinned.get("size")
        if self.revision is not None or files is None or size is None or files > MAX_COUNTED:
            return False
        if not folder.is_dir():
            return False
        sizes = [size for _, size in list_files(folder, hidden=True)]
        return bool(sizes) and (len(sizes), sum(sizes)) != (files, size)

    def _pinned(self) -> dict[str, Any]:
        """The entry of the folder `data/` in `data.dvc`."""
        from ruamel.yaml import YAML
        from ruamel.yaml.error import YAMLError

        try:
            outs = YAML(typ="safe", pure=True).load(self._pin())["outs"]
            pinned = [dict(out) for out in outs if out["path"] == "data"]
            whole = len(pinned) == 1 and re.fullmatch(rf"{MD5}\.dir", str(pinned[0]["md5"]))
        except (YAMLError, KeyError, TypeError):
            whole = None
        if not whole:
            raise UsageError("data.dvc does not pin the folder data/. Write it with: dvc add data")
        return pinned[0]

    def _pin(self) -> str:
        if self.revision is None:
            try:
                return (self.project.root / "data.dvc").read_text(encoding="utf-8")
            except FileNotFoundError:
                raise UsageError(
                    "There is no data.dvc, so data/ has no version. Put it under DVC (dvc add "
                    "data), or set data.path to a place outside data/."
                ) from None
        try:
            return self.project.git("show", f"{self.revision}:./data.dvc")
        except ValueError:
            raise UsageError(
                f"There is no data.dvc in git revision {self.revision!r}, or no such revision "
                "here: name a branch, a tag or a commit (git fetch gets new ones)."
            ) from None

    def fetch(self, digest: str, folder: Path, scratch: Path) -> None:
        """Links to DVC's cache, after `dvc fetch` of what is missing there."""
        from dvc.repo import Repo

        config = {} if self.project.is_in_git() else {"core": {"no_scm": True}}
        with Repo(str(self.project.root), config=config) as repo:
            cache = _cache_of(repo)
            listing = _object(cache, digest)
            self._download(repo, [listing])
            _check([listing], [digest])
            md5s = _read_listing(listing)
            wanted = _below(self.part, md5s)
            if not wanted:
                tops = sorted({name.split("/")[0] for name in md5s})
                raise UsageError(
                    f"data.path: version {digest[:8]} of data/ has no {self.part}, but "
                    f"{', '.join(tops)}. If it is new, put it under DVC first: dvc add data"
                )
            targets = [inside(folder, name) for name in wanted]
            objects = [_object(cache, md5) for md5 in wanted.values()]
            self._download(repo, objects)
            _check(objects, list(wanted.values()))
            each(lambda pair: link_file(*pair), zip(objects, targets, strict=True))

    def _download(self, repo: Any, objects: Sequence[Path]) -> None:
        """Runs `dvc fetch` for the part, unless the objects that it takes are in the cache."""
        from dvc.exceptions import DvcException

        if all(path.exists() for path in objects):
            return
        name = repo.config["core"].get("remote")
        if name is None:
            raise UsageError(
                "The data is not in DVC's cache, and there is no default remote to fetch it from: "
                "dvc remote add -d NAME URL"
            )
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


def _object(cache: Path, md5: str) -> Path:
    return cache / md5[:2] / md5[2:]


def _read_listing(path: Path) -> dict[str, str]:
    """The MD5 (hex) of each file of a version of `data/`, by the file's name in it."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        md5s = {str(entry["relpath"]): str(entry["md5"]) for entry in entries}
        whole = all(re.fullmatch(MD5, md5) for md5 in md5s.values())
    except (ValueError, KeyError, TypeError):
        whole = False
    if not whole:
        raise ValueError(
            f"DVC's listing of data/ in version {path.parent.name}{path.name[:6]} is damaged. "
            "Write it anew: dvc add data, dvc push"
        )
    return md5s


def _below(part: str, files: Mapping[str, str]) -> dict[str, str]:
    """The files below a folder, by their names in it; or the one file."""
    if part in files:
        return {PurePosixPath(part).name: files[part]}
    prefix = f"{part}/" if part else ""
    return {
        name.removeprefix(prefix): md5 for name, md5 in files.items() if name.startswith(prefix)
    }


def _check(objects: Sequence[Path], md5s: Sequence[str]) -> None:
    """Checks each byte of objects in DVC's cache: DVC believes what a remote sends.

    Raises:
        OSError: Some are damaged; these are deleted.
    """

    def is_damaged(item: tuple[Path, str]) -> bool:
        path, md5 = item
        with path.open("rb") as file:
            return hashlib.file_digest(file, "md5").hexdigest() != md5.removesuffix(".dir")

    checked = each(is_damaged, zip(objects, md5s, strict=True))
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
