"""Reads prepared images that are stored as JPEG files, in the layout of `tasks/data/shards.py`."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from models.image import to_array
from tasks.data.shards import ENDS, read_into, runs_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class JpegShards:
    """The images of a split as JPEG files, left on disk."""

    decodes = True

    def __init__(self, paths: Sequence[Path], channels: int) -> None:
        """Opens the shards.

        Args:
            paths: The `.jpegs` files, at least one, in row order.
            channels: Of every image.
        """
        import numpy as np
        import simplejpeg

        self._paths = paths
        self._ends = np.cumsum([len(np.load(_ends_of(path), mmap_mode="r")) for path in paths])
        with paths[0].open("rb") as file:
            first = file.read(int(np.load(_ends_of(paths[0]), mmap_mode="r")[0]))
        height, width, _, _ = simplejpeg.decode_jpeg_header(first)
        self.shape = (height, width, channels)
        self.bytes_per_image: float = sum(path.stat().st_size for path in paths) / len(self)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, rows: "NDArray[np.int64]") -> "NDArray[np.uint8]":
        """Reads and decodes images; see `Shards`."""
        return self.load(rows)[slice(None)]

    def load(self, rows: "NDArray[np.int64]") -> "Jpegs":
        """Reads images into memory without decoding them.

        Args:
            rows: int64 (n,), row indices of the split, from 0, in any order.
        """
        import numpy as np

        sizes = np.empty(len(rows), np.int64)
        found = [(shard, list(runs)) for shard, runs in runs_of(rows, self._ends)]
        bounds = {}
        for shard, runs in found:
            bounds[shard] = np.concatenate(([0], np.load(_ends_of(self._paths[shard]))))
            for place, first, count in runs:
                sizes[place : place + count] = np.diff(bounds[shard][first : first + count + 1])
        ends = np.cumsum(sizes)
        content = np.empty(int(ends[-1]) if len(rows) else 0, np.uint8)
        target = content.data
        for shard, runs in found:
            with self._paths[shard].open("rb") as file:
                for place, first, count in runs:
                    start, stop = ends[place] - sizes[place], ends[place + count - 1]
                    read_into(file.fileno(), target[start:stop], int(bounds[shard][first]))
        return Jpegs(content, ends, self.shape)


@dataclass(frozen=True)
class Jpegs:
    """Images in memory as JPEG files; indexing decodes them.

    Attributes:
        content: uint8, the files one after the other.
        ends: int64 (n,), where each of them ends.
        shape: Height, width and channels of every image.
    """

    content: "NDArray[np.uint8]"
    ends: "NDArray[np.int64]"
    shape: tuple[int, int, int]

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, places: "NDArray[np.int64] | slice") -> "NDArray[np.uint8]":
        """Decodes images, several at a time.

        Args:
            places: int64 (m,), in any order, or a slice.

        Returns:
            uint8 (m, H, W, C), in the order of `places`.
        """
        import numpy as np

        places = np.arange(len(self))[places]
        images = np.empty((len(places), *self.shape), np.uint8)
        height, _, channels = self.shape

        def decode(number: int, place: int) -> None:
            start = self.ends[place - 1] if place else 0
            file = self.content[start : self.ends[place]].tobytes()
            images[number] = to_array(file, height, channels, "stretch")

        # The decoder lets other threads run.
        list(_decoders().map(decode, range(len(places)), places.tolist()))
        return images


@cache
def _decoders() -> ThreadPoolExecutor:
    from joblib import cpu_count

    return ThreadPoolExecutor(cpu_count(), "decoder")


def _ends_of(path: Path) -> Path:
    return path.with_suffix(ENDS)
