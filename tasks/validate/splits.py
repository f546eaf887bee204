"""Divides the images into splits, and finds the faults of each, in a data frame.

A split that the data's names do not define is taken out of the training images, or out of all
images if the data has no splits at all. Images that have to stay together form a tie: those with
the same pixels, and those of the same group (`data.group`). Whole ties are assigned to a split.

Each tie has a place, a number from 0 to 1 that follows from the digest of its pixels, or from the
value of its group. Ties with places below `data.split.test` are test, and the next ones are val. If
a class then has too few ties in test or val, the ties with the next places are added. So no tie
moves from train to val or test when images are added; a tie that was held out only because its
class had too few may move back to train. (Exact shares in each class could not guarantee this: they
would move a few images both ways each time.) The exception is a class whose ties would all be held
out: the last of them are used for training.

A tie has its number from its pixels or its group; one of images that look the same, which has no
name of its own, keeps the number that it had for the champion.

With `data.time`, the newest images are test and those before them val, whatever their classes.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from retrain.runs import console
from retrain.workload import NEAR_DUPLICATES, Checks, Data, Split
from tasks.data import corrections
from tasks.data.image_facts import image_id
from tasks.data.listing import SPLITS, label_of, some
from tasks.data.perceptual_hash import THUMBNAIL, look_alikes, near_duplicates
from tasks.validate.annotations import name_classes, read_groups, read_times

HELD_OUT = {1: "val", 2: "test"}
# The tie of an image, which `image_id` names.
TIES = np.dtype([("image", "<u8"), ("tie", "<i8")])
NO_TIES = np.empty(0, TIES)


def join(listed: pa.Table, found: pa.Table) -> pd.DataFrame:
    """A row for each image: what the index says, and what was found."""
    images = listed.select(["file", "row", "path", "label", "split"]).to_pandas()
    properties: pd.DataFrame = found.drop_columns(["thumbnail"]).to_pandas()
    joined: pd.DataFrame = pd.concat([images, properties], axis=1)
    if animated := joined["path"][joined["is_animated"].eq(True)].tolist():
        said = f"of several pictures in an image the first one counts ({len(animated):,})"
        console.say(f"validate: {said}: {some(animated)}")
    return joined


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
    found: pa.Table,
    data: Data,
    checks: Checks,
    champions: NDArray[np.void],
) -> pd.DataFrame:
    """Assigns the images to the splits that the data lacks, and finds those with a fault.

    Args:
        images: A row for each, as `join` gives it.
        own: The user's own columns.
        found: What was found of the images.
        data: How they are grouped and divided.
        checks: Which images are bad.
        champions: The ties of the champion's images: `TIES`.

    Returns:
        The images with `split`, `tie`, `time` and whether each `is_divided`; their `shorter_side`
        and `longer_side`; and, where an image has that fault, `other_label`, `unknown_label`,
        `also_in`, `group_in`, `has_no_time`, and `near_duplicate` with `near_duplicate_in`.
    """
    black = bytes(THUMBNAIL)  # of those that do not decode
    every = b"".join(each or black for each in found["thumbnail"].to_pylist())
    thumbnails = np.frombuffer(every, np.uint8).reshape(len(found), -1)
    decodes, sides = images["error"].isna(), images[["width", "height"]]
    groups = pd.Series(read_groups(data.group, images, own), dtype=object)
    ties = find_ties(
        images[decodes],
        groups[decodes].tolist(),
        thumbnails[decodes] if data.group == NEAR_DUPLICATES else None,
        champions,
    )
    images = images.assign(
        shorter_side=sides.min(axis=1),
        longer_side=sides.max(axis=1),
        time=read_times(data.time, images, own),
        other_label=_other_labels(images),
        tie=pd.Series(ties, images.index[decodes], "Int64").reindex(images.index),
        is_divided=lambda table: (
            decodes
            & table["label"].notna()
            & table["other_label"].isna()
            & (table["shorter_side"] >= checks.min_side)
            & (table["longer_side"] <= checks.max_side)
        ),
        split=lambda table: assign_splits(table, data.split, checks, data.time is not None),
    )
    return _find_faults(images, thumbnails, data, checks)


def _find_faults(
    images: pd.DataFrame, thumbnails: NDArray[np.uint8], data: Data, checks: Checks
) -> pd.DataFrame:
    """The images with the columns that say what is wrong with one beside the others."""
    known = images.loc[images["split"] == "train", "label"]
    if checks.labels is not None:
        known = pd.Series([label_of(label) for label in checks.labels])
    has_no_time = images["error"].isna() & images["time"].isna() & (data.time is not None)
    return images.assign(
        unknown_label=images["label"].where(~images["label"].isin(known)),
        # The same pixels in a later split. The copy in the earlier one is set aside: training loses
        # one example of many that way, while `test` would lose a row that this model and the one in
        # production are compared on.
        also_in=_later_split(images, "pixels"),
        # One of the same tie, where the data's names define splits.
        group_in=lambda table: _later_split(table, "tie").where(table["also_in"].isna()),
        has_no_time=has_no_time.where(has_no_time),
        near_duplicate=lambda table: _near_duplicates(table, thumbnails),
        near_duplicate_in=lambda table: table["near_duplicate"].map(table["split"]),
    )


def _near_duplicates(images: pd.DataFrame, thumbnails: NDArray[np.uint8]) -> "pd.Series[int]":
    """The images that look like one of a later split: the row of that one, by their own rows."""
    compared = np.flatnonzero(images["error"].isna() & images["also_in"].isna())
    matches = near_duplicates(
        images["fingerprint"].to_numpy()[compared].astype(np.int64),
        images["split"].map(SPLITS.index).to_numpy()[compared],
        lambda places: thumbnails[compared[places]],
    )
    alike = matches >= 0
    return pd.Series(compared[matches[alike]], compared[alike], dtype="Int64")


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


def find_ties(
    images: pd.DataFrame,
    groups: Sequence[str | None],
    thumbnails: NDArray[np.uint8] | None = None,
    known: NDArray[np.void] = NO_TIES,
) -> NDArray[np.int64]:
    """A number for each image that is the same for those that stay in one split.

    Images with the same pixels or the same group get the same number, and so do images that are
    connected through such images. A tie keeps the number that one of its images had. Where new
    images join several ties, it is the one with the last place: none that was used for training is
    held out then.

    Args:
        images: The `pixels` and, to compare how they look, the `fingerprint` of each.
        groups: The group of each; None for one without.
        thumbnails: uint8 (N, …), of images that stay together if they look the same; None if they
            do not.
        known: The ties that images had: `TIES`.
    """
    ties = np.array([_code(pixels) for pixels in images["pixels"]], np.int64)
    if thumbnails is None and not any(group is not None for group in groups):
        return ties
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    members = np.array(
        [tie if group is None else _code(group) for group, tie in zip(groups, ties, strict=True)],
        np.int64,
    )
    pairs = [_equal(ties), _equal(members)]
    if thumbnails is not None:
        pairs.append(look_alikes(images["fingerprint"].to_numpy(np.int64), thumbnails.__getitem__))
    connected = np.concatenate(pairs, axis=1)
    shape = (len(members),) * 2
    links = coo_array((np.ones(connected.shape[1], bool), tuple(connected)), shape=shape)
    _, part = connected_components(links, directed=False)
    of_part = pd.Series(members).groupby(part).min().to_numpy(np.int64, copy=True)
    ids = np.array([image_id(pixels) for pixels in images["pixels"]], np.uint64)
    is_known = np.isin(ids, known["image"])
    kept = known["tie"][np.searchsorted(known["image"], ids[is_known])]
    order = np.argsort([_place(tie) for tie in kept.tolist()])
    of_part[part[is_known][order]] = kept[order]  # the last of those that a part has
    found: NDArray[np.int64] = of_part[part]
    return found


def ties_of(images: pd.DataFrame) -> NDArray[np.void]:
    """The ties of images, for those that come later: `TIES`, ascending, each image once."""
    tied = images.dropna(subset=["tie"])
    ids = [image_id(pixels) for pixels in tied["pixels"]]
    return np.unique(np.array([*zip(ids, tied["tie"], strict=True)], TIES))


def assign_splits(
    images: pd.DataFrame, fractions: Split, checks: Checks, by_time: bool
) -> "pd.Series[str]":
    """The split of each image.

    Args:
        images: `split` as the data has it, `label`, `tie`, `time`, and `is_divided`: the others
            are set aside as bad ones.
        fractions: How much of the images without a split `val` and `test` get.
        checks: How many images of a class a split should have, where there are three times as many.
        by_time: Whether their times decide.
    """
    present = {*images["split"].dropna()}
    val = 0.0 if "val" in present else fractions.val
    test = 0.0 if "test" in present else fractions.test
    splits = images["split"].where(images["split"] != "train")  # it is these that are divided
    if val or test:
        free = images[images["is_divided"] & splits.isna()]
        least = max(1, checks.min_images_per_class_and_split)
        held = _newest(free, val, test) if by_time else _first_places(free, val, test, least)
        splits = splits.fillna(images["tie"].map(held.map(HELD_OUT)))
    return splits.fillna("train")


def _first_places(free: pd.DataFrame, val: float, test: float, least: int) -> "pd.Series[int]":
    """The ties that are held out by their places: 1 for val and 2 for test, by tie."""
    each = free[["label", "tie"]].drop_duplicates()
    places = {tie: _place(tie) for tie in each["tie"].unique().tolist()}
    each = each.assign(place=each["tie"].map(places)).sort_values(["label", "place", "tie"])
    of_class = each.groupby("label")
    nth, ties = of_class.cumcount() + 1, of_class["tie"].transform("size")
    tests = (each["place"] < test).groupby(each["label"]).transform("sum")
    held = (each["place"] < test + val).groupby(each["label"]).transform("sum")
    wanted = np.minimum(least, ties // 3)
    trained = np.maximum(wanted, 1)
    last_test = np.minimum(
        np.maximum(tests, wanted * (test > 0)), ties - trained - wanted * (val > 0)
    )
    last_val = np.minimum(np.maximum(held, last_test + wanted * (val > 0)), ties - trained)
    # A tie with images of several classes is held out if it is for one of them.
    held_out = ((nth <= last_test).astype(int) + (nth <= last_val)).groupby(each["tie"]).max()
    found: pd.Series[int] = held_out[held_out > 0]
    return found


def _newest(free: pd.DataFrame, val: float, test: float) -> "pd.Series[int]":
    """The ties that are held out by their times: 1 for val and 2 for test, by tie.

    The images of one time stay together, and a tie is as old as its newest image.
    """
    ties = free.dropna(subset=["time"]).groupby("tie")["time"].agg(["max", "size"])
    of_time = ties.groupby("max")["size"].sum().sort_index(ascending=False)
    newer = ties["max"].map(of_time.cumsum() - of_time)
    total = of_time.sum()
    is_test, is_held = newer < test * total, newer < test * total + val * total
    return (is_held.astype(int) + (is_test & is_held))[is_held]


def _place(tie: int) -> float:
    """A number from 0 to 1, with 52 bits, so that it is a float64 without rounding."""
    digest = hashlib.sha256(tie.to_bytes(8, "big", signed=True)).digest()
    return (int.from_bytes(digest[:8], "big") >> 12) / 2**52


def _code(text: str) -> int:
    """A number of 64 bits for a text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)


def _equal(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Pairs (2, N) of the index of the first equal value, and that of each value."""
    places = pd.Series(range(len(values)))
    return np.stack([places.groupby(values).transform("min"), places])
