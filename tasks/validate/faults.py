"""Divides the images into splits, and finds the faults of each, in a data frame."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from retrain.runs import console
from retrain.workload import Checks, Data
from tasks.data import corrections
from tasks.data.fingerprint import near_duplicates
from tasks.data.listing import some
from tasks.data.splits import SPLITS, label_of
from tasks.validate.splits import assign_splits, find_ties
from tasks.validate.told import NEAR_DUPLICATES, name_classes, read_groups, read_times


def join(listed: pa.Table, found: pa.Table) -> pd.DataFrame:
    """A row for each image: what the index says, and what was found."""
    images = listed.select(["file", "row", "path", "label", "split"]).to_pandas()
    properties: pd.DataFrame = found.drop_columns(["thumbnail"]).to_pandas()
    joined: pd.DataFrame = pd.concat([images, properties], axis=1)
    if animated := joined["path"][joined["is_animated"].eq(True)].tolist():
        said = f"of several pictures in an image the first one counts ({len(animated):,})"
        console.say(f"validate: {said}: {some(animated)}")
    return joined


def thumbnails_of(found: pa.Table) -> NDArray[np.uint8]:
    """The thumbnails of the images, uint8 (N, …); black ones of those that do not decode."""
    nothing = bytes(found.schema.field("thumbnail").type.byte_width)
    every = b"".join(each or nothing for each in found["thumbnail"].to_pylist())
    return np.frombuffer(every, np.uint8).reshape(len(found), -1)


def correct(images: pd.DataFrame, data: Data, root: Path) -> pd.DataFrame:
    """Names the classes, and gives images the labels that people have corrected.

    Returns:
        The images whose label is another one now: `path`, `sha256`, `before` and `label`.
    """
    if data.label_names is not None:
        images["label"] = name_classes(images, root, data.label_names)
    corrected = images["sha256"].map(corrections.read(root))
    changed = corrected.notna() & (corrected != images["label"])
    before = images.loc[changed, "label"]
    images.loc[changed, "label"] = corrected[changed]
    if changed.any():
        console.say(f"validate: {changed.sum():,} labels are corrected, by {corrections.FILE}")
    listed: pd.DataFrame = images.loc[changed, ["path", "sha256", "label"]].assign(before=before)
    return listed


def divide(
    images: pd.DataFrame,
    own: pa.Table,
    thumbnails: NDArray[np.uint8],
    data: Data,
    checks: Checks,
) -> None:
    """Assigns the images to the splits that the data lacks, and finds those with a fault."""
    decodes = images["error"].isna()
    images["shorter_side"] = images[["width", "height"]].min(axis=1)
    images["longer_side"] = images[["width", "height"]].max(axis=1)
    images["time"] = read_times(data.time, images, own)
    groups = pd.Series(read_groups(data.group, images, own), dtype=object)
    images["other_label"] = _other_labels(images)
    look_alike = data.group == NEAR_DUPLICATES
    ties = find_ties(
        images[decodes], groups[decodes].tolist(), thumbnails[decodes] if look_alike else None
    )
    images["tie"] = pd.Series(ties, images.index[decodes], "Int64").reindex(images.index)
    images["is_divided"] = (
        decodes
        & images["label"].notna()
        & images["other_label"].isna()
        & (images["shorter_side"] >= checks.min_side)
        & (images["longer_side"] <= checks.max_side)
    )
    images["split"] = assign_splits(images, data.split, checks, by_time=data.time is not None)
    known = images.loc[images["split"] == "train", "label"]
    if checks.labels is not None:
        known = pd.Series([label_of(label) for label in checks.labels])
    images["unknown_label"] = images["label"].where(~images["label"].isin(known))
    # The same pixels in a later split. The copy in the earlier one is set aside: training loses one
    # example of many that way, while `test` would lose a row that this model and the one in
    # production are compared on.
    images["also_in"] = _later_split(images, "pixels")
    images["group_in"] = None
    if data.group is not None:  # one of the same tie, where the data's names define splits
        images["group_in"] = _later_split(images, "tie").where(images["also_in"].isna())
    images["has_no_time"] = None
    if data.time is not None:
        images["has_no_time"] = (decodes & images["time"].isna()).where(lambda is_so: is_so)
    compared = np.flatnonzero(decodes & images["also_in"].isna())
    matches = near_duplicates(
        images["fingerprint"].to_numpy()[compared].astype(np.int64),
        images["split"].map(SPLITS.index).to_numpy()[compared],
        lambda places: thumbnails[compared[places]],
    )
    found = compared[matches >= 0]
    images["near_duplicate"] = -1
    images.loc[found, "near_duplicate"] = compared[matches[matches >= 0]]
    images["near_duplicate_in"] = None
    of_others = images["split"].to_numpy()[images.loc[found, "near_duplicate"]]
    images.loc[found, "near_duplicate_in"] = of_others


def _other_labels(images: pd.DataFrame) -> "pd.Series[str]":
    """Another class of an image with the same pixels; None where there is none."""
    of_pixels = images.groupby("pixels")["label"]
    first, last = of_pixels.transform("min"), of_pixels.transform("max")
    other = first.where(images["label"] != first, last)
    return other.where((first != last) & images["label"].notna())


def _later_split(images: pd.DataFrame, shared: str) -> "pd.Series[str]":
    """The last split (train, val, test) that shares a value, where that is a later one."""
    ranks = images["split"].map(SPLITS.index)
    last = ranks.groupby(images[shared]).transform("max")
    return last.map(dict(enumerate(SPLITS))).where(last > ranks)
