"""Reads what the user tells of images for their splits: the group of each, and its time.

The values are in a column of the user's own, or a regular expression finds them in the image's
name.
"""

import re
from datetime import UTC, date, datetime
from typing import Any

import pandas as pd
import pyarrow as pa

from retrain.workload import is_pattern

NEAR_DUPLICATES = "near_duplicates"  # as `data.group`
EXIF = "exif"  # as `data.time`
_A_PATTERN = "a regular expression with a group in parentheses"


def read_groups(group: str | None, images: pd.DataFrame, own: pa.Table) -> list[str | None]:
    """The group of each image; None for one without.

    Args:
        group: `data.group`.
        images: The `path`, the `file` and the `split` of each, as the data has them.
        own: The user's own columns.

    Raises:
        ValueError: No image has a group.
    """
    if group in (None, NEAR_DUPLICATES):
        return [None] * len(images)
    values = _read("data.group", group, f"neither {NEAR_DUPLICATES} nor {_A_PATTERN}", images, own)
    groups = [None if _is_missing(value) else str(value) for value in values]
    if not any(groups):
        raise ValueError(f"data.group: no image has a {group}.")
    return groups


def read_times(time: str | None, images: pd.DataFrame, own: pa.Table) -> list[float | None]:
    """The time of each image, in seconds or as the user counts it; None where there is none.

    Args:
        time: `data.time`.
        images: The `path`, the `file` and the `split` of each, as the data has them; and `taken`,
            the time in its EXIF data.
        own: The user's own columns.

    Raises:
        ValueError: A value is no time, or numbers and dates are mixed.
    """
    if time is None:
        return [None] * len(images)
    if time == EXIF:
        values = [
            None if _is_missing(text) else datetime.strptime(text, "%Y:%m:%d %H:%M:%S")
            for text in images["taken"]
        ]
    else:
        values = _read("data.time", time, f"neither {EXIF} nor {_A_PATTERN}", images, own)
    times, kinds = [], set()
    for value, path in zip(values, images["path"], strict=True):
        seconds, kind = (None, None) if _is_missing(value) else _moment(value)
        if kind == "other":
            raise ValueError(
                f"data.time: {value!r} of {path} is no time: write dates as 2026-11-23 or "
                "2026-11-23 14:55, or numbers that grow with time."
            )
        times.append(seconds)
        kinds.add(kind)
    if {"number", "date"} <= kinds:
        raise ValueError(f"data.time: some values of {time} are numbers and some are dates.")
    return times


def _read(
    setting: str, value: str, otherwise: str, images: pd.DataFrame, own: pa.Table
) -> list[Any]:
    """The values that a column of the user's own has, or that a regular expression finds."""
    if is_pattern(value):
        pattern = re.compile(value)
        return [
            _found(pattern, name.partition("/")[2] if is_below_split else name)
            for name, is_below_split in zip(
                images["path"],
                images["split"].notna() & (images["path"] == images["file"]),
                strict=True,
            )
        ]
    if value in own.column_names:
        values: list[Any] = own[value].to_pylist()
        return values
    if own.column_names:
        columns = ", ".join(own.column_names)
        raise ValueError(f"{setting}: the data has no column {value}, but {columns}.")
    raise ValueError(
        f"{setting}: {value} is {otherwise}, and data.path has no columns of your own: in its "
        "Parquet files, its list, or a metadata.csv beside the images."
    )


def _found(pattern: re.Pattern[str], name: str) -> str | None:
    """What the groups of a regular expression find in an image's name."""
    match = pattern.search(name)
    return "".join(group or "" for group in match.groups()) if match else None


def _is_missing(value: Any) -> bool:
    return value is None or value == "" or value != value  # NaN is not equal


def _moment(value: Any) -> tuple[float | None, str]:
    """A value as a number that grows with time; and whether it is a number, a date or neither."""
    if isinstance(value, int | float):
        return float(value), "number"
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if not isinstance(value, datetime):
        text = str(value).strip()
        if re.fullmatch(r"\d+(\.\d+)?", text):
            return float(text), "number"
        try:
            is_month = re.fullmatch(r"\d{4}-\d\d", text)
            value = datetime.fromisoformat(f"{text}-01" if is_month else text)
        except ValueError:
            return None, "other"
    return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp(), "date"
