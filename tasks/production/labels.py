"""Keeps the labels that people give to images which a model has classified in production.

They are below the project's state, in `production/<model>/labels.parquet`: `sha256` (hex, of the
encoded image), `label`, and `added`, when it came. An image has one label, the last that came.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

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
    folder = folder_of(project, name)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / f"{FILE}.lock"):
        before = read(project, name)
        known = dict(zip(before["sha256"].to_pylist(), before["label"].to_pylist(), strict=True))
        fresh = {image: label for image, label in given.items() if known.get(image) != label}
        if fresh:
            stays = pc.invert(pc.is_in(before["sha256"], pa.array(list(fresh), pa.string())))
            now = pa.repeat(pa.scalar(datetime.now(UTC), COLUMNS.field("added").type), len(fresh))
            rows = [pa.array(fresh), pa.array(fresh.values(), pa.string()), now]
            added = pa.Table.from_arrays(rows, schema=COLUMNS)
            with atomic.replacing(folder / FILE) as aside:
                pq.write_table(pa.concat_tables([before.filter(stays), added]), aside)
    changed = sum(image in known for image in fresh)
    return Added(len(given), len(fresh) - changed, changed)


def _read_given(file: Path) -> dict[str, str]:
    """The label of each image in a file of the user's, by the SHA-256 of the image."""
    try:
        table = pq.read_table(file) if file.suffix == ".parquet" else _read_csv(file)
    except (pa.ArrowInvalid, OSError) as error:
        raise UsageError(f"{file} cannot be read as CSV or Parquet: {error}") from error
    key = next((name for name in ("sha256", "path") if name in table.column_names), None)
    if key is None or "label" not in table.column_names:
        raise UsageError(f"{file} needs the columns label, and sha256 or path.")
    given: dict[str, str] = {}
    for place, label in zip(table[key].to_pylist(), table["label"].to_pylist(), strict=True):
        if not place or not label:
            raise UsageError(f"{file}: a row lacks its {key if label else 'label'}.")
        image = place if key == "sha256" else _digest(file, place)
        if given.setdefault(image, label) != label:
            raise UsageError(f"{file} gives {place} two labels: {given[image]} and {label}.")
    return given


def _read_csv(file: Path) -> pa.Table:
    texts = csv.ConvertOptions(
        column_types=dict.fromkeys(("label", "sha256", "path"), pa.string()),
        strings_can_be_null=True,
        null_values=[""],
    )
    return csv.read_csv(file, convert_options=texts)


def _digest(file: Path, place: str) -> str:
    try:
        return sha256_of(file.parent / place)
    except OSError as error:
        raise UsageError(f"{file}: the image {place} cannot be read: {error}") from error
