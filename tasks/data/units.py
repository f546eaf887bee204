"""Cuts images into units: as many as one task reads."""

from collections.abc import Sequence
from itertools import groupby, pairwise
from operator import itemgetter

import numpy as np
import pyarrow.parquet as pq

from tasks.data.reading import ImageFiles, Place

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
