"""Checks the data before a model is trained on it, and sets single bad images aside.

Every new image is decoded once. What is found, and what the index says, become a data frame with a
row for each image, which Great Expectations checks.
"""

import shutil
from collections.abc import Mapping
from typing import Any

from retrain.runs import console
from retrain.step import Facts, Workspace, step
from retrain.store import Artifact
from retrain.workload import Checks, Data, Gate
from tasks.data import image_table, index
from tasks.data.reading import open_images
from tasks.data.splits import SPLITS
from tasks.validate.scan import keep, scan


@step(
    inputs=("pull",),
    reads=("data.label_names", "data.split", "data.group", "data.time", "checks", "gate.slices"),
    libraries=("great-expectations", "pillow", "pyarrow"),
)
def validate(
    data: Data, checks: Checks, rules: Gate, pulled: Artifact, workspace: Workspace
) -> Facts:
    """Checks every image, every class and every split.

    Writes `images.parquet`, the accepted images, as `tasks/data/image_table.py` defines it;
    `quarantined.parquet`, the bad ones, with the reason; `findings.arrow`, what was found of the
    images, for the next version of the data; and below `report/`, what Great Expectations found,
    `near_duplicates.csv`, the first accepted images that look like one of a later split, and
    `corrected.csv`, the labels that are not those of the data because people have corrected them.

    Returns:
        `rows` of each split; how many images were `quarantined`; `classes`, the number of accepted
        images of each class; how many of these are `near_duplicates`; how many labels were
        `corrected`; `cut`, the splits that the data lacks, which were cut out of those that it has;
        and `test_rows`, SHA-256 (hex) over the test split, as
        `image_table.digest_of_split` gives it.

    Raises:
        RejectedDataError: More than `checks.max_bad_fraction` of the images are bad, or the others
            are too few. A report of all faults goes to the project's state folder.
        ValueError: The data cannot be read, or lacks a column of `gate.slices`.
    """
    from tasks.validate import faults, judge, told  # with pandas and Great Expectations

    files, listed = open_images(pulled), index.read(pulled)
    own = index.own_columns(listed, image_table.SCHEMA.names)
    told.check_slices(rules.slices, (*image_table.SCHEMA.names, *own.column_names))
    try:
        inspected = workspace.scratch / "inspected"
        found = scan(files, listed.select(["file", "row", "bytes"]), inspected, workspace.earlier())
        keep(found, workspace.folder)
        with console.progress("dividing the images"):
            images = faults.join(listed, found)
            corrected = faults.correct(images, data, files.root)
            faults.divide(images, own, faults.thumbnails_of(found), data, checks)
        with console.progress("checking the rules"):
            facts = judge.judge(images, own, checks, workspace)
    except ValueError:  # a verdict: the same data is not checked again
        shutil.rmtree(workspace.scratch, ignore_errors=True)
        raise
    corrected.to_csv(workspace.report / image_table.CORRECTED, index=False)
    cut = [split for split in SPLITS if split not in listed["split"].unique().to_pylist()]
    return facts | {"corrected": len(corrected), "cut": [] if len(cut) == len(SPLITS) else cut}


def say_near_duplicates(document: Mapping[str, Any]) -> None:
    """Shows how many images look like one that is held out from them, if there are any."""
    if count := document["data"]["near_duplicates"]:
        console.say(
            f"{count:,} images look like one of a split held out from theirs: "
            f"{image_table.NEAR_DUPLICATES} of the step validate lists them."
        )
