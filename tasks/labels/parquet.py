"""Gives images of Parquet files other labels: the column of the labels is written anew."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from retrain import atomic
from retrain.errors import UsageError
from tasks.data.parquet_files import USUAL, Images, _class_names
from tasks.data.raw_dataset import unit_of
from tasks.labels.corrections import Correction


@dataclass(frozen=True)
class Edit:
    """A file in which labels change.

    Attributes:
        file: The file.
        column: The column of the labels.
        values: The new values, by row.
        changes: Of each image, its path, and its class before and after, as the data names them.
    """

    file: Path
    column: str
    values: Mapping[int, Any]
    changes: Sequence[tuple[str, str | None, str]]

    def apply(self) -> None:
        """Writes the file anew, a row group at a time, as a whole or not at all."""
        with (
            pq.ParquetFile(self.file) as before,
            atomic.replacing(self.file) as aside,
            pq.ParquetWriter(aside, before.schema_arrow) as writer,
        ):
            first = 0
            place = before.schema_arrow.get_field_index(self.column)
            for number in range(before.num_row_groups):
                table = before.read_row_group(number)
                values = table[self.column].to_pylist()
                for row in self.values.keys() & {*range(first, first + len(values))}:
                    values[row - first] = self.values[row]
                field = before.schema_arrow.field(place)
                column = pa.array(values, field.type)
                writer.write_table(table.set_column(place, field, column))
                first += len(values)


def plan(data: Images, corrections: Sequence[Correction], labels: Mapping[str, str]) -> list[Edit]:
    """The files that change.

    Args:
        data: The data.
        corrections: The labels of images of the data.
        labels: What the data calls each label.

    Raises:
        UsageError: An image has changed, or is gone.
    """
    by_file: dict[str, list[Correction]] = defaultdict(list)
    for correction in corrections:
        by_file[correction.file].append(correction)
    edits = (_edit(data, file, some, labels) for file, some in sorted(by_file.items()))
    return [edit for edit in edits if edit.values]


def _edit(
    data: Images, file: str, corrections: Sequence[Correction], labels: Mapping[str, str]
) -> Edit:
    if not (data.root / file).is_file():
        raise UsageError(f"{file} is not in the data any more.")
    unit = unit_of(sorted((file, correction.row) for correction in corrections))
    images = {image.row: image for image in data.read(unit)}
    with pq.ParquetFile(data.root / file) as parquet:
        schema = parquet.schema_arrow
    usual = (data.label_column,) if data.label_column else USUAL["label_column"]
    column = next(name for name in usual if name in schema.names)
    is_number = pa.types.is_integer(schema.field(column).type)
    names = _class_names(schema, column) if is_number else None
    values, changes = {}, []
    for correction in corrections:
        image = images.get(correction.row)
        if image is None or sha256(image.data).hexdigest() != correction.sha256:
            raise UsageError(f"{correction.path} has changed since it was listed: list it again.")
        after = labels[correction.label]
        if image.label != after:
            value = names.index(after) if names else int(after) if is_number else after
            values[correction.row] = value
            changes.append((correction.path, image.label, after))
    return Edit(data.root / file, column, values, changes)
