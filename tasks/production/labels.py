"""Keeps the labels that people give to images which a model has classified in production.

They are below the project's state, in `production/<model>/labels.parquet`: `sha256` (hex, of the
encoded image) and `label`. An image has one label, the last that came.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from retrain import disk
from retrain.disk import sha256_of
from retrain.errors import UsageError
from retrain.locks import locked
from retrain.project import Project
from tasks.data.corrections import read_csv
from tasks.data.splits import label_of
from tasks.production.answers import folder_of

if TYPE_CHECKING:
    import pandas as pd

FILE = "labels.parquet"
COLUMNS = pa.schema({"sha256": pa.string(), "label": pa.string()})


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


def read(project: Project, name: str) -> "pd.Series[str]":
    """The labels of the images of a model, by the SHA-256 of each; they may be none."""
    file = folder_of(project, name) / FILE
    table = pq.read_table(file, schema=COLUMNS) if file.exists() else COLUMNS.empty_table()
    frame: pd.DataFrame = table.to_pandas()
    return frame.set_index("sha256")["label"]


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
    given, folder = _read_given(file), folder_of(project, name)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / f"{FILE}.lock"):
        known = read(project, name).to_dict()
        changed = [image for image in given.keys() & known if known[image] != given[image]]
        rows = [{"sha256": image, "label": label} for image, label in (known | given).items()]
        with disk.replacing(folder / FILE) as aside:
            pq.write_table(pa.Table.from_pylist(rows, COLUMNS), aside)
    return Added(len(given), len(given.keys() - known), len(changed))


def _read_given(file: Path) -> dict[str, str]:
    """The label of each image in a file of the user's, by the SHA-256 of the image."""
    try:
        if file.suffix == ".parquet":
            rows = pq.read_table(file).to_pylist()
        else:
            rows = [row for _, row in read_csv(file)[1]]
    except (ValueError, OSError) as error:
        raise UsageError(f"{file} cannot be read as CSV or Parquet: {error}") from error
    given: dict[str, str] = {}
    for row in rows or [{}]:
        image, place, label = row.get("sha256"), row.get("path"), label_of(row.get("label"))
        if not ((image or place) and label):
            raise UsageError(f"{file} needs rows with a label, and a sha256 or a path, in each.")
        try:
            image = image or sha256_of(file.parent / place)
        except OSError as error:
            raise UsageError(f"{file}: the image {place} cannot be read: {error}") from error
        if given.setdefault(image, label) != label:
            raise UsageError(
                f"{file} gives {place or image} two labels: {given[image]} and {label}."
            )
    return given
