"""Cuts images into units: as many as one task reads."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter

import numpy as np
import pyarrow.parquet as pq

from tasks.data.reading import ImageFiles, Place

# Large data has at most about so many units. Smaller units than of so many images and so much work
# would cost more in files than in work; with more images, a task would need more memory, and lose
# more work if it is killed.
UNITS = 1024
WORTH_ROWS = 128
WORTH_SECONDS = 1 / 16
MAX_UNIT_ROWS = 16_384

# What it costs one core to read, decode and resize an image, roughly: a part for each image and one
# for each encoded byte. Measured with JPEGs of 32 x 32 (70 µs) and 1,500 x 1,000 (6.5 ms).
SECONDS_PER_IMAGE = 50e-6
SECONDS_PER_BYTE = 20e-9


@dataclass(frozen=True, slots=True)
class Unit:
    """Images that follow each other.

    Attributes:
        first: The number of the first of them, from 0.
        rows: How many they are.
        bytes: Their size when encoded, roughly.
    """

    first: int
    rows: int
    bytes: int

    @property
    def seconds(self) -> float:
        """The seconds that one core needs for the unit, roughly."""
        return self.rows * SECONDS_PER_IMAGE + self.bytes * SECONDS_PER_BYTE

    @property
    def tasks(self) -> float:
        """The number of tasks that the unit is worth, or the fraction of one."""
        return max(self.rows / WORTH_ROWS, self.seconds / WORTH_SECONDS)


def cut(
    files: ImageFiles, places: Sequence[Place], sizes: Sequence[int], tasks: float = 1.0
) -> list[Unit]:
    """Cuts images into units, in order.

    A row group of a Parquet file is in one unit unless it is too large, because its rows are read
    from the first one on.

    Args:
        files: Reads the images.
        places: The file and the row of each.
        sizes: Their sizes in bytes, roughly.
        tasks: How many tasks a unit is worth at least.
    """
    least = max(tasks, Unit(0, len(sizes), sum(sizes)).tasks / UNITS)
    units, pending = [], Unit(0, 0, 0)
    for begin, end in pairwise([*_starts(files, places), len(places)]):
        if pending.rows + end - begin > MAX_UNIT_ROWS and pending.rows:
            units.append(pending)
            pending = Unit(begin, 0, 0)
        pending = Unit(pending.first, end - pending.first, pending.bytes + sum(sizes[begin:end]))
        if pending.tasks >= least:
            units.append(pending)
            pending = Unit(end, 0, 0)
    return [*units, *([pending] if pending.rows else [])]


def _starts(files: ImageFiles, places: Sequence[Place]) -> Iterator[int]:
    """Where the images may be cut: at each file; in a Parquet file, at each row group."""
    if files.image_column is None:
        yield from range(len(places))
        return
    begin = 0
    for file, of_file in groupby(places, key=itemgetter(0)):
        rows = np.array([row for _, row in of_file])
        metadata = pq.read_metadata(files.root / file)
        counts = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        groups = np.searchsorted(np.cumsum(counts), rows, side="right")
        in_group = np.arange(len(rows)) - np.searchsorted(groups, groups)
        yield from (begin + np.flatnonzero(in_group % MAX_UNIT_ROWS == 0)).tolist()
        begin += len(rows)
