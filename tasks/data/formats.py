"""Recognises the format of the data by the names of its files, and by tables of its images."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tasks.data import listings
from tasks.data.listing import IMAGE_SUFFIXES


def recognise(root: Path, names: Sequence[str]) -> str:
    """The format of the data; a key of `tasks.data.raw_dataset.READERS`.

    Args:
        root: The folder of the data.
        names: All of its files, in order.

    Raises:
        ValueError: It is none, or a table of the images cannot be read.
    """
    suffixes: Counter[str] = Counter()
    folders = set()
    for name in names:
        suffix = os.path.splitext(name)[1].lower()  # noqa: PTH122  5 times as fast
        suffixes[suffix] += 1
        if suffix in IMAGE_SUFFIXES:
            folders.add(name.rpartition("/")[0])
    if suffixes[".parquet"]:
        return "parquet"
    if folders and listings.are_there(root, names, has_class_folders=len(folders) > 1):
        return "table"
    if folders - {""}:
        return "folders"
    kinds = suffixes.most_common(5)
    listed = ", ".join(f"{count} files with {kind or 'no suffix'}" for kind, count in kinds)
    where = "" if any("/" in name for name in names) else " in no folder"
    raise ValueError(
        f"The folder of the data holds {listed or 'no files'}{where}. It should hold Parquet "
        "files, a folder of images per class (below train, val and test or not), a table of the "
        "images and their classes (CSV, TSV or JSONL), or be one archive of these."
    )
