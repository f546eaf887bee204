"""What slices are made of: what is known of each test image.

That is in the image table, in the image itself, or in a column of the user's own: of the Parquet
files that hold the images, or of a `metadata.csv` or `metadata.parquet` in a folder of images, with
the names of the files in its column `file_name`, as the Hugging Face hub has them.
"""

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.compute.prefetch import prefetch
from tasks.data import image_facts, image_table
from tasks.data.accepted_images import AcceptedImage, read_images
from tasks.data.listing import METADATA, list_files

if TYPE_CHECKING:
    import pyarrow as pa

    from tasks.data.raw_dataset import RawDataset

SPLIT = "test"
FROM_TABLE = ("width", "height", "mode", "bytes", "file")
FROM_IMAGE = (*image_facts.FACTS, "camera", "format")
NAME = "file_name"  # the column of a metadata file
_MAKE, _MODEL = 271, 272  # tags of EXIF


@dataclass(frozen=True)
class TestSplit:
    """The test images.

    Attributes:
        source: The data.
        root: Its folder.
        validated: The output of `validate`.
    """

    source: "RawDataset"
    root: Path
    validated: Path

    def table(self, columns: Sequence[str]) -> "pa.Table":
        """Columns of the image table, in the order of the prepared rows."""
        import pyarrow as pa
        import pyarrow.compute as pc

        parts = []
        for group in image_table.row_groups(self.validated):
            part = image_table.read(self.validated, group.number, ["split", *columns])
            parts.append(part.filter(pc.equal(part["split"], SPLIT)))
        return pa.concat_tables(parts).select(list(columns))


def read_columns(split: TestSplit, names: Sequence[str]) -> dict[str, list[Any]]:
    """What is known of each test image, by column; None where nothing is.

    Raises:
        ValueError: There is no such column, or a file with it cannot be read.
    """
    own = [name for name in names if name not in (*FROM_TABLE, *FROM_IMAGE)]
    found = split.table([name for name in FROM_TABLE if name in names]).to_pydict()
    found |= _measured(split, [name for name in FROM_IMAGE if name in names])
    if own:
        read = _from_rows if split.source.format == "parquet" else _from_metadata
        found |= read(split, own)
    return {name: found[name] for name in names}


def _measured(split: TestSplit, names: Sequence[str]) -> dict[str, list[Any]]:
    """Facts about the images themselves."""
    from joblib import cpu_count

    columns: dict[str, list[Any]] = {name: [] for name in names}
    if names:
        cores = cpu_count()
        images = read_images(split.source, split.validated, SPLIT)
        for facts in prefetch(_measure, images, 2 * cores, cores):
            for name, values in columns.items():
                values.append(facts.get(name))
    return columns


def _measure(image: AcceptedImage) -> dict[str, Any]:
    from PIL import Image

    with Image.open(io.BytesIO(image.data)) as opened:
        exif, kind = opened.getexif(), opened.format
    camera = " ".join(str(exif[tag]).strip("\0 ") for tag in (_MAKE, _MODEL) if tag in exif)
    facts = image_facts.measure(image.data) or {}
    return {**facts, "camera": camera or None, "format": kind}


def _from_rows(split: TestSplit, names: Sequence[str]) -> dict[str, list[Any]]:
    """Columns of the Parquet files that hold the images."""
    import pyarrow as pa
    from pyarrow import parquet

    table = split.table(["file", "row"])
    columns: dict[str, list[Any]] = {name: [None] * len(table) for name in names}
    places: dict[str, list[tuple[int, int]]] = {}
    for place, (file, row) in enumerate(zip(*table.to_pydict().values(), strict=True)):
        places.setdefault(file, []).append((place, row))
    for file, rows in places.items():
        known = parquet.read_schema(split.root / file).names
        _check(names, known, file)
        values = parquet.read_table(split.root / file, columns=list(names))
        values = values.take(pa.array([row for _, row in rows])).to_pydict()
        for name in names:
            for (place, _), value in zip(rows, values[name], strict=True):
                columns[name][place] = value
    return columns


def _from_metadata(split: TestSplit, names: Sequence[str]) -> dict[str, list[Any]]:
    """Columns of the metadata files in a folder of images."""
    files = [name for name, _ in list_files(split.root) if name.rpartition("/")[2] in METADATA]
    if not files:
        raise ValueError(
            f"gate.slices: {_and(names)} is nothing that is known of every image "
            f"({', '.join((*FROM_TABLE, *FROM_IMAGE))}), and data.path holds no {_or(METADATA)} "
            "with columns of your own."
        )
    place = {path: number for number, path in enumerate(split.table(["path"])["path"].to_pylist())}
    columns: dict[str, list[Any]] = {name: [None] * len(place) for name in names}
    for file in files:
        folder = file.rpartition("/")[0]
        for row in _rows(split.root / file, file, names):
            name = f"{folder}/{row[NAME]}" if folder else row[NAME]
            if name in place:
                for column in names:
                    columns[column][place[name]] = row[column]
    return columns


def _rows(path: Path, name: str, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rows of a metadata file.

    Raises:
        ValueError: It lacks a column, or it cannot be read.
    """
    import pyarrow as pa
    from pyarrow import csv, parquet

    read: Callable[[Path], pa.Table] = csv.read_csv if path.suffix == ".csv" else parquet.read_table
    try:
        table = read(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"{name} cannot be read: {' '.join(str(error).split())}") from None
    _check([NAME, *columns], table.column_names, name)
    yield from table.select([NAME, *columns]).to_pylist()


def _check(wanted: Sequence[str], known: Sequence[str], file: str) -> None:
    missing = [name for name in wanted if name not in known]
    if missing:
        raise ValueError(
            f"gate.slices: {file} has no column {_and(missing)}, but {', '.join(known)}."
        )


def _and(names: Sequence[str]) -> str:
    return " and ".join(names)


def _or(names: Sequence[str]) -> str:
    return " or ".join(names)
