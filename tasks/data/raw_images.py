"""The index of the data, and the reading of its images: each is a file, or a row of a Parquet file.

`pull` writes the index (`index.py` makes it), and the steps after it read the images that it names.
Images that one task reads together are a unit.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from retrain.store import Artifact

INDEX = "index.parquet"  # in the output of `pull`
# A row for each image: the file, relative to the data; the row in it, 0 in an image file; its name
# in reports; the class and the split, null where there is none; the size of the encoded image in
# bytes, roughly. The user's own columns follow.
COLUMNS = pa.schema(
    {
        **dict.fromkeys(("file", "path", "label", "split"), pa.string()),
        **dict.fromkeys(("row", "bytes"), pa.int64()),
    }
)

Place = tuple[str, int]  # a file, relative to the data, and a row in it; 0 in an image file
BATCH = 64  # rows of a Parquet file that are read at a time

# Large data has about so many units. Smaller units than of so many images, each of so many bytes or
# fewer, take a core less than half a second, and would cost Ray Data, 10 ms for each, and in files
# too much; larger ones lose more work if a task is killed.
UNITS = 1024
WORTH_ROWS, ROW_BYTES = 1024, 25_000
MAX_UNIT_ROWS = 16_384

# What it costs one core to read, decode and resize an image, roughly: a part for each image and one
# for each encoded byte. Measured with JPEGs of 32 x 32 (70 µs) and 1,500 x 1,000 (6.5 ms).
SECONDS_PER_IMAGE = 50e-6
SECONDS_PER_BYTE = 20e-9


@dataclass(frozen=True)
class ImageFiles:
    """The encoded images of a folder.

    Attributes:
        root: The folder.
        image_column: The column of its Parquet files with the images; None if it has none.
    """

    root: Path
    image_column: str | None = None

    def read(self, places: Iterable[Place]) -> Iterator[bytes]:
        """Reads images; few are in memory at a time.

        Args:
            places: Where they are. Rows of a Parquet file follow each other in ascending order.

        Yields:
            The encoded images, in that order; empty where a row has none.

        Raises:
            ValueError: A Parquet file is broken, or is none.
            OSError: A file cannot be read.
        """
        for file, group in groupby(places, key=itemgetter(0)):
            if file.endswith(".parquet"):
                try:
                    yield from self._read_rows(file, [row for _, row in group])
                except (pa.ArrowInvalid, OSError) as error:
                    raise ValueError(f"{file} is broken: {' '.join(str(error).split())}") from None
            else:
                for _ in group:
                    path = f"{self.root}/{file}"  # a `Path`, and a buffer, take twice the time
                    with open(path, "rb", buffering=0) as opened:  # noqa: PTH123
                        yield opened.read()

    def _read_rows(self, file: str, rows: Sequence[int]) -> Iterator[bytes]:
        """Reads from the row groups that have one of the rows, a few rows at a time."""
        assert self.image_column is not None, file
        wanted, end = np.asarray(rows), 0
        # Mapped, because a row group may be larger than the memory.
        with pq.ParquetFile(self.root / file, memory_map=True) as parquet:
            for number in range(parquet.num_row_groups):
                first, end = end, end + parquet.metadata.row_group(number).num_rows
                if not ((wanted >= first) & (wanted < end)).any():
                    continue
                for batch in parquet.iter_batches(
                    BATCH, [number], [self.image_column], use_threads=False
                ):
                    inside = wanted[(wanted >= first) & (wanted < first + len(batch))] - first
                    images = batch[0]
                    if pa.types.is_struct(images.type):  # without bytes where it is missing
                        images = images.flatten()[images.type.names.index("bytes")]
                    for row in inside.tolist():
                        yield images[row].as_py() or b""
                    first += len(batch)
                    if first > wanted[-1]:
                        return


def open_images(pulled: "Artifact") -> ImageFiles:
    """The images in the output of `pull`."""
    return ImageFiles(pulled.folder / "data", pulled.facts["image_column"])


def places_of(images: pa.Table) -> list[Place]:
    """Where the images of a table with `file` and `row` are."""
    return list(zip(images["file"].to_pylist(), images["row"].to_pylist(), strict=True))


def seconds_for(sizes: Sequence[int]) -> float:
    """The seconds that one core needs for images, roughly, by their sizes in bytes."""
    return len(sizes) * SECONDS_PER_IMAGE + sum(sizes) * SECONDS_PER_BYTE


def cut(files: ImageFiles, places: Sequence[Place], sizes: Sequence[int]) -> list[slice]:
    """Cuts images into units, in order.

    A row group of a Parquet file is in one unit unless it is too large, because its rows are read
    from the first one on.

    Args:
        files: Reads the images.
        places: The file and the row of each.
        sizes: Their sizes in bytes, roughly.
    """
    work = np.cumsum(np.maximum(sizes, ROW_BYTES))
    total = [0, *work.tolist()]  # before each image, and after the last
    least = min(max(WORTH_ROWS * ROW_BYTES, total[-1] / UNITS), MAX_UNIT_ROWS * ROW_BYTES)
    bounds = [0]
    for start in _starts(files, places):
        if total[start] - total[bounds[-1]] >= least:
            bounds.append(start)
    return [slice(*unit) for unit in pairwise([*bounds, len(places)])]


def _starts(files: ImageFiles, places: Sequence[Place]) -> Sequence[int]:
    """Where the images may be cut: at each file; in a Parquet file, at each row group."""
    if files.image_column is None:
        return range(len(places))
    starts, begin = list[int](), 0
    for file, of_file in groupby(places, key=itemgetter(0)):
        rows = [row for _, row in of_file]
        metadata = pq.read_metadata(files.root / file)
        counts = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        ends = np.union1d(np.cumsum(counts), range(0, sum(counts), MAX_UNIT_ROWS))
        _, firsts = np.unique(np.searchsorted(ends, rows, side="right"), return_index=True)
        starts += (begin + firsts).tolist()
        begin += len(rows)
    return starts
