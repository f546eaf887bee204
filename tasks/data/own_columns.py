"""Reads the user's own columns, which hold more about each image than its class.

They are in the Parquet files that hold the images, or in a `metadata.csv` or `metadata.parquet` in
a folder of images, with the names of the files in its column `file_name`, as the Hugging Face hub
has them. A file that lists the images with their classes has them, too.
"""

from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

from tasks.data.listing import METADATA, list_files
from tasks.data.raw_dataset import RawDataset

NAME = "file_name"  # the column of a metadata file


def read_columns(
    source: RawDataset, names: Sequence[str], images: pa.Table, setting: str, otherwise: str
) -> dict[str, list[Any]]:
    """The values of images, by column; None where an image has none.

    Args:
        source: The data.
        names: The names of the columns.
        images: A table with the columns `file`, `row` and `path`, in the order of the files.
        setting: The parameter that asks for them, for errors.
        otherwise: What the columns are not, for the error about data without metadata files.

    Raises:
        ValueError: There is no such column, or a file with it cannot be read.
    """
    columns = tuple(names)
    if source.format != "parquet":
        listed = source.listed()
        if listed is None:
            listed = _metadata(source.root, columns, setting, otherwise)
        _check(names, listed.column_names, "the list of the images", setting)
        places = pc.index_in(images["path"], value_set=listed[NAME].combine_chunks())
        return {name: listed[name].take(places).to_pylist() for name in names}
    values: dict[str, list[Any]] = {name: [] for name in names}
    for file in images["file"].unique().to_pylist():
        rows = images.filter(pc.equal(images["file"], file))["row"]
        table = _of_rows(source.root, file, columns, setting).take(rows)
        for name in names:
            values[name] += table[name].to_pylist()
    return values


@lru_cache(maxsize=1)  # successive images are in one file
def _of_rows(root: Path, file: str, names: tuple[str, ...], setting: str) -> pa.Table:
    """Columns of a Parquet file with images."""
    path = root / file
    _check(names, pq.read_schema(path).names, file, setting)
    return pq.read_table(path, columns=list(names))


@cache
def _metadata(root: Path, names: tuple[str, ...], setting: str, otherwise: str) -> pa.Table:
    """The rows of all metadata files, with the images' names from the root of the data."""
    found = [name for name, _ in list_files(root) if name.rpartition("/")[2] in METADATA]
    if not found:
        raise ValueError(
            f"{setting}: {', '.join(names)} is {otherwise}, and data.path holds no "
            f"{' or '.join(METADATA)} with columns of your own."
        )
    tables = [_of_metadata(root, file, (NAME, *names), setting) for file in found]
    return pa.concat_tables(tables, promote_options="permissive")


def _of_metadata(root: Path, file: str, names: Sequence[str], setting: str) -> pa.Table:
    """The rows of a metadata file.

    Raises:
        ValueError: The file lacks a column, or cannot be read.
    """
    path = root / file
    try:
        table = csv.read_csv(path) if path.suffix == ".csv" else pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"{file} cannot be read: {' '.join(str(error).split())}") from None
    _check(names, table.column_names, file, setting)
    above = file.removesuffix(path.name)
    named = pc.binary_join_element_wise(above, table[NAME].cast(pa.string()), "")
    return table.select(list(names)).set_column(0, NAME, named)


def _check(names: Sequence[str], columns: Sequence[str], file: str, setting: str) -> None:
    missing = [name for name in names if name not in columns]
    if missing:
        raise ValueError(
            f"{setting}: {file} has no column {', '.join(missing)}, but {', '.join(columns)}."
        )
