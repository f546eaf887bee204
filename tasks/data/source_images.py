"""Reads the images of a split that is not prepared, from the raw data.

`preprocess` writes `source.json` for such a split: `image_column`, that of the data's Parquet
files, and `bytes`, the size of all its encoded images. `rows.parquet` lists the image of each row.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from models.image import Part, cut_array, to_array
from retrain.errors import RemoteError
from tasks.data.reading import ImageFiles
from tasks.data.shards import ROWS, SOURCE
from tasks.data.units import SECONDS_PER_BYTE, SECONDS_PER_IMAGE


class SourceImages:
    """The images of a split as the data has them."""

    def __init__(self, folder: Path, form: Mapping[str, Any], pulled: Path | None) -> None:
        """Opens nothing yet.

        Args:
            folder: The folder of the split, in the output of `preprocess`.
            form: `size`, `channels` and `resize`, as `models.image.to_array` takes them.
            pulled: The output of `pull`; None if only the number of images is asked for.
        """
        self._folder, self._form, self._pulled = folder, form, pulled
        self._described = json.loads((folder / SOURCE).read_text(encoding="utf-8"))
        self.shape: tuple[int, int, int] = (form["size"], form["size"], form["channels"])
        self.bytes_per_image: float = form["size"] ** 2 * form["channels"]

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        """Where the rows of each row group of `rows.parquet` end."""
        metadata = pq.read_metadata(self._folder / ROWS)
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        return np.cumsum([group.num_rows for group in groups])

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def seconds_per_image(self) -> float:
        """How long one core reads and decodes an image, roughly."""
        encoded: int = self._described["bytes"]
        return SECONDS_PER_IMAGE + SECONDS_PER_BYTE * encoded / len(self)

    def decode(
        self, rows: NDArray[np.int64], parts: NDArray[np.float64] | None = None
    ) -> Iterator[NDArray[np.uint8]]:
        """Reads and decodes images, one at a time.

        Args:
            rows: int64 (n,), row indices of the split, from 0, ascending; one may be repeated.
            parts: float64 (n, 4), the values of a `Part` that is cut out for each; None for whole
                images.

        Yields:
            uint8 (H, W, C), for each of the rows.

        Raises:
            ValueError: An image is no longer what was checked.
        """
        size, channels, resize = (self._form[name] for name in ("size", "channels", "resize"))
        unique, counts = np.unique(rows, return_counts=True)
        remaining = None if parts is None else iter(parts.tolist())
        for data, count in zip(self._read(unique), counts.tolist(), strict=True):
            if remaining is None:
                yield from repeat(to_array(data, size, channels, resize), count)
            else:
                for part in islice(remaining, count):
                    yield cut_array(data, size, channels, Part(*part))

    def _read(self, rows: NDArray[np.int64]) -> Iterator[bytes]:
        """The encoded images, a unit of the data at a time."""
        groups = np.searchsorted(self._ends, rows, side="right")
        with pq.ParquetFile(self._folder / ROWS) as parquet:
            for group in np.unique(groups).tolist():
                table = parquet.read_row_group(group, columns=["file", "row", "sha256"])
                table = table.take(rows[groups == group] - (self._ends[group] - len(table)))
                files, numbers, digests = (table[name].to_pylist() for name in table.column_names)
                places = list(zip(files, numbers, strict=True))
                assert self._pulled is not None
                source = ImageFiles(self._pulled / "data", self._described["image_column"])
                yield from _checked(source.read(places), files, digests)


def _checked(images: Iterator[bytes], files: list[str], digests: list[str]) -> Iterator[bytes]:
    """The encoded images, if they are those that were checked.

    Raises:
        ValueError: An image is not the one that was checked.
    """
    for file, digest in zip(files, digests, strict=True):
        try:
            data = next(images, None)
            fault = "an image in it is gone" if data is None else "it has changed"
        except RemoteError:
            raise
        except OSError as error:
            data, fault = None, error.strerror or str(error)
        if data is None or hashlib.sha256(data).hexdigest() != digest:
            raise ValueError(
                f"{file} of the pulled data is no longer what was checked: {fault}. Run again; if "
                "that does not help, check the disk for errors."
            )
        yield data
