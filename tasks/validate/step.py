"""Checks the data before a model is trained on it, and sets single bad images aside.

Every image is decoded once, in a plan of Ray Data if the data is large. The findings become a row
of a table, and Great Expectations checks the tables. The step's scratch folder has a file for each
unit of the data and a database of all images, so memory does not grow with the number of images.
"""

import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from retrain.errors import RejectedDataError
from retrain.step import Chosen, step
from tasks.data import image_table
from tasks.data.raw_dataset import READERS, open_raw_dataset
from tasks.data.splits import SPLITS
from tasks.validate import suite, told
from tasks.validate.image_database import COLUMNS, ImageDatabase
from tasks.validate.scan import scan_units

if TYPE_CHECKING:
    import pyarrow as pa

    from retrain.step import Facts, Workspace
    from retrain.store import Artifact
    from retrain.workload import Checks, Data, Workload
    from tasks.validate.suite import Finding

QUARANTINED = "quarantined.parquet"
NEAR_DUPLICATES = "near_duplicates.csv"
MAX_LISTED = 10_000
EXAMPLES = 5


@step(
    inputs=("pull",),
    reads=(
        *("data.image_column", "data.label_column", "data.split", "data.group", "data.time"),
        "checks",
    ),
    libraries=("great-expectations", "pillow", "pyarrow"),
    imports=("great_expectations",),
)
def validate(data: "Data", checks: "Checks", pulled: "Artifact", workspace: "Workspace") -> "Facts":
    """Checks every image, every class and every split.

    Writes `images.parquet`, the accepted images, as `tasks/data/image_table.py` defines it;
    `quarantined.parquet`, the bad ones, with the reason; `report/data_docs/`; and
    `report/near_duplicates.csv`, the first accepted images that look like one of a later split.

    Returns:
        `rows` of each split; how many images were `quarantined`; `classes`, the number of accepted
        images of each class; how many of these are `near_duplicates`; and `test_rows`, SHA-256
        (hex) over the test split, as `image_table.digest_of_split` gives it.

    Raises:
        RejectedDataError: More than `checks.max_bad_fraction` of the images are bad, or the others
            are too few. A report of all faults goes to the project's state folder.
        ValueError: The data cannot be read.
    """
    try:
        source = open_raw_dataset(data, pulled)
        exif = data.time == told.EXIF
        files = scan_units(source, workspace.scratch / "inspected", with_times=exif)
        with ImageDatabase(workspace.scratch / "images.sqlite") as database:
            units = _Units(files, database)
            root = pulled.folder / "data"
            groups = told.read_groups(data.group, source, root)
            times = told.read_times(data.time, source, root)
            total = _fill(database, units, groups, times)
            _divide(database, data, checks, _splits_present(files))
            return _judge(total, units, data, checks, workspace)
    except ValueError:  # a verdict: the same data is not checked again
        shutil.rmtree(workspace.scratch)
        raise


@dataclass(frozen=True)
class _Units:
    """The results of the scan, a table per unit.

    Attributes:
        files: As `scan_units` gives them.
        database: Knows the splits of their images, once they are assigned.
    """

    files: Sequence[Path]
    database: ImageDatabase

    def scanned(self, columns: Sequence[str]) -> "Iterator[tuple[int, pa.Table]]":
        """The number of each unit's first image, and a table of its images."""
        first = 0
        for file in self.files:
            images = _read(file, columns)
            yield first, images
            first += len(images)

    def read(self, columns: Sequence[str]) -> "Iterator[tuple[int, pa.Table]]":
        """The same, with the splits that the images were assigned to."""
        import pyarrow as pa

        for first, images in self.scanned(columns):
            splits = pa.array(self.database.splits(first, first + len(images)), pa.string())
            place = images.schema.get_field_index("split")
            yield first, images.set_column(place, "split", splits)


def _read(file: Path, columns: Sequence[str]) -> "pa.Table":
    import pyarrow.parquet as pq

    # Threads or reading in advance would take more memory and save no time.
    with pq.ParquetFile(file, pre_buffer=False) as parquet:
        return parquet.read(columns, use_threads=False)


def _splits_present(files: Sequence[Path]) -> frozenset[str]:
    found: set[str | None] = set()
    for file in files:
        found.update(_read(file, ["split"])["split"].unique().to_pylist())
    return frozenset(split for split in found if split is not None)


def _fill(database: ImageDatabase, units: _Units, groups: told.Reader, times: told.Reader) -> int:
    """Fills the database with all images, and counts them."""
    total = 0
    columns = dict.fromkeys((*COLUMNS, "file", "row", "path", "taken"))
    for first, images in units.scanned([*columns]):
        database.add(first, images, groups(images), times(images))
        total = first + len(images)
    return total


def _divide(
    database: ImageDatabase, data: "Data", checks: "Checks", present: frozenset[str]
) -> None:
    """Assigns the images to the splits that the data lacks."""
    if data.group not in (None, told.NEAR_DUPLICATES) and not database.has_groups():
        raise ValueError(f"data.group: no image has a {data.group}.")
    database.find_conflicting()
    database.tie(near_duplicates=data.group == told.NEAR_DUPLICATES)
    database.assign_splits(present, data.split, checks, by_time=data.time is not None)


def _judge(
    total: int, units: _Units, data: "Data", checks: "Checks", workspace: "Workspace"
) -> "Facts":
    database = units.database
    database.find_unknown(checks)
    database.find_shared()
    if data.group is not None:
        database.find_divided()
    if data.time is not None:
        database.find_without_time()
    database.find_near_duplicates()
    suites = suite.SuiteRunner(database.path, workspace.report / "data_docs")
    bad = suites.check("images", "image", suite.image_rules(checks))
    for finding in bad:
        database.set_aside(finding.number, finding.query)
    database.count_accepted(checks)
    few = suites.check("classes", "label", suite.class_rules(checks))
    empty = suites.check("splits", "split", suite.split_rules())
    suites.write_docs()

    lines = _write(units, bad, database, workspace.folder)
    lines += [_lacking(finding, "classes", "label", database) for finding in few]
    lines += [_lacking(finding, "splits", "split", database) for finding in empty]
    if (only := database.only_class()) is not None:
        lines.append(
            f"- a single class, {only!r}, and a classifier needs at least two: data.path is the "
            "folder that holds those of the classes (below train, val and test or not)"
        )
    quarantined = database.count_bad()
    if few:
        lines.append(suite.REMEDY)
    if quarantined / total > checks.max_bad_fraction or few or empty or only is not None:
        if bad:
            lines.append(
                f"In all {quarantined:,} of {total:,} images are bad, {quarantined / total:.3%}; "
                f"checks.max_bad_fraction lets {checks.max_bad_fraction:.3%} be set aside."
            )
        raise RejectedDataError(_reject(lines, workspace))
    return {
        "rows": {split: database.rows(split) for split in SPLITS},
        "quarantined": quarantined,
        "classes": image_table.images_per_class(workspace.folder),
        "test_rows": image_table.digest_of_split(workspace.folder, "test"),
        "near_duplicates": _list_near_duplicates(units, database, workspace.report),
    }


def _list_near_duplicates(units: _Units, database: ImageDatabase, report: Path) -> int:
    """Writes the accepted images that look like one of a later split, and counts them all."""
    import csv

    count, listed = database.near_duplicates(MAX_LISTED)
    wanted = {*listed, *listed.values()}
    names: dict[int, tuple[str, str]] = {}
    for first, images in units.read(["split", "path", "sha256"]) if wanted else ():
        for number in wanted.intersection(range(first, first + len(images))):
            place = number - first
            names[number] = images["split"][place].as_py(), images["path"][place].as_py()
    with (report / NEAR_DUPLICATES).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["split", "path", "near_duplicate_split", "near_duplicate_path"])
        writer.writerows([*names[image], *names[other]] for image, other in listed.items())
    return count


def _write(
    units: _Units, bad: "Sequence[Finding]", database: ImageDatabase, folder: Path
) -> list[str]:
    """Writes the accepted and the bad images, a unit at a time.

    Returns:
        A line for each finding, with the first of its images.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    reasons_of = {finding.number: finding.rule.reason for finding in bad}
    examples: dict[int, list[str]] = defaultdict(list)
    columns = image_table.schema()
    reason = pa.field("reason", pa.string())
    with (
        pq.ParquetWriter(folder / image_table.FILE_NAME, columns) as good_writer,
        pq.ParquetWriter(folder / QUARANTINED, columns.append(reason)) as bad_writer,
    ):
        for first, images in units.read(columns.names):
            reasons: dict[int, list[str]] = defaultdict(list)
            for row in database.bad(first, first + len(images)):
                place, rule = row["image"] - first, row["rule"]
                reasons[place].append(reasons_of[rule](row))
                if len(examples[rule]) < EXAMPLES:
                    path = images["path"][place]
                    examples[rule].append(f"{row['split']} {path} ({reasons[place][-1]})")
            if reasons:
                rows = images.take(list(reasons)).append_column(
                    reason, [["; ".join(each) for each in reasons.values()]]
                )
                bad_writer.write_table(rows)
            good = np.delete(np.arange(len(images)), list(reasons))
            if len(good):
                good_writer.write_table(images.take(good))
    return [_line(finding, examples[finding.number]) for finding in bad]


def _lacking(finding: "Finding", table: str, key: str, database: ImageDatabase) -> str:
    rows = database.select(table, key, finding.query, EXAMPLES)
    return _line(finding, [finding.rule.reason(row) for row in rows])


def _line(finding: "Finding", examples: Sequence[str]) -> str:
    more = finding.failed - len(examples)
    return (
        f"- {finding.rule.fault}: {finding.failed:,} of {finding.rows:,}: "
        f"{', '.join(examples)}{f', and {more:,} more' if more else ''}"
    )


def _reject(lines: Sequence[str], workspace: "Workspace") -> str:
    """Saves the report and makes the message: a line for each expectation that failed."""
    saved = workspace.project.state / "rejected" / workspace.workload
    shutil.rmtree(saved, ignore_errors=True)
    shutil.copytree(workspace.report / "data_docs", saved / "data_docs")
    shutil.copy(workspace.folder / QUARANTINED, saved)
    everything = f"All of them: {saved / QUARANTINED} and {saved / 'data_docs/index.html'}"
    return "\n".join(["The data is rejected:", *lines, everything])


@validate.chooses
def _chosen(workload: "Workload", pulled: "Artifact") -> Chosen:
    return Chosen(modules=(READERS[pulled.facts["format"]],))
