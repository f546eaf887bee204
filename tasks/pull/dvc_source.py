"""Data under DVC: the folder `data/`, whose version is in `data.dvc`."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from retrain.errors import UsageError
from retrain.logins import without_login
from retrain.project import Project
from tasks.pull.transfer import each, inside, link_file, reaching, walk_folder

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
        sizes = [
            path.stat().st_size for _, paths in walk_folder(folder, hidden=True) for path in paths
        ]
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
            self.project.git("rev-parse", "--verify", "--quiet", f"{self.revision}^{{commit}}")
        except ValueError:
            raise UsageError(
                f"There is no git revision {self.revision!r} here: name a branch, a tag or a "
                "commit (git fetch gets new ones)."
            ) from None
        try:
            return self.project.git("show", f"{self.revision}:./data.dvc")
        except ValueError:
            raise UsageError(f"There is no data.dvc in git revision {self.revision!r}.") from None

    def fetch(self, digest: str, folder: Path, scratch: Path) -> None:
        """Links to DVC's cache, after fetching what is missing there from the default remote."""
        from dvc.repo import Repo

        config = {} if self.project.is_in_git() else {"core": {"no_scm": True}}
        with Repo(str(self.project.root), config=config) as repo:
            listing = scratch / digest
            _link_objects(repo, {listing: digest})
            md5s = _read_listing(listing)
            wanted = _below(self.part, md5s)
            if not wanted:
                tops = sorted({name.split("/")[0] for name in md5s})
                raise UsageError(
                    f"data.path: version {digest[:8]} of data/ has no {self.part}, but "
                    f"{', '.join(tops)}. If it is new, put it under DVC first: dvc add data"
                )
            _link_objects(repo, {inside(folder, name): md5 for name, md5 in wanted.items()})


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
            f"DVC's listing of data/ in version {path.name[:8]} is damaged. Write it anew: dvc "
            "add data, dvc push"
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


def _link_objects(repo: Any, md5s: Mapping[Path, str]) -> None:
    """Links objects in DVC's cache to files, after fetching missing ones, and checks each byte.

    DVC does not check the hash of what a remote sends, nor that of a directory's listing; here
    every byte is checked.
    """
    cache = repo.cache.local
    missing = [md5 for md5 in dict.fromkeys(md5s.values()) if not cache.exists(md5)]
    if missing:
        remote, name = _default_remote(repo)
        with reaching(f"{name} does not give the data. Is it there, with the data pushed to it?"):
            cache.add([remote.oid_to_path(md5) for md5 in missing], remote.fs, missing)

    def is_damaged(item: tuple[Path, str]) -> bool:
        path, md5 = item
        link_file(Path(cache.oid_to_path(md5)), path)
        with path.open("rb") as file:
            return hashlib.file_digest(file, "md5").hexdigest() != md5.removesuffix(".dir")

    damaged = [
        (path, md5)
        for (path, md5), bad in zip(md5s.items(), each(is_damaged, md5s.items()), strict=True)
        if bad
    ]
    if not damaged:
        return
    for _, md5 in damaged:
        cache.delete(md5)
    path, md5 = damaged[0]
    raise OSError(
        f"DVC's copy of {len(damaged)} of {len(md5s)} files is damaged, such as {path.name}. It is "
        "gone from the cache now, and another try fetches it anew. If that does not help, the "
        f"remote is damaged: delete files/md5/{md5[:2]}/{md5[2:]} there and run dvc push where the "
        "data is whole."
    )


def _default_remote(repo: Any) -> tuple[Any, str]:
    """The object database of the project's default DVC remote, and its name for messages."""
    from dvc.config import ConfigError
    from dvc.fs import RemoteMissingDepsError

    try:
        remote = repo.cloud.get_remote_odb(command="pull")
    except (ConfigError, RemoteMissingDepsError) as error:
        raise UsageError(f"The data is not in DVC's cache, and to fetch it: {error}") from error
    name = repo.config["core"]["remote"]
    return remote, f"The DVC remote {name!r} ({without_login(repo.config['remote'][name]['url'])})"
