"""Reads what the user tells of images: the names of the classes, groups, times and slices.

Groups and times are in a column of the user's own, or a regular expression finds them in the
image's name.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from rich.markup import escape

from retrain.runs import console
from retrain.workload import NEAR_DUPLICATES, is_pattern
from tasks.data.listing import label_of, some

EXIF = "exif"  # as `data.time`
# Of the columns that are known of each image: what follows from its size, and what cuts no slices.
SIDES = {"side", "aspect"}
NO_SLICES = {"split", "path", "label", "row", "sha256", "pixels"}
_A_PATTERN = "a regular expression with a group in parentheses"


def name_classes(images: pd.DataFrame, root: Path, file: str) -> "pd.Series[str]":
    """The names of the images' classes, where the data calls them otherwise.

    Args:
        images: The `label` and the `path` of each image.
        root: The folder of the data.
        file: The file in it: a JSON object, or lines of a class, white space and its name, such as
            `n01440764 tench`.

    Raises:
        ValueError: There is no such file, it is no list of names, two classes have one name, or a
            class has none.
    """
    path = root / file
    if not (path.is_file() and path.resolve().is_relative_to(root.resolve())):
        raise ValueError(f"data.label_names: the data has no file {file}.")
    try:
        text = path.read_text(encoding="utf-8-sig").strip()
        pairs = [line.split(None, 1) for line in text.splitlines()]
        names = {
            label_of(label): label_of(name) or ""
            for label, name in (json.loads(text).items() if text[:1] == "{" else pairs)
        }
    except ValueError as error:
        raise ValueError(f"data.label_names: {file} is no list of names: {error}") from None
    name, count = next(iter(Counter(names.values()).most_common(1)), ("", 0))
    if count > 1:
        raise ValueError(f"data.label_names: {file} names {count} classes {name!r}.")
    unnamed = images[images["label"].notna() & ~images["label"].isin(names)]
    if len(unnamed):
        label, first = unnamed.iloc[0][["label", "path"]]
        raise ValueError(
            f"data.label_names: {file} has no name for the class {label!r} of {first}."
        )
    return images["label"].map(names)


def check_slices(columns: Iterable[str], known: Iterable[str]) -> None:
    """Checks that the data has the columns by which the test images are to be divided.

    Args:
        columns: `gate.slices`.
        known: The columns of the images.

    Raises:
        ValueError: The data lacks one.
    """
    there = SIDES.union(known)
    for name in columns:
        if name not in there:
            named = ", ".join(sorted(there - NO_SLICES))
            raise ValueError(f"gate.slices: the data has no column {name}, but {named}.")


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
    if values.isna().all():
        raise ValueError(f"data.group: no image has a {group}.")
    missing = values.isna()
    if missing.any():
        paths = some(images["path"][missing].tolist())
        console.say(
            f"validate: data.group: {missing.sum():,} of {len(values):,} images have no "
            f"{escape(str(group))}: {paths}"
        )
    # One value that is missing makes floats of whole numbers.
    whole = [int(each) if isinstance(each, float) and each.is_integer() else each
             for each in values]  # fmt: skip
    return [None if none else str(each) for each, none in zip(whole, missing, strict=True)]


def read_times(time: str | None, images: pd.DataFrame, own: pa.Table) -> "pd.Series[float]":
    """The time of each image, in seconds or as the user counts it; NaN where there is none.

    Args:
        time: `data.time`.
        images: The `path`, the `file` and the `split` of each, as the data has them; and `taken`,
            the time in its EXIF data.
        own: The user's own columns.

    Raises:
        ValueError: A value is no time, or numbers and dates are mixed.
    """
    if time is None:
        return pd.Series(float("nan"), images.index)
    if time == EXIF:
        values, form = images["taken"], "%Y:%m:%d %H:%M:%S"
    else:
        values = _read("data.time", time, f"neither {EXIF} nor {_A_PATTERN}", images, own)
        form = "ISO8601"
    numbers = pd.to_numeric(values, errors="coerce")
    dates = pd.to_datetime(values.where(numbers.isna()), format=form, utc=True, errors="coerce")
    wrong = values.notna() & numbers.isna() & dates.isna()
    if wrong.any():
        raise ValueError(
            f"data.time: {values[wrong].iloc[0]!r} of {images['path'][wrong].iloc[0]} is no time: "
            "write dates as 2026-11-23 or 2026-11-23 14:55, or numbers that grow with time."
        )
    if numbers.notna().any() and dates.notna().any():
        raise ValueError(f"data.time: some values of {time} are numbers and some are dates.")
    return numbers.fillna((dates - pd.Timestamp(0, tz="UTC")) / pd.Timedelta("1s"))


def _read(
    setting: str, value: str, otherwise: str, images: pd.DataFrame, own: pa.Table
) -> "pd.Series[Any]":
    """What a column has, or a regular expression finds; None where that is empty."""
    if is_pattern(value):
        is_below_split = images["split"].notna() & (images["path"] == images["file"])
        below_split = images["path"].str.partition("/")[2]
        names = images["path"].where(~is_below_split, below_split)
        matches = [re.search(value, name) for name in names]
        found = ["".join(each or "" for each in match.groups()) if match else None
                 for match in matches]  # fmt: skip
    elif value in own.column_names:
        found = own[value].to_pylist()
    else:
        columns = ", ".join(own.column_names) or "none"
        raise ValueError(
            f"{setting}: {value} is {otherwise}, and no column of your own in the Parquet files, "
            f"the list, or a metadata.csv beside the images. These are there: {columns}."
        )
    found = [each.strip() if isinstance(each, str) else each for each in found]
    values = pd.Series(found, images.index, dtype=object)
    return values.where(values != "", None)
