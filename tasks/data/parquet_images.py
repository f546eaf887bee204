"""Lists the images in Parquet files as the Hugging Face hub has them: a row for each image.

The split is in the name of the file or its folder (`train.parquet`,
`data/test-00000-of-00002.parquet`, `validation/part.parquet`).
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as is_type

from retrain.workload import Data
from tasks.data.listing import label_of, split_of

# The usual names of the columns in data sets of the hub, and what they hold.
USUAL = {"image_column": ("image", "img"), "label_column": ("label", "labels")}
BINARY = ("binary", "large_binary", "binary_view")
TYPES = {
    "image_column": BINARY,
    "label_column": (
        "string",
        "large_string",
        "string_view",
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    ),
}
FORMS = {
    "image_column": (
        "an image is its encoded bytes (binary), or a struct of `bytes` (binary) and `path` "
        "(string)"
    ),
    "label_column": "a class is a name or a whole number",
}


def list_images(
    root: Path, names: Sequence[str], image_column: str | None, data: Data | None = None
) -> tuple[str, pa.Table]:
    """The rows of files, with their classes and the user's own columns.

    Args:
        root: The folder of the data.
        names: Its Parquet files, at least one.
        image_column: The column with the images; None if it has a usual name.
        data: `label_column`, that with their classes; None if it has a usual name. Without a
            section of the data, images have no classes, and no other columns are read.

    Returns:
        The column with the images; and the rows, as `tasks/data/raw_images.py` describes them.

    Raises:
        ValueError: A file is broken, or lacks a column; or a column has values of several types.
    """
    tables = []
    for name in names:
        with _open(root, name) as parquet:
            schema = parquet.schema_arrow
            setting = "data.image_column" if data else "--image-column"
            image = _find_column(name, schema, setting, image_column)
            if data is None:
                tables.append(_rows_of(name, parquet, image, ()))
                continue
            label = _find_column(name, schema, "data.label_column", data.label_column)
            ours = (image, label, "file", "row", "path", "split", "bytes")
            own = [each.name for each in schema if each.name not in ours and _is_plain(each.type)]
            table = _rows_of(name, parquet, image, [label, *own])
        # The names of its numbers, where the Hugging Face `datasets` library wrote them.
        description = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        features: Mapping[str, Any] = description.get("info", {}).get("features", {})
        classes = features.get(label, {}).get("names") or ()
        labels = [_label(value, classes) for value in table[label].to_pylist()]
        column = pa.array(labels, pa.string())
        tables.append(table.drop_columns([label]).append_column("label", column))
    try:
        return image, pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise ValueError(f"The columns of the Parquet files do not agree: {error}") from None


def _rows_of(name: str, parquet: pq.ParquetFile, image: str, columns: Sequence[str]) -> pa.Table:
    """The rows of a file, with some of its columns; that with the images is not read.

    Raises:
        ValueError: The file is broken.
    """
    path, metadata = f"{image}.path", parquet.metadata
    try:
        table = parquet.read(columns=[path, *columns])  # the path only where there is one
        table.validate(full=True)
    except (pa.ArrowInvalid, OSError, UnicodeDecodeError) as error:
        raise _fault(f"{name} is broken", error) from None
    count = len(table)
    size = sum(metadata.row_group(n).total_byte_size for n in range(metadata.num_row_groups))
    given = table.flatten()[path].to_pylist() if image in table.column_names else [None] * count
    ours = {
        "file": pa.repeat(name, count),
        "row": pa.array(range(count), pa.int64()),
        "path": pa.array([each or f"{name}:{row}" for row, each in enumerate(given)], pa.string()),
        "split": pa.repeat(pa.scalar(split_of(name.removesuffix(".parquet")), pa.string()), count),
        "bytes": pa.repeat(size // max(count, 1), count),
    }
    for column in columns:
        values = table[column]
        is_coded = is_type.is_dictionary(values.type)
        ours[column] = values.cast(values.type.value_type) if is_coded else values
    return pa.table(ours)


def _open(root: Path, name: str) -> pq.ParquetFile:
    """Opens a file.

    Raises:
        ValueError: It is no Parquet file.
    """
    try:
        return pq.ParquetFile(root / name, memory_map=True)
    except (pa.ArrowInvalid, OSError) as error:
        with (root / name).open("rb") as file:
            if file.read(99).startswith(b"version https://git-lfs"):
                raise ValueError(f"{name} is a Git LFS pointer: git lfs pull") from None
        raise _fault(f"{name} is no Parquet file", error) from None


def _fault(problem: str, error: Exception) -> ValueError:
    """The error about a file that pyarrow cannot read, in one line."""
    return ValueError(f"{problem}: {' '.join(str(error).split())}")


def _find_column(name: str, schema: pa.Schema, setting: str, configured: str | None) -> str:
    """A column of a file.

    Args:
        name: The file.
        schema: Its columns.
        setting: What names it: `data.image_column`, `data.label_column`, or `--image-column`.
        configured: The name of the column; None for a usual one.

    Raises:
        ValueError: There is none of the right type.
    """
    key = "label_column" if setting == "data.label_column" else "image_column"
    names = (configured,) if configured else USUAL[key]
    column = next((column for column in names if column in schema.names), None)
    if column is None:
        raise ValueError(
            f"{name} has no column {' or '.join(map(repr, names))}, but "
            f"{', '.join(schema.names)}: set {setting} to one of them."
        )
    kind = held = schema.field(column).type
    if key == "image_column" and is_type.is_struct(kind) and "bytes" in kind.names:
        held = kind.field("bytes").type
    if key == "label_column" and is_type.is_dictionary(kind):
        held = kind.value_type
    if str(held) not in TYPES[key]:
        raise ValueError(f"{name}: the column {column!r} is {kind}; {FORMS[key]}. See {setting}.")
    return column


def _is_plain(kind: pa.DataType) -> bool:
    """Whether the values of a column are single ones: numbers, texts, dates."""
    is_bytes = str(kind) in BINARY or is_type.is_fixed_size_binary(kind)
    return not (is_bytes or is_type.is_nested(kind))


def _label(value: str | int | None, names: Sequence[str]) -> str | None:
    if names and isinstance(value, int) and value < len(names):
        return label_of(names[value]) if value >= 0 else None  # `datasets` writes -1 for none
    return label_of(value)
