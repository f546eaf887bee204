"""Keeps the results of the scan in a database on disk, because they may not fit into memory.

The tables that Great Expectations checks are `images` (a row per image), `classes` and `splits`
(how many accepted images each has); `bad` names the images that failed, and by which rule.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from tasks.data.image_table import property_types
from tasks.data.raw_dataset import SPLITS

if TYPE_CHECKING:
    import pyarrow as pa

    from retrain.workload import Checks

COLUMNS = ("split", "label", "error", "sha256", *property_types())  # of the tables that are added
BATCH = 1024  # rows that are Python objects at a time

_SQL_TYPES = {int: "INTEGER", float: "REAL", str: "TEXT"}
_PROPERTIES = ", ".join(f"{name} {_SQL_TYPES[kind]}" for name, kind in property_types().items())
_TABLES = f"""
CREATE TABLE images (
    image INTEGER PRIMARY KEY, split TEXT, label TEXT, error TEXT, sha256 BLOB,
    {_PROPERTIES},
    unknown_label TEXT, also_in TEXT,
    shorter_side INTEGER GENERATED ALWAYS AS (min(width, height)),
    longer_side INTEGER GENERATED ALWAYS AS (max(width, height))
);
CREATE TABLE known (label TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE bad (image INTEGER, rule INTEGER, PRIMARY KEY (image, rule)) WITHOUT ROWID;
CREATE TABLE classes (
    label TEXT PRIMARY KEY, train INTEGER, val INTEGER, test INTEGER, images INTEGER
) WITHOUT ROWID;
CREATE TABLE splits (split TEXT, images INTEGER);
"""


class ImageDatabase(AbstractContextManager["ImageDatabase"]):
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
        # No run reads the database of a killed one, so nothing has to be safe on disk.
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.executescript(_TABLES)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes the database."""
        self._database.close()

    def add(self, first: int, images: "pa.Table") -> None:
        """Adds images.

        Args:
            first: The number of the first one; they are numbered in order.
            images: With the `COLUMNS`.
        """
        rows = (
            row
            for batch in images.select(COLUMNS).to_batches(BATCH)
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
        )
        with self._database:
            self._database.executemany(
                f"INSERT INTO images (image, {', '.join(COLUMNS)})"
                f" VALUES (?{', ?' * len(COLUMNS)})",
                (
                    (number, split, label, error, bytes.fromhex(sha256), *properties)
                    for number, (split, label, error, sha256, *properties) in enumerate(rows, first)
                ),
            )

    def find_unknown(self, checks: "Checks") -> None:
        """Sets `unknown_label` of the images whose label is not listed.

        If the workload lists no classes, those of the training split are the known ones.
        """
        with self._database:
            if checks.labels is None:
                self._database.execute(
                    "INSERT INTO known SELECT DISTINCT label FROM images"
                    " WHERE split = 'train' AND label IS NOT NULL"
                )
            else:
                self._database.executemany(
                    "INSERT OR IGNORE INTO known VALUES (?)", ((label,) for label in checks.labels)
                )
            self._database.execute(
                "UPDATE images SET unknown_label = label"
                " WHERE label IS NOT NULL AND label NOT IN (SELECT label FROM known)"
            )

    def find_shared(self) -> None:
        """Sets `also_in` of the images whose content is also in a later split (train, val, test).

        The copy in the earlier split is set aside. Training loses one example of many that way,
        while `test` would lose a row that this model and the one in production are compared on.
        """
        for rank in reversed(range(1, len(SPLITS))):
            less = ", ".join(f"'{split}'" for split in SPLITS[:rank])
            with self._database:
                self._database.execute(
                    f"UPDATE images SET also_in = ?1 WHERE split IN ({less}) AND also_in IS NULL"
                    " AND error IS NULL AND sha256 IN"
                    " (SELECT sha256 FROM images WHERE split = ?1 AND error IS NULL)",
                    (SPLITS[rank],),
                )

    def set_aside(self, rule: int, query: str) -> None:
        """Marks the images that a query finds as bad.

        Args:
            rule: The number of the rule that they failed.
            query: Selects `image` among others.
        """
        with self._database:
            self._database.execute(f"INSERT INTO bad SELECT image, ? FROM ({query})", (rule,))

    def count_accepted(self, checks: "Checks") -> None:
        """Fills `classes` and `splits`; `classes` has listed classes without an image too."""
        counts = ", ".join(f"SUM(split = '{split}')" for split in SPLITS)
        with self._database:
            self._database.execute(
                f"INSERT INTO classes SELECT label, {counts}, COUNT(*) FROM images"
                " WHERE image NOT IN (SELECT image FROM bad) GROUP BY label"
            )
            if checks.labels is not None:
                self._database.execute(
                    "INSERT OR IGNORE INTO classes SELECT label, 0, 0, 0, 0 FROM known"
                )
            for split in SPLITS:
                self._database.execute(
                    f"INSERT INTO splits SELECT '{split}', COALESCE(SUM({split}), 0) FROM classes"
                )

    def rows(self, split: str) -> int:
        """How many accepted images a split has."""
        [count] = self._database.execute("SELECT images FROM splits WHERE split = ?", (split,))
        return int(count["images"])

    def bad(self, first: int, stop: int) -> Iterator[sqlite3.Row]:
        """A row per bad image and rule, with the columns of `images` and `rule`, in order.

        Args:
            first: The number of the first image.
            stop: One more than that of the last.
        """
        yield from self._database.execute(
            "SELECT images.*, rule FROM bad JOIN images USING (image)"
            " WHERE image >= ? AND image < ? ORDER BY image, rule",
            (first, stop),
        )

    def count_bad(self) -> int:
        """How many images failed a rule."""
        [row] = self._database.execute("SELECT COUNT(DISTINCT image) AS images FROM bad")
        return int(row["images"])

    def select(self, table: str, key: str, query: str, limit: int) -> list[sqlite3.Row]:
        """The first rows of a table that a query finds.

        Args:
            table: Its name.
            key: The column that the query and the table share.
            query: Selects `key` among others.
            limit: How many at most.
        """
        found = f"SELECT {key} FROM ({query})"
        return self._database.execute(
            f"SELECT * FROM {table} WHERE {key} IN ({found}) LIMIT ?", (limit,)
        ).fetchall()
