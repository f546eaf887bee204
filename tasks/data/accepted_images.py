"""Reads the encoded images of a split, as a served model would receive them."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.data import image_table

if TYPE_CHECKING:
    import pyarrow as pa

    from tasks.data.raw_dataset import RawDataset, Unit


@dataclass(frozen=True, slots=True)
class AcceptedImage:
    """An image that `validate` accepted.

    Attributes:
        path: Its name in reports.
        label: The name of its class.
        sha256: Of the encoded image.
        data: The encoded image.
        pixels: Its identity, as `tasks.data.pixels.digest` gives it; empty where it is not needed.
    """

    path: str
    label: str
    sha256: str
    data: bytes
    pixels: str = field(default="", compare=False)  # it follows from the data


def read_images(
    source: "RawDataset", validated: Path, split: str, rows: Collection[int] | None = None
) -> Iterator[AcceptedImage]:
    """Reads the images of a split, in the order of its prepared rows; few are in memory at a time.

    Args:
        source: The data.
        validated: The output of `validate`.
        split: `train`, `val` or `test`.
        rows: The numbers of those wanted in the split, from 0; all if None.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    units = source.units()
    first = 0
    for group in image_table.row_groups(validated):
        count = group.rows.get(split, 0)
        inside = range(first, first + count)
        first += count
        places = (
            range(count) if rows is None else [row - inside[0] for row in rows if row in inside]
        )
        if places:
            columns = ["split", "path", "label", "sha256", "pixels", "file", "row"]
            table = image_table.read(validated, group.number, columns)
            table = table.filter(pc.equal(table["split"], split))
            yield from _read(source, units[group.unit], table.take(pa.array(sorted(places))))


def _read(source: "RawDataset", unit: "Unit", table: "pa.Table") -> Iterator[AcceptedImage]:
    """The images of a unit that a table lists; reads no more than needed."""
    names = ("file", "row", "path", "label", "sha256", "pixels")
    columns = (table[name].to_pylist() for name in names)
    wanted = {(file, row): fields for file, row, *fields in zip(*columns, strict=True)}
    files = {file for file, _ in wanted}
    unit = replace(
        unit,
        pieces=tuple(piece for piece in unit.pieces if piece.file in files),
        files="".join(f"{name}\0" for name in unit.files.split("\0")[:-1] if name in files),
    )
    for raw in source.read(unit):
        if fields := wanted.pop((raw.file, raw.row), None):
            path, label, sha256, pixels = fields
            yield AcceptedImage(path, label, sha256, raw.data, pixels)
        if not wanted:
            return
    assert not wanted, f"{next(iter(wanted))} was accepted and is gone"
