"""Checks the data before a model is trained on it, and sets single bad images aside.

Every new image is decoded once, in a plan of Ray Data if the data is large. The findings become a
row of a table, and Great Expectations checks the tables. The step's scratch folder has a file for
each unit of the data and a database of all images, so memory does not grow with their number.
"""

import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from retrain.atomic import write_json
from retrain.errors import RejectedDataError
from retrain.runs import console
from retrain.step import Chosen, Facts, Workspace, step
from retrain.store import Artifact
from retrain.workload import Checks, Data, Workload
from tasks.data import image_table
from tasks.data.image_table import SET_ASIDE, SPLITS
from tasks.data.raw_dataset import READERS, open_raw_dataset
from tasks.validate import groups_and_times
from tasks.validate.image_database import ImageDatabase
from tasks.validate.known import decoded, keep
from tasks.validate.label_names import LabelNames
from tasks.validate.scan import scan_units

if TYPE_CHECKING:
    from tasks.validate.suite import Finding

# Below `report/`; and of data that is rejected, in the project's state folder.
NEAR_DUPLICATES = "near_duplicates.csv"
RESULTS = "validation_results.json"  # of Great Expectations, a result for each table
BRIGHTNESS = "brightness.json"  # how many of a sample of the images have each mean grey level
REJECTED, REJECTION = "rejected", "rejection.json"  # the folder; the message, and what was read
MAX_LISTED = 10_000
EXAMPLES = 5


@step(
    inputs=("pull",),
    reads=(
        *("data.image_column", "data.label_column", "data.label_names"),
        *("data.split", "data.group", "data.time"),
        "checks",
    ),
    libraries=("great-expectations", "pillow", "pyarrow"),
    by_difference=True,
    imports=("great_expectations",),
)
def validate(data: Data, checks: Checks, pulled: Artifact, workspace: Workspace) -> Facts:
    """Checks every image, every class and every split.

    Writes `images.parquet`, the accepted images, as `tasks/data/image_table.py` defines it;
    `quarantined.parquet`, the bad ones, with the reason; `known.arrow`, what was found of the
    images, for the next version of the data; and below `report/`, what Great Expectations found,
    the brightness of the images, and `near_duplicates.csv`, the first accepted images that look
    like one of a later split.

    Returns:
        `rows` of each split; how many images were `quarantined`; `classes`, the number of accepted
        images of each class; how many of these are `near_duplicates`; and `test_rows`, SHA-256
        (hex) over the test split, as `image_table.digest_of_split` gives it.

    Raises:
        RejectedDataError: More than `checks.max_bad_fraction` of the images are bad, or the others
            are too few. A report of all faults goes to the project's state folder.
        ValueError: The data cannot be read.
    """
    source = open_raw_dataset(data, pulled)
    names = LabelNames(source.root, data.label_names)
    try:
        exif = data.time == groups_and_times.EXIF
        files = scan_units(source, names, workspace.scratch / "inspected", exif, workspace.earlier)
        with closing(ImageDatabase(workspace.scratch / "images.sqlite")) as database:
            with console.progress("listing the images"):
                groups = groups_and_times.read_groups(data.group, source)
                times = groups_and_times.read_times(data.time, source)
                _fill(database, files, groups, times, workspace)
            with console.progress("dividing the images"):
                _divide(database, data, checks)
            with console.progress("checking the rules"):
                return _judge(database, data, checks, workspace)
    except ValueError:  # a verdict: the same data is not checked again
        shutil.rmtree(workspace.scratch)
        raise


def _fill(
    database: ImageDatabase,
    files: Sequence[Path],
    groups: groups_and_times.Reader,
    times: groups_and_times.Reader,
    workspace: Workspace,
) -> None:
    """Fills the database with all images, from the files of the scan, and keeps what is found."""
    found = []
    for unit, file in enumerate(files):
        # Threads or reading in advance would take more memory and save no time.
        with pq.ParquetFile(file, pre_buffer=False) as parquet:
            images = parquet.read(use_threads=False)
        database.add(unit, images, groups(images), times(images))
        found.append(decoded(images))
    keep(found, workspace.folder)


def _divide(database: ImageDatabase, data: Data, checks: Checks) -> None:
    """Assigns the images to the splits that the data lacks, and finds those with a fault."""
    members = database.number("SELECT COUNT(member) FROM images")
    if data.group not in (None, groups_and_times.NEAR_DUPLICATES) and not members:
        raise ValueError(f"data.group: no image has a {data.group}.")
    database.find("other_label")
    database.tie(near_duplicates=data.group == groups_and_times.NEAR_DUPLICATES)
    database.assign_splits(data.split, checks, by_time=data.time is not None)
    database.learn_labels(checks.labels)
    database.find("unknown_label")
    database.find("also_in")
    if data.group is not None:
        database.find("group_in")
    if data.time is not None:
        database.find("has_no_time")
    database.find_near_duplicates()


def _judge(database: ImageDatabase, data: Data, checks: Checks, workspace: Workspace) -> Facts:
    from tasks.validate import suite

    suites = suite.SuiteRunner(database.path, workspace.report / "data_docs")
    bad = suites.check("images", "image", suite.image_rules(checks))
    for finding in bad:
        database.set_aside(finding.number, finding.query)
    database.count_accepted(checks)
    few = suites.check("classes", "label", suite.class_rules(checks))
    empty = suites.check("splits", "split", suite.split_rules())
    suites.write_docs()
    write_json(workspace.report / RESULTS, suites.results)
    write_json(workspace.report / BRIGHTNESS, database.brightness())

    lines = _write(bad, database, workspace.folder)
    lines += [_lacking(finding, "classes", "label", database) for finding in few]
    lines += [_lacking(finding, "splits", "split", database) for finding in empty]
    labels = database.select("SELECT label FROM classes LIMIT 2")
    if len(labels) == 1:
        lines.append(
            f"- a single class, {labels[0]['label']!r}, and a classifier needs at least two: "
            "data.path is the folder that holds those of the classes (below train, val and test "
            "or not)"
        )
    quarantined = database.number("SELECT COUNT(DISTINCT image) FROM bad")
    total = database.number("SELECT COUNT(*) FROM images")
    if few:
        lines.append(suite.REMEDY)
    if quarantined / total > checks.max_bad_fraction or few or empty or len(labels) == 1:
        if bad:
            lines.append(
                f"In all {quarantined:,} of {total:,} images are bad, {quarantined / total:.3%}; "
                f"checks.max_bad_fraction lets {checks.max_bad_fraction:.3%} be set aside."
            )
        raise RejectedDataError(_reject(lines, data, workspace))
    return {
        "rows": {
            split: database.number("SELECT images FROM splits WHERE split = ?", split)
            for split in SPLITS
        },
        "quarantined": quarantined,
        "classes": image_table.images_per_class(workspace.folder),
        "test_rows": image_table.digest_of_split(workspace.folder, "test"),
        "near_duplicates": _list_near_duplicates(database, workspace.report),
    }


def _list_near_duplicates(database: ImageDatabase, report: Path) -> int:
    """Writes the accepted images that look like one of a later split, and counts them all."""
    import csv

    listed = database.select("SELECT * FROM near_duplicates LIMIT ?", (MAX_LISTED,))
    with (report / NEAR_DUPLICATES).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["split", "path", "near_duplicate_split", "near_duplicate_path"])
        writer.writerows(listed)
    return database.number("SELECT COUNT(*) FROM near_duplicates")


def _write(bad: "Sequence[Finding]", database: ImageDatabase, folder: Path) -> list[str]:
    """Writes the accepted and the bad images, a unit at a time.

    Returns:
        A line for each finding, with the first of its images.
    """
    reasons = {finding.number: finding.rule.reason for finding in bad}
    examples: dict[int, list[str]] = defaultdict(list)
    good_columns = image_table.schema()
    bad_columns = good_columns.append(pa.field("reason", pa.string()))
    with (
        pq.ParquetWriter(folder / image_table.FILE_NAME, good_columns) as good_writer,
        pq.ParquetWriter(folder / SET_ASIDE, bad_columns) as bad_writer,
    ):
        for images in database.accepted():
            columns = [*map(pa.array, zip(*images, strict=True), good_columns.types)]
            good_writer.write_table(pa.Table.from_arrays(columns, schema=good_columns))
        for failures in database.failures():
            refused = []
            for _, failed in groupby(failures, key=itemgetter("image")):
                faults = []
                for row in failed:
                    faults.append(reasons[row["rule"]](row))
                    if len(examples[row["rule"]]) < EXAMPLES:
                        examples[row["rule"]].append(f"{row['split']} {row['path']} ({faults[-1]})")
                refused.append(dict(row) | {"reason": "; ".join(faults)})
            bad_writer.write_table(pa.Table.from_pylist(refused, bad_columns))
    return [_line(finding, examples[finding.number]) for finding in bad]


def _lacking(finding: "Finding", table: str, key: str, database: ImageDatabase) -> str:
    rows = database.select(
        f"SELECT * FROM {table} WHERE {key} IN (SELECT {key} FROM ({finding.query})) LIMIT ?",
        (EXAMPLES,),
    )
    return _line(finding, [finding.rule.reason(row) for row in rows])


def _line(finding: "Finding", examples: Sequence[str]) -> str:
    hidden = finding.failed - len(examples)
    return (
        f"- {finding.rule.fault}: {finding.failed:,} of {finding.rows:,}: "
        f"{', '.join(examples)}{f', and {hidden:,} more' if hidden else ''}"
    )


def _reject(lines: Sequence[str], data: Data, workspace: Workspace) -> str:
    """Saves the report and makes the message: a line for each expectation that failed."""
    saved = workspace.project.state / REJECTED / workspace.workload
    shutil.rmtree(saved, ignore_errors=True)
    shutil.copytree(workspace.report, saved)
    shutil.copy(workspace.folder / SET_ASIDE, saved)
    everything = f"All of them: {saved / SET_ASIDE} and {saved / RESULTS}"
    message = "\n".join(["The data is rejected:", *lines, everything])
    columns = data.model_dump(include={"image_column", "label_column"})
    write_json(saved / REJECTION, {"message": message, "columns": columns})
    return message


@validate.chooses
def _dependencies(workload: Workload, pulled: Artifact) -> Chosen:
    return Chosen(modules=(READERS[pulled.facts["format"]],))


def say_near_duplicates(document: Mapping[str, Any]) -> None:
    """Shows how many images look like one that is held out from them, if there are any."""
    if count := document["data"]["near_duplicates"]:
        console.say(
            f"{count:,} images look like one of a split held out from theirs: the report shows "
            f"some, and {NEAR_DUPLICATES} of the step validate lists them."
        )
