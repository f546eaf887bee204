"""Keeps the labels that people give to images which a model has classified in production.

They are below the project's state, in `production/<model>/labels.parquet`: `sha256` (hex, of the
encoded image), `label`, and `added`, when it came. An image has one label, the last that came.
"""

import csv
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from retrain import atomic
from retrain.digests import sha256_of
from retrain.errors import UsageError
from retrain.locks import locked
from retrain.project import Project
from tasks.production.answers import folder_of

FILE = "labels.parquet"
COLUMNS = pa.schema(
    {"sha256": pa.string(), "label": pa.string(), "added": pa.timestamp("ms", "UTC")}
)


@dataclass(frozen=True)
class Added:
    """What a file of labels has brought.

    Attributes:
        images: How many images it has.
        new: How many of them had no label before.
        changed: How many of them had another one.
    """

    images: int
    new: int
    changed: int


def read(project: Project, name: str) -> pa.Table:
    """The labels of the images of a model, one each; they may be none."""
    file = folder_of(project, name) / FILE
    return pq.read_table(file, schema=COLUMNS) if file.exists() else COLUMNS.empty_table()


def add(project: Project, name: str, file: Path) -> Added:
    """Adds the labels of a file; those that are known already change nothing.

    Args:
        project: The clone.
        name: The name of the model.
        file: CSV or Parquet, with the columns `label`, and `sha256` (hex, of the encoded image) or
            `path` (the image, relative to the file's folder).

    Raises:
        UsageError: The file cannot be read, lacks a column or a value, or gives an image two
            labels.
    """
    given = _read_given(file)
    folder, now = folder_of(project, name), datetime.now(UTC)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / f"{FILE}.lock"):
        known = {row["sha256"]: row for row in read(project, name).to_pylist()}
        fresh = {
            image: {"sha256": image, "label": label, "added": now}
            for image, label in given.items()
            if image not in known or known[image]["label"] != label
        }
        if fresh:
            with atomic.replacing(folder / FILE) as aside:
                rows = [*(known | fresh).values()]
                pq.write_table(pa.Table.from_pylist(rows, COLUMNS), aside)
    new = len(fresh.keys() - known.keys())
    return Added(len(given), new, len(fresh) - new)


def _read_given(file: Path) -> dict[str, str]:
    """The label of each image in a file of the user's, by the SHA-256 of the image."""
    try:
        rows = pq.read_table(file).to_pylist() if file.suffix == ".parquet" else _read_csv(file)
    except (ValueError, csv.Error, OSError) as error:
        raise UsageError(f"{file} cannot be read as CSV or Parquet: {error}") from error
    names = rows[0].keys() if rows else ()
    key = next((name for name in ("sha256", "path") if name in names), None)
    if key is None or "label" not in names:
        raise UsageError(f"{file} needs the columns label, and sha256 or path, and rows.")
    given: dict[str, str] = {}
    for row in rows:
        place, label = row[key], row["label"]
        if not place or not label:
            raise UsageError(f"{file}: a row lacks its {key if label else 'label'}.")
        image = place if key == "sha256" else _digest(file, place)
        if given.setdefault(image, label) != label:
            raise UsageError(f"{file} gives {place} two labels: {given[image]} and {label}.")
    return given


def _read_csv(file: Path) -> list[dict[str, str]]:
    """The rows of a CSV file; also as Excel writes it, with semicolons and a byte-order mark."""
    with file.open(encoding="utf-8-sig", newline="") as opened:
        separator = max(",;\t", key=opened.readline().count)
        opened.seek(0)
        return list(csv.DictReader(opened, delimiter=separator, strict=True))


def _digest(file: Path, place: str) -> str:
    try:
        return sha256_of(file.parent / place)
    except OSError as error:
        raise UsageError(f"{file}: the image {place} cannot be read: {error}") from error
