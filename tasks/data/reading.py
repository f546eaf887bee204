"""Reads encoded images of the data: an image is a file, or a row of a Parquet file."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from retrain.store import Artifact

Place = tuple[str, int]  # a file, relative to the data, and a row in it; 0 in an image file
BATCH = 64  # rows of a Parquet file that are read at a time


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
                    images = _bytes_of(batch[0]).to_pylist() if len(inside) else []
                    for row in inside.tolist():
                        yield images[row] or b""
                    first += len(batch)
                    if first > wanted[-1]:
                        return


def _bytes_of(images: pa.Array) -> pa.Array:
    """The encoded images of a column; where a struct is missing, its bytes are missing too."""
    if not pa.types.is_struct(images.type):
        return images
    return images.flatten()[images.type.names.index("bytes")]


def open_images(pulled: "Artifact") -> ImageFiles:
    """The images in the output of `pull`."""
    return ImageFiles(pulled.folder / "data", pulled.facts["image_column"])


def places_of(images: pa.Table) -> list[Place]:
    """Where the images of a table with `file` and `row` are."""
    return list(zip(images["file"].to_pylist(), images["row"].to_pylist(), strict=True))
