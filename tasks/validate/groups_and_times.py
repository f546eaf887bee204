"""Reads the group of each image, and the time when it was taken; both may decide its split.

The values are in a column of the user's own, or a regular expression finds them in the image's
name.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from retrain.workload import is_pattern
from tasks.data.own_columns import read_columns
from tasks.data.raw_dataset import RawDataset

NEAR_DUPLICATES = "near_duplicates"  # as `data.group`
EXIF = "exif"  # as `data.time`

Reader = Callable[[pa.Table], Sequence[Any]]


def read_groups(group: str | None, source: RawDataset) -> Reader:
    """A function that gives the group of each image of a table, and None to one without."""
    if group in (None, NEAR_DUPLICATES):
        return lambda images: [None] * len(images)
    read = _reader("data.group", group, f"neither {NEAR_DUPLICATES} nor {_A_PATTERN}", source)
    return lambda images: [_text(value) for value in read(images)]


def read_times(time: str | None, source: RawDataset) -> Reader:
    """A function that gives the time of each image of a table, and None where there is none.

    Times are numbers, or texts in the order of time.
    """
    if time is None:
        return lambda images: [None] * len(images)
    if time == EXIF:
        return lambda images: images["taken"].to_pylist()
    read = _reader("data.time", time, f"neither {EXIF} nor {_A_PATTERN}", source)
    return lambda images: [_moment(value) for value in read(images)]


_A_PATTERN = "a regular expression with a group in parentheses"


def _reader(key: str, value: str, otherwise: str, source: RawDataset) -> Reader:
    if is_pattern(value):
        pattern = re.compile(value)
        has_folders = source.format == "folders"
        return lambda images: [
            _found(pattern, path.partition("/")[2] if split and has_folders else path)
            for path, split in zip(
                images["path"].to_pylist(), images["split"].to_pylist(), strict=True
            )
        ]
    return lambda images: read_columns(source, [value], images, key, otherwise)[value]


def _found(pattern: re.Pattern[str], name: str) -> str | None:
    """What the groups of a regular expression find in an image's name."""
    match = pattern.search(name)
    return "".join(group or "" for group in match.groups()) if match else None


def _text(value: Any) -> str | None:
    return None if value in (None, "") or value != value else str(value)  # NaN is not equal


def _moment(value: Any) -> str | float | None:
    if isinstance(value, int | float):
        return None if value != value else float(value)
    text = value.isoformat(" ") if hasattr(value, "hour") else _text(value)
    return text.zfill(40) if text and text.isdecimal() else text  # "9" is before "10"
