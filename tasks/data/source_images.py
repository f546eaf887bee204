"""Reads the images of a split that is not prepared, from the raw data.

`preprocess` writes `source.json` for such a split: the `format` of the data, the columns of its
Parquet files, and `bytes`, the size of all its encoded images. Which image is which row stands in
`rows.parquet`, with a row group for each unit of the data.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.image import Part, cut_array, to_arrays
from tasks.data.raw_dataset import SECONDS_PER_BYTE, SECONDS_PER_IMAGE, RawDataset, open_format
from tasks.data.shards import ROWS, SOURCE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# The most images that are decoded together, as `preprocess` does it.
GROUP_ROWS = 16


@dataclass(frozen=True)
class _Columns:
    image_column: str | None
    label_column: str | None


class SourceImages:
    """The images of a split as the data has them; reading them decodes them."""

    decodes = True

    def __init__(self, folder: Path, form: Mapping[str, Any], pulled: Path | None) -> None:
        """Opens nothing yet.

        Args:
            folder: Of the split, in the output of `preprocess`.
            form: `size`, `channels` and `resize`, as `models.image.to_array` takes them.
            pulled: The output of `pull`; None if only the number of images is asked for.
        """
        self._folder, self._form, self._pulled = folder, form, pulled
        self._described = json.loads((folder / SOURCE).read_text(encoding="utf-8"))
        self.shape: tuple[int, int, int] = (form["size"], form["size"], form["channels"])
        self.bytes_per_image: float = form["size"] ** 2 * form["channels"]

    @cached_property
    def _ends(self) -> "NDArray[np.int64]":
        """Where the rows of each row group of `rows.parquet` end."""
        import numpy as np
        import pyarrow.parquet as pq

        metadata = pq.read_metadata(self._folder / ROWS)
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        return np.cumsum([group.num_rows for group in groups])

    @cached_property
    def _source(self) -> RawDataset:
        assert self._pulled is not None
        columns = _Columns(self._described["image_column"], self._described["label_column"])
        return open_format(self._described["format"], columns, self._pulled)

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def seconds_per_image(self) -> float:
        """How long one core reads and decodes an image, roughly."""
        encoded: int = self._described["bytes"]
        return SECONDS_PER_IMAGE + SECONDS_PER_BYTE * encoded / len(self)

    def __getitem__(self, rows: "NDArray[np.int64]") -> "NDArray[np.uint8]":
        """Reads and decodes images; see `tasks.data.shards.Shards`.

        Raises:
            ValueError: An image is no longer what was checked.
        """
        import numpy as np

        unique, places = np.unique(rows, return_inverse=True)
        images = np.empty((len(unique), *self.shape), np.uint8)
        first = 0
        for some in self.decode(unique):
            images[first : first + len(some)] = some
            first += len(some)
        return images[places]

    load = __getitem__

    def decode(self, rows: "NDArray[np.int64]") -> "Iterator[NDArray[np.uint8]]":
        """Reads and decodes images, a few at a time.

        Args:
            rows: int64 (n,), row indices of the split, from 0, strictly ascending.

        Yields:
            uint8 (up to 16, H, W, C), together those of the rows.

        Raises:
            ValueError: An image is no longer what was checked.
        """
        size, channels, resize = (self._form[name] for name in ("size", "channels", "resize"))
        some: list[bytes] = []
        for data in self._read(rows):
            some.append(data)
            if len(some) == GROUP_ROWS:
                yield to_arrays(some, size, channels, resize)
                some = []
        if some:
            yield to_arrays(some, size, channels, resize)

    def cut(
        self, rows: "NDArray[np.int64]", parts: "NDArray[np.float64]"
    ) -> "Iterator[NDArray[np.uint8]]":
        """Reads images and cuts parts out of them.

        Args:
            rows: int64 (n,), row indices of the split, from 0, ascending; one may be repeated.
            parts: float64 (n, 4), the values of a `Part` for each.

        Yields:
            uint8 (1, H, W, C), for each of the rows.

        Raises:
            ValueError: An image is no longer what was checked.
        """
        import numpy as np

        size, _, channels = self.shape
        unique, counts = np.unique(rows, return_counts=True)
        left = iter(parts.tolist())
        for data, count in zip(self._read(unique), counts.tolist(), strict=True):
            for part in islice(left, count):
                yield cut_array(data, size, channels, Part(*part))[None]

    def _read(self, rows: "NDArray[np.int64]") -> Iterator[bytes]:
        """The encoded images, a unit of the data at a time."""
        import numpy as np
        import pyarrow.parquet as pq

        groups = np.searchsorted(self._ends, rows, side="right")
        with pq.ParquetFile(self._folder / ROWS) as parquet:
            for group in np.unique(groups).tolist():
                table = parquet.read_row_group(group, columns=["file", "row", "sha256"])
                table = table.take(rows[groups == group] - (self._ends[group] - len(table)))
                files, numbers, digests = (table[name].to_pylist() for name in table.column_names)
                images = list(zip(files, numbers, strict=True))
                yield from self._checked(images, dict(zip(images, digests, strict=True)))

    def _checked(
        self, images: list[tuple[str, int]], digests: dict[tuple[str, int], str]
    ) -> Iterator[bytes]:
        """The encoded images of a unit, if they are those that were checked.

        Raises:
            ValueError: One is not.
        """
        try:
            for raw in self._source.read(self._source.reader.unit_of(images)):
                digest = digests.pop((raw.file, raw.row), None)
                if digest is None:
                    continue
                if hashlib.sha256(raw.data).hexdigest() != digest:
                    raise _changed(raw.path, "it has changed")
                yield raw.data
        except OSError as error:
            raise _changed(next(iter(digests))[0], error.strerror or str(error)) from None
        if digests:
            raise _changed(next(iter(digests))[0], "an image in it is gone")


def _changed(name: str, reason: str) -> ValueError:
    return ValueError(
        f"{name} of the pulled data is no longer what was checked: {reason}. Run again; if that "
        "does not help, check the disk for errors."
    )
