"""Fetches data under DVC: the folder `data/`, whose version is in `data.dvc`."""

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any

from retrain.errors import UsageError, without_login
from retrain.params import parse_yaml
from retrain.project import Project
from retrain.runs import console
from retrain.step import json_digest
from tasks.data.listing import link_file, list_files
from tasks.pull.file_sources import inside, map_in_threads, reaching

ADD_REMOTE = "DVC has no default remote: dvc remote add -d NAME URL"
DIFFERS = "data/ differs from data.dvc, and the run uses the version of data.dvc"
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
        return self.pin() if self.part == PurePath() else json_digest(self._files())

    def pin(self) -> str:
        """DVC's hash of all of `data/`."""
        return str(self._pinned["md5"])

    def warning(self) -> str | None:
        """A sentence if the working tree's `data/` visibly differs from the pinned version.

        The names of the part's files are compared, and the size of all of `data/` if it has no
        other names elsewhere; a change that keeps both is not seen. A part that is not there, a
        folder with too many files, and data at another revision count as equal.
        """
        folder, pinned = self.project.root / "data", self._pinned
        too_many = pinned.get("nfiles", 0) > MAX_COMPARED
        if self.revision is not None or too_many or not folder.is_dir():
            return None
        try:
            sizes, listed = dict(list_files(folder, hidden=True)), self._listing
        except OSError:  # the remote is away, and `pull` says so if it is needed
            return None
        except ValueError as error:  # a file that DVC does not take
            return f"{DIFFERS}: {error} Then: dvc add {self._place(folder)}"
        here, there = self._below(sizes), self._below(listed)
        total = sum(sizes.values())
        # DVC leaves the size out where a part of the folder was added.
        is_resized = sizes.keys() == listed.keys() and total != pinned.get("size", total)
        if not here or (here.keys() == there.keys() and not is_resized):
            return None
        add = f"dvc add {'data' if listed.keys() <= sizes.keys() else self._place(folder)}"
        if lost := sorted(there.keys() - here.keys()):
            return (
                f"{DIFFERS}: {len(lost):,} files are not there, such as {lost[0]}. dvc pull "
                f"data.dvc brings them back; {add} drops them for everybody."
            )
        return f"{DIFFERS}: {add} to use what is there."

    def _place(self, folder: Path) -> str:
        """The part as DVC's commands take it: what they add leaves the rest of `data/` as it is."""
        return (Path(folder.name) / self.part).as_posix()

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
                f"{', '.join(tops)}. If it is new, put it under DVC first: dvc add "
                f"data/{self.part.as_posix()}"
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
                "DVC's listing of data/ is damaged: take the data.dvc of an earlier commit. (Or, "
                "where all of data/ is there: dvc add data, dvc push)"
            )
        return md5s

    @cached_property
    def _pinned(self) -> dict[str, Any]:
        """The entry of the folder `data/` in `data.dvc`; and `imported`, whether it is a copy."""
        from ruamel.yaml.error import YAMLError

        text = self._read_pin()
        try:
            pin = parse_yaml(text)
            [pinned] = [out for out in pin["outs"] if out["path"] == "data"]
            if not re.fullmatch(r"[0-9a-f]{32}\.dir", pinned["md5"]):
                raise ValueError(pinned["md5"])
        except (YAMLError, KeyError, TypeError, ValueError):
            if re.search("^<{7} ", text, re.MULTILINE):
                raise UsageError(
                    "data.dvc has the marks of a merge that is not decided: git checkout --ours "
                    "data.dvc (or --theirs), dvc pull data.dvc; what only the other side has is "
                    "added by dvc add data/FOLDER. (dvc git-hook merge-driver merges both)"
                ) from None
            raise UsageError(
                "data.dvc does not pin the folder data/ by an MD5 that ends in .dir, and is not "
                "read: dvc data status shows what DVC has of it; dvc pull data.dvc, dvc "
                "remove data.dvc, dvc add data pin it so. (Or set data.path to a place outside "
                "data/)"
            ) from None
        if pinned.get("hash") != "md5":
            raise UsageError(
                "data.dvc is of DVC 2, whose hashes are others (md5-dos2unix): dvc cache migrate "
                "--dvc-files, dvc push, git commit data.dvc."
            )
        return dict(pinned) | {"imported": "deps" in pin}

    def _read_pin(self) -> str:
        """The text of `data.dvc`.

        Raises:
            UsageError: It is not there.
        """
        file = self.project.root / "data.dvc"
        with suppress(OSError, ValueError):
            if self.revision is not None:
                return self.project.git("show", f"{self.revision}:./data.dvc")
            return file.read_text(encoding="utf-8")
        if self.revision is not None:
            raise UsageError(
                f"There is no data.dvc in the git revision {self.revision!r}: git fetch gets new "
                "ones."
            )
        advice = "Put it under DVC (dvc add data), or set data.path to a place outside data/."
        if self.project.commit is not None and self.project.git("ls-files", "--", "data.dvc"):
            advice = "git checkout -- data.dvc brings it back (dvc add data would begin anew)."
        raise UsageError(f"There is no data.dvc in this clone that pins the folder data/. {advice}")

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
            if missing and self._pinned["imported"]:
                raise UsageError(
                    "data.dvc was made by dvc import, and its data is not in DVC's cache: dvc "
                    "fetch data.dvc"
                )
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
