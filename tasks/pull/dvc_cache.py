"""Reads what DVC keeps of versions of `data/`: the objects in its cache, and their listings."""

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from retrain.runs import console
from tasks.pull.transfer import map_in_threads

NO_REMOTE = (
    "The data is not in DVC's cache, and there is no default remote to fetch it from: dvc remote "
    "add -d NAME URL"
)
_FILE = re.compile(r"[0-9a-f]{32}\Z")  # MD5


def cache_of(repo: Any) -> Path:
    """The folder of the objects in DVC's cache, as `dvc cache dir` and DVC's manual have it."""
    root = repo.config["cache"].get("dir") or Path(repo.root_dir, ".dvc", "cache")
    return Path(root, "files", "md5")


def object_path(cache: Path, md5: str) -> Path:
    """The file of an object in the cache."""
    return cache / md5[:2] / md5[2:]


def read_listing(path: Path) -> dict[str, str]:
    """The MD5 (hex) of each file of a version of `data/`, by the file's name in it."""
    entries = json.loads(path.read_text(encoding="utf-8"))
    md5s = {entry["relpath"]: entry["md5"] for entry in entries}
    if not all(map(_FILE.match, md5s.values())):
        raise ValueError("DVC's listing of data/ is damaged. Write it anew: dvc add data, dvc push")
    return md5s


def check_objects(objects: Sequence[Path], md5s: Sequence[str]) -> None:
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
