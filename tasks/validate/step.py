"""Checks the data before a model is trained on it, and sets single bad images aside.

Every new image is decoded once. What is found, and what the index says, become a data frame with a
row for each image, which Great Expectations checks.
"""

import html
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa

from retrain.atomic import write_json
from retrain.errors import RejectedDataError
from retrain.runs import console
from retrain.step import Facts, Workspace, step
from retrain.store import Artifact
from retrain.workload import Checks, Data
from tasks.data import corrections, image_table, index
from tasks.data.fingerprint import near_duplicates
from tasks.data.image_lists import label_of
from tasks.data.image_table import SET_ASIDE
from tasks.data.reading import open_images
from tasks.data.splits import SPLITS
from tasks.validate.label_names import name_classes
from tasks.validate.scan import keep, scan
from tasks.validate.splits import assign_splits, find_ties
from tasks.validate.told import NEAR_DUPLICATES, read_groups, read_times

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tasks.validate.suite import Finding

# Below `report/`; and of data that is rejected, in the project's state folder.
NEAR_DUPLICATES_FILE = "near_duplicates.csv"
CORRECTED = "corrected.csv"  # the labels that corrections have changed
RESULTS = "validation_results.json"  # of Great Expectations, a result for each table
REJECTED, REJECTION = "rejected", "rejection.json"  # the folder; and the message
MAX_LISTED = 10_000
EXAMPLES = 5


@step(
    inputs=("pull",),
    reads=("data.label_names", "data.split", "data.group", "data.time", "checks"),
    libraries=("great-expectations", "pillow", "pyarrow"),
    by_difference=True,
    imports=("great_expectations",),
)
def validate(data: Data, checks: Checks, pulled: Artifact, workspace: Workspace) -> Facts:
    """Checks every image, every class and every split.

    Writes `images.parquet`, the accepted images, as `tasks/data/image_table.py` defines it;
    `quarantined.parquet`, the bad ones, with the reason; `findings.arrow`, what was found of the
    images, for the next version of the data; and below `report/`, what Great Expectations found,
    `near_duplicates.csv`, the first accepted images that look like one of a later split, and
    `corrected.csv`, the labels that are not those of the data because people have corrected them.

    Returns:
        `rows` of each split; how many images were `quarantined`; `classes`, the number of accepted
        images of each class; how many of these are `near_duplicates`; how many labels were
        `corrected`; and `test_rows`, SHA-256 (hex) over the test split, as
        `image_table.digest_of_split` gives it.

    Raises:
        RejectedDataError: More than `checks.max_bad_fraction` of the images are bad, or the others
            are too few. A report of all faults goes to the project's state folder.
        ValueError: The data cannot be read.
    """
    files, listed = open_images(pulled), index.read(pulled)
    try:
        inspected = workspace.scratch / "inspected"
        found = scan(files, listed.select(["file", "row", "bytes"]), inspected, workspace.earlier)
        keep(found, workspace.folder)
        with console.progress("dividing the images"):
            images, own = _join(listed, found), index.own_columns(listed, image_table.SCHEMA.names)
            corrected = _correct(images, data, files.root)
            _divide(images, own, _thumbnails(found), data, checks)
        with console.progress("checking the rules"):
            facts = _judge(images, own, checks, workspace)
    except ValueError:  # a verdict: the same data is not checked again
        shutil.rmtree(workspace.scratch, ignore_errors=True)
        raise
    corrected.to_csv(workspace.report / CORRECTED, index=False)
    return facts | {"corrected": len(corrected)}


def _join(listed: pa.Table, found: pa.Table) -> pd.DataFrame:
    """A row for each image: what the index says, and what was found."""
    images = listed.select(["file", "row", "path", "label", "split"]).to_pandas()
    properties: pd.DataFrame = found.drop_columns(["thumbnail"]).to_pandas()
    return pd.concat([images, properties], axis=1)


def _thumbnails(found: pa.Table) -> "NDArray[np.uint8]":
    """The thumbnails of the images, uint8 (N, …); black ones of those that do not decode."""
    nothing = bytes(found.schema.field("thumbnail").type.byte_width)
    every = b"".join(each or nothing for each in found["thumbnail"].to_pylist())
    return np.frombuffer(every, np.uint8).reshape(len(found), -1)


def _correct(images: pd.DataFrame, data: Data, root: Path) -> pd.DataFrame:
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


def _divide(
    images: pd.DataFrame,
    own: pa.Table,
    thumbnails: "NDArray[np.uint8]",
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


def _judge(
    images: pd.DataFrame, own: pa.Table, checks: Checks, workspace: Workspace
) -> dict[str, Any]:
    from tasks.validate import suite

    for name in ("error", "unknown_label", "other_label"):  # Data Docs show values unescaped
        images[f"{name}_html"] = images[name].map(html.escape, na_action="ignore")
    suites = suite.SuiteRunner(workspace.report / "data_docs")
    bad = suites.check("images", images, suite.image_rules(checks))
    is_bad = np.zeros(len(images), bool)
    for finding in bad:
        is_bad[finding.failed] = True
    accepted = images[~is_bad]
    classes, splits = _counts(accepted, checks)
    few = suites.check("classes", classes, suite.class_rules(checks))
    empty = suites.check("splits", splits, suite.split_rules())
    suites.write_docs()
    write_json(workspace.report / RESULTS, suites.results)

    lines = _write(images, own, bad, workspace.folder)
    lines += [_lacking(finding, classes) for finding in few]
    lines += [_lacking(finding, splits) for finding in empty]
    if len(classes) == 1:
        lines.append(
            f"- a single class, {classes['label'][0]!r}, and a classifier needs at least two: "
            "data.path is the folder that holds those of the classes (below train, val and test "
            "or not)"
        )
    quarantined, total = int(is_bad.sum()), len(images)
    if few:
        lines.append(suite.REMEDY)
    if quarantined / total > checks.max_bad_fraction or few or empty or len(classes) == 1:
        if bad:
            lines.append(
                f"In all {quarantined:,} of {total:,} images are bad, {quarantined / total:.3%}; "
                f"checks.max_bad_fraction lets {checks.max_bad_fraction:.3%} be set aside."
            )
        raise RejectedDataError(_reject(lines, workspace))
    return {
        "rows": dict(zip(splits["split"], splits["images"].tolist(), strict=True)),
        "quarantined": quarantined,
        "classes": image_table.images_per_class(workspace.folder),
        "test_rows": image_table.digest_of_split(workspace.folder, "test"),
        "near_duplicates": _list_near_duplicates(images, accepted, workspace.report),
    }


def _counts(accepted: pd.DataFrame, checks: Checks) -> tuple[pd.DataFrame, pd.DataFrame]:
    """How many images each class has, by split and in all, and how many each split has.

    Listed classes without an image are among them.
    """
    counts = accepted.groupby(["label", "split"]).size().unstack(fill_value=0)
    counts = counts.reindex(columns=list(SPLITS), fill_value=0)
    if checks.labels is not None:
        labels = {*counts.index, *map(label_of, checks.labels)}
        counts = counts.reindex(sorted(labels), fill_value=0)
    counts["images"] = counts.sum(axis=1)
    splits = pd.DataFrame({"split": SPLITS, "images": [int(counts[name].sum()) for name in SPLITS]})
    return counts.rename_axis("label").reset_index(), splits


def _list_near_duplicates(images: pd.DataFrame, accepted: pd.DataFrame, report: Path) -> int:
    """Writes the accepted images that look like one of a later split, and counts them all."""
    found = accepted[accepted["near_duplicate"] >= 0]
    others = images.iloc[found["near_duplicate"]]
    listed = found[["split", "path"]].assign(
        near_duplicate_split=others["split"].to_numpy(),
        near_duplicate_path=others["path"].to_numpy(),
    )
    listed.head(MAX_LISTED).to_csv(report / NEAR_DUPLICATES_FILE, index=False)
    return len(found)


def _write(
    images: pd.DataFrame, own: pa.Table, bad: "Sequence[Finding]", folder: Path
) -> list[str]:
    """Writes the accepted and the bad images.

    Returns:
        A line for each finding, with the first of its images.
    """
    lines, reasons = [], dict[int, list[str]]()
    for finding in bad:
        rows = images.iloc[[*finding.failed]].to_dict("records")
        faults = [finding.rule.reason(row) for row in rows]
        for number, fault in zip(finding.failed, faults, strict=True):
            reasons.setdefault(number, []).append(fault)
        examples = [
            f"{row['split']} {row['path']} ({fault})"
            for row, fault in zip(rows[:EXAMPLES], faults, strict=False)
        ]
        lines.append(_line(finding, examples))
    good = images.index.difference([*reasons])
    kept = own.take(good.to_numpy()) if own.num_columns else own
    image_table.write(images.loc[good], kept, folder / image_table.FILE_NAME)
    refused = images.index.difference(good)
    texts = pa.array(["; ".join(reasons[number]) for number in refused], pa.string())
    image_table.write(images.loc[refused], pa.table({"reason": texts}), folder / SET_ASIDE)
    return lines


def _lacking(finding: "Finding", rows: pd.DataFrame) -> str:
    first = rows.iloc[[*finding.failed[:EXAMPLES]]].to_dict("records")
    return _line(finding, [finding.rule.reason(row) for row in first])


def _line(finding: "Finding", examples: Sequence[str]) -> str:
    hidden = len(finding.failed) - len(examples)
    return (
        f"- {finding.rule.fault}: {len(finding.failed):,} of {finding.rows:,}: "
        f"{', '.join(examples)}{f', and {hidden:,} more' if hidden else ''}"
    )


def _reject(lines: Sequence[str], workspace: Workspace) -> str:
    """Saves the report and makes the message: a line for each expectation that failed."""
    saved = workspace.project.state / REJECTED / workspace.workload
    shutil.rmtree(saved, ignore_errors=True)
    shutil.copytree(workspace.report, saved)
    shutil.copy(workspace.folder / SET_ASIDE, saved)
    everything = f"All of them: {saved / SET_ASIDE} and {saved / RESULTS}"
    message = "\n".join(["The data is rejected:", *lines, everything])
    write_json(saved / REJECTION, {"message": message})
    return message


def say_near_duplicates(document: Mapping[str, Any]) -> None:
    """Shows how many images look like one that is held out from them, if there are any."""
    if count := document["data"]["near_duplicates"]:
        console.say(
            f"{count:,} images look like one of a split held out from theirs: the report shows "
            f"some, and {NEAR_DUPLICATES_FILE} of the step validate lists them."
        )
