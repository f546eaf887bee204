"""Cuts images into units: as many as one task reads."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.data.reading import ImageFiles

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
    """Images that follow each other in a table.

    Attributes:
        first: The row of the first of them.
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


def cut(files: ImageFiles, images: pa.Table, tasks: float = 1.0) -> list[Unit]:
    """Cuts a table of images into units, in order.

    A row group of a Parquet file is in one unit unless it is too large, because its rows are read
    from the first one on.

    Args:
        files: Reads the images.
        images: `file`, `row` and `bytes` of each.
        tasks: How many tasks a unit is worth at least.
    """
    sizes = images["bytes"].to_numpy()
    every = Unit(0, len(sizes), int(sizes.sum()))
    least = max(tasks, every.tasks / UNITS)
    units, pending = [], Unit(0, 0, 0)
    for begin, end in pairwise([*_places(files, images), len(sizes)]):
        if pending.rows + end - begin > MAX_UNIT_ROWS and pending.rows:
            units.append(pending)
            pending = Unit(begin, 0, 0)
        size = pending.bytes + int(sizes[begin:end].sum())
        pending = Unit(pending.first, end - pending.first, size)
        if pending.tasks >= least:
            units.append(pending)
            pending = Unit(end, 0, 0)
    return [*units, *([pending] if pending.rows else [])]


def _places(files: ImageFiles, images: pa.Table) -> Iterator[int]:
    """Where the table may be cut: at each image; in a Parquet file, at each row group."""
    if files.image_column is None:
        yield from range(len(images))
        return
    names, rows = images["file"].to_numpy(), images["row"].to_numpy()
    starts = np.flatnonzero(names[1:] != names[:-1]) + 1
    for begin, end in pairwise([0, *starts, len(names)]):
        metadata = pq.read_metadata(files.root / names[begin])
        counts = [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]
        inside: NDArray[np.int64] = rows[begin:end]
        groups = np.searchsorted(np.cumsum(counts), inside, side="right")
        in_group = np.arange(len(inside)) - np.searchsorted(groups, groups)
        for place in np.flatnonzero(in_group % MAX_UNIT_ROWS == 0):
            yield begin + int(place)
