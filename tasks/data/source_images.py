"""Decodes the images of a split that is not prepared, from the raw data.

`preprocess` writes `source.json` for such a split: `image_column`, that of the data's Parquet
files, and `bytes`, the size of all its encoded images. `rows.parquet` lists the image of each row.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from models.image import Part, cut_array, to_array
from retrain.errors import RemoteError
from tasks.data.reading import ImageFiles
from tasks.data.shards import ROWS, SOURCE
from tasks.data.units import SECONDS_PER_BYTE, SECONDS_PER_IMAGE


class SourceImages:
    """The images of a split as the data has them.

    Attributes:
        shape: Height, width and channels of a decoded image.
        is_parquet: Whether they are rows of Parquet files, which are read from the first one on.
    """

    def __init__(self, folder: Path, form: Mapping[str, Any], pulled: Path) -> None:
        """Reads the list of the images.

        Args:
            folder: The folder of the split, in the output of `preprocess`.
            form: `size`, `channels` and `resize`, as `models.image.to_array` takes them.
            pulled: The output of `pull`.
        """
        self._form = form
        self._described = json.loads((folder / SOURCE).read_text(encoding="utf-8"))
        self._rows = pq.read_table(folder / ROWS, columns=["file", "row", "sha256"])
        self._files = ImageFiles(pulled / "data", self._described["image_column"])
        self.shape: tuple[int, int, int] = (form["size"], form["size"], form["channels"])
        self.is_parquet: bool = self._files.image_column is not None

    @property
    def seconds_per_image(self) -> float:
        """How long one core reads and decodes an image, roughly."""
        encoded: int = self._described["bytes"]
        return SECONDS_PER_IMAGE + SECONDS_PER_BYTE * encoded / len(self._rows)

    def decode(
        self, rows: NDArray[np.int64], parts: NDArray[np.float64] | None = None
    ) -> NDArray[np.uint8]:
        """Reads and decodes images, in the order in which the data has them.

        Args:
            rows: int64 (n,), row indices of the split, from 0, each once.
            parts: float64 (n, 4), the values of a `Part` that is cut out of each; None for whole
                images.

        Returns:
            uint8 (n, H, W, C), in the order of `rows`.

        Raises:
            ValueError: An image is no longer what was checked.
        """
        size, channels, resize = (self._form[name] for name in ("size", "channels", "resize"))
        decoded = np.empty((len(rows), *self.shape), np.uint8)
        order = np.argsort(rows)
        encoded = self._read(self._rows.take(rows[order]))
        for place, data in zip(order.tolist(), encoded, strict=True):
            if parts is None:
                decoded[place] = to_array(data, size, channels, resize)
            else:
                decoded[place] = cut_array(data, size, channels, Part(*parts[place].tolist()))
        return decoded

    def _read(self, rows: pa.Table) -> Iterator[bytes]:
        """The encoded images, if they are those that were checked.

        Raises:
            ValueError: An image is not the one that was checked.
        """
        files, numbers, digests = (rows[name].to_pylist() for name in rows.column_names)
        images = self._files.read(list(zip(files, numbers, strict=True)))
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
                    f"{file} of the pulled data is no longer what was checked: {fault}. Run again; "
                    "if that does not help, check the disk for errors."
                )
            yield data
