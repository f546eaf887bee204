"""Keeps the results of the scan in a database on disk, because they may not fit into memory.

The images' thumbnails are in a file beside it.

The tables that Great Expectations checks are `images` (a row per image), `classes` and `splits`
(how many accepted images each has); `bad` names the images that failed, and by which rule.
"""

import sqlite3
from collections.abc import Collection, Iterable, Iterator
from itertools import count, groupby
from operator import itemgetter
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from retrain.workload import Checks, Split
from tasks.data import image_table
from tasks.data.fingerprint import THUMBNAIL, Thumbnails, look_alikes, near_duplicates
from tasks.data.image_table import SPLITS
from tasks.validate.splits import assign_splits, code, connect, equal

BATCH = 1024  # rows that are Python objects at a time
SAMPLE = 10_000  # images, of which the brightness is told


class ImageDatabase:
    """The database. Each run fills a new one; nothing in it is kept."""

    def __init__(self, path: Path) -> None:
        """Makes an empty database.

        Args:
            path: The file; an old one is removed.
        """
        path.unlink(missing_ok=True)
        self.path = path
        self._database = sqlite3.connect(path)
        self._database.row_factory = sqlite3.Row
        self._database.create_function("code", 1, code, deterministic=True)
        # No run reads the database of a killed one, so nothing has to be safe on disk.
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.executescript(_tables())
        self._thumbnails = path.with_suffix(".thumbnails").open("wb")
        columns = (*image_table.schema().names, "error", "fingerprint")
        self._columns = [name for name in columns if name != "unit"]
        self._images = 0

    def close(self) -> None:
        """Closes the database."""
        self._thumbnails.close()
        self._database.close()

    def select(self, query: str, values: Collection[object] = ()) -> list[sqlite3.Row]:
        """The rows that a query finds."""
        return self._database.execute(query, tuple(values)).fetchall()

    def number(self, query: str, *values: object) -> int:
        """The number that a query finds."""
        [[number]] = self.select(query, values)
        return int(number)

    def _change(self, statement: str, values: Collection[object] = ()) -> None:
        with self._database:
            self._database.execute(statement, tuple(values))

    def add(
        self,
        unit: int,
        images: pa.Table,
        groups: Iterable[str | None],
        times: Iterable[str | float | None],
    ) -> None:
        """Adds images, which are numbered in the order in which they are added.

        Args:
            unit: The number of the unit that has them.
            images: The images, as a file of the scan has them.
            groups: The group of each image; None for an image without a group.
            times: The time when each image was taken; None where it is not known.
        """
        rows = (
            row
            for batch in images.select(self._columns).to_batches(BATCH)
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
        )
        members = (group and code(group) for group in groups)
        numbered = zip(count(self._images), members, times, rows, strict=False)
        with self._database:
            self._database.executemany(
                f"INSERT INTO images (unit, image, member, time, {', '.join(self._columns)})"
                f" VALUES (?, ?, ?, ?{', ?' * len(self._columns)})",
                ((unit, number, member, time, *row) for number, member, time, row in numbered),
            )
        self._images += len(images)
        nothing = bytes(THUMBNAIL)  # of an image that does not decode
        for batch in images["thumbnail"].chunks:
            self._thumbnails.writelines(thumbnail or nothing for thumbnail in batch.to_pylist())

    def _thumbnails_of(self, numbers: NDArray[np.int64]) -> Thumbnails:
        """A function that gives the thumbnails of images, by their places in `numbers`."""
        self._thumbnails.flush()
        every = np.memmap(self._thumbnails.name, np.uint8, "r").reshape(-1, THUMBNAIL)
        return lambda places: every[numbers[places]]

    def tie(self, near_duplicates: bool) -> None:
        """Sets `tie` of the images that decode: a number that is the same for those of one split.

        Images with the same pixels or the same group get the same number, and so do images that are
        connected through such images.

        Args:
            near_duplicates: Whether images that look the same are tied, too.
        """
        self._change("UPDATE images SET tie = code(pixels) WHERE pixels IS NOT NULL")
        if not (near_duplicates or self.number("SELECT COUNT(member) FROM images")):
            return
        selected = self._database.execute(
            "SELECT image, tie, COALESCE(member, tie), fingerprint FROM images"
            " WHERE tie IS NOT NULL"
        )
        rows = np.fromiter(map(tuple, selected), np.dtype((np.int64, 4)))
        numbers, ties, groups, prints = rows.T
        pairs = [equal(ties), equal(groups)]
        if near_duplicates:
            pairs.append(look_alikes(prints, self._thumbnails_of(numbers)))
        names = connect(np.concatenate(pairs, axis=1), groups)
        changed = names != ties
        with self._database:
            self._database.executemany(
                "UPDATE images SET tie = ? WHERE image = ?",
                zip(map(int, names[changed]), map(int, numbers[changed]), strict=True),
            )

    def assign_splits(self, fractions: Split, checks: Checks, by_time: bool) -> None:
        """Sets `split` where the data's names define none; see `tasks.validate.splits`."""
        assign_splits(self._database, fractions, checks, by_time)

    def learn_labels(self, listed: Collection[str] | None) -> None:
        """Takes the known classes from a list; those of the training split if there is none."""
        if listed is None:
            self._change(
                "INSERT INTO known SELECT DISTINCT label FROM images"
                " WHERE split = 'train' AND label IS NOT NULL"
            )
        for label in listed or ():
            self._change("INSERT OR IGNORE INTO known VALUES (?)", (label,))

    def find(self, column: str) -> None:
        """Finds the images with a fault, and fills the column about it; see `FAULTS`."""
        self._change(FAULTS[column])

    def find_near_duplicates(self) -> None:
        """Finds the images that look like one of a later split.

        Sets `near_duplicate`, the number of that image, and `near_duplicate_in`, its split. The
        images that `find_shared` has found are left out.
        """
        selected = self._database.execute(
            "SELECT image, fingerprint, rank FROM images WHERE error IS NULL AND also_in IS NULL"
        )
        rows = np.fromiter(map(tuple, selected), "i8, i8, i1")
        numbers, prints, ranks = (rows[name] for name in ("f0", "f1", "f2"))
        matches = near_duplicates(prints, ranks, self._thumbnails_of(numbers))
        places = np.flatnonzero(matches >= 0)
        with self._database:
            self._database.executemany(
                "UPDATE images SET near_duplicate = ?, near_duplicate_in = ? WHERE image = ?",
                (
                    (int(numbers[match]), SPLITS[ranks[match]], int(numbers[place]))
                    for place, match in zip(places, matches[places], strict=True)
                ),
            )

    def set_aside(self, rule: int, query: str) -> None:
        """Marks the images that a query finds as bad.

        Args:
            rule: The number of the rule that they failed.
            query: Selects `image` among others.
        """
        self._change(f"INSERT INTO bad SELECT image, ? FROM ({query})", (rule,))

    def count_accepted(self, checks: Checks) -> None:
        """Fills `classes` and `splits`; `classes` has listed classes without an image too."""
        counts = ", ".join(f"SUM(split = '{split}')" for split in SPLITS)
        self._change(
            f"INSERT INTO classes SELECT label, {counts}, COUNT(*) FROM images"
            " WHERE image NOT IN (SELECT image FROM bad) GROUP BY label"
        )
        if checks.labels is not None:
            self._change("INSERT OR IGNORE INTO classes SELECT label, 0, 0, 0, 0 FROM known")
        for split in SPLITS:
            self._change(
                f"INSERT INTO splits SELECT '{split}', COALESCE(SUM({split}), 0) FROM classes"
            )

    def accepted(self) -> Iterator[list[sqlite3.Row]]:
        """The columns of `tasks.data.image_table` of the accepted images, a unit at a time."""
        yield from self._units(
            f"SELECT {', '.join(image_table.schema().names)} FROM images"
            " WHERE image NOT IN (SELECT image FROM bad) ORDER BY image"
        )

    def brightness(self) -> list[int]:
        """How many images of a sample of the accepted ones have a mean grey level: 0, 1 … 255."""
        rows = self._database.execute(
            "SELECT image FROM images WHERE error IS NULL AND image NOT IN (SELECT image FROM bad)"
        )
        numbers = np.fromiter((number for [number] in rows), np.int64)
        sample = numbers[:: max(1, len(numbers) // SAMPLE)]
        levels = self._thumbnails_of(sample)(np.arange(len(sample))).mean(axis=1)
        counts: list[int] = np.bincount(levels.astype(int), minlength=256).tolist()
        return counts

    def failures(self) -> Iterator[list[sqlite3.Row]]:
        """A row for each bad image and `rule` that it failed, a unit at a time."""
        yield from self._units(
            "SELECT images.*, rule FROM bad JOIN images USING (image) ORDER BY image, rule"
        )

    def _units(self, query: str) -> Iterator[list[sqlite3.Row]]:
        for _, rows in groupby(self._database.execute(query), key=itemgetter("unit")):
            yield list(rows)


def _html(column: str) -> str:
    """SQL for a column's text as HTML: Data Docs show the values of a checked column unescaped."""
    for mark, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        column = f"replace({column}, '{mark}', '{entity}')"
    return column


def _tables() -> str:
    """SQL that makes the tables, empty."""
    schema = image_table.schema()
    types = ["TEXT" if str(field.type) == "string" else "INTEGER" for field in schema]
    columns = ", ".join(map(" ".join, zip(schema.names, types, strict=True)))
    return f"""
CREATE TABLE images (
    image INTEGER PRIMARY KEY, {columns}, error TEXT, fingerprint INTEGER,
    member INTEGER, time, tie INTEGER, has_no_time INTEGER,
    rank INTEGER GENERATED ALWAYS AS (CASE split WHEN 'test' THEN 2 WHEN 'val' THEN 1 ELSE 0 END),
    unknown_label TEXT, other_label TEXT, also_in TEXT, group_in TEXT,
    near_duplicate INTEGER, near_duplicate_in TEXT,
    shorter_side INTEGER GENERATED ALWAYS AS (min(width, height)),
    longer_side INTEGER GENERATED ALWAYS AS (max(width, height)),
    error_html TEXT GENERATED ALWAYS AS ({_html("error")}),
    unknown_label_html TEXT GENERATED ALWAYS AS ({_html("unknown_label")}),
    other_label_html TEXT GENERATED ALWAYS AS ({_html("other_label")})
);
CREATE TABLE known (label TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE bad (image INTEGER, rule INTEGER, PRIMARY KEY (image, rule)) WITHOUT ROWID;
CREATE TABLE classes (
    label TEXT PRIMARY KEY, train INTEGER, val INTEGER, test INTEGER, images INTEGER
) WITHOUT ROWID;
CREATE TABLE splits (split TEXT, images INTEGER);
CREATE VIEW near_duplicates AS
    SELECT one.split, one.path, other.split AS other_split, other.path AS other_path
    FROM images AS one JOIN images AS other ON one.near_duplicate = other.image
    WHERE one.image NOT IN (SELECT image FROM bad) ORDER BY one.image;
"""


def _in_later_split(column: str, shared: str, condition: str = "TRUE") -> str:
    """SQL that sets a column to the last split (train, val, test) that shares a value."""
    return (
        f"UPDATE images SET {column} = iif(last = 2, 'test', 'val')"
        f" FROM (SELECT {shared} AS value, MAX(rank) AS last FROM images"
        f"  WHERE {shared} IS NOT NULL GROUP BY {shared} HAVING last > MIN(rank))"
        f" WHERE {shared} = value AND rank < last AND {condition}"
    )


# The statements that fill the columns about the faults of an image.
FAULTS = {
    "has_no_time": "UPDATE images SET has_no_time = 1 WHERE time IS NULL AND error IS NULL",
    "unknown_label": (
        "UPDATE images SET unknown_label = label WHERE label NOT IN (SELECT label FROM known)"
    ),
    # Another class of an image with the same pixels.
    "other_label": (
        "UPDATE images SET other_label = iif(label = first, last, first)"
        " FROM (SELECT pixels AS shared, MIN(label) AS first, MAX(label) AS last"
        "  FROM images WHERE pixels IS NOT NULL GROUP BY pixels HAVING first <> last)"
        " WHERE pixels = shared AND label IS NOT NULL"
    ),
    # The same pixels in a later split. The copy in the earlier one is set aside: training loses one
    # example of many that way, while `test` would lose a row that this model and the one in
    # production are compared on.
    "also_in": _in_later_split("also_in", "pixels"),
    # One of the same tie in a later split, which can be where the data's names define splits.
    "group_in": _in_later_split("group_in", "tie", "also_in IS NULL"),
}
