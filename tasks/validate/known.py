"""Keeps what the scan has found of each image that decodes, by its SHA-256.

It follows from the content of an image, whatever its name and class are. So the scan of the next
version of the data takes it and decodes the new images alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.data import image_table
from tasks.data.fingerprint import THUMBNAIL

FILE = "known.arrow"  # in the output of `validate`; the rows are in order of the digests
# The columns that the image table lacks.
MORE = pa.schema(
    {"fingerprint": pa.int64(), "thumbnail": pa.binary(THUMBNAIL), "taken": pa.string()}
)


def schema() -> pa.Schema:
    """The columns of what is known: the digest of an image, and what follows from its content."""
    names = ("sha256", "width", "height", "mode", "pixels")
    return pa.schema([*(image_table.schema().field(name) for name in names), *MORE])


def decoded(images: pa.Table) -> pa.Table:
    """What a file of the scan has of the images that decode.

    Whether an image decodes may depend on what else is installed, so the others are tried again.
    """
    return images.filter(pc.is_null(images["error"])).select(schema().names)


def keep(found: Sequence[pa.Table], folder: Path) -> None:
    """Writes what was found of all images into the output."""
    table = pa.concat_tables(found).sort_by("sha256").combine_chunks()
    with pa.OSFile(f"{folder}/{FILE}", "wb") as file, pa.ipc.new_file(file, schema()) as writer:
        writer.write_table(table)


@dataclass(frozen=True)
class KnownImages:
    """What an earlier scan has found, left on disk; cheap to send to a worker.

    Attributes:
        file: The file in the earlier output of `validate`.
    """

    file: Path

    def find(self, digests: Sequence[str]) -> dict[str, dict[str, Any]]:
        """What is known of images, by their digests; nothing of those that are not known."""
        table, known = _open(self.file)
        wanted = np.array(digests, known.dtype)
        rows = np.searchsorted(known, wanted)
        is_known = known[np.minimum(rows, len(known) - 1)] == wanted
        found = table.take(np.unique(rows[is_known])).to_pylist()
        return {row.pop("sha256"): row for row in found}


@lru_cache(maxsize=1)
def _open(file: Path) -> tuple[pa.RecordBatch, NDArray[np.bytes_]]:
    """The table, and the digests in it; neither is read into memory."""
    [table] = pa.ipc.open_file(pa.memory_map(str(file))).read_all().to_batches()
    return table, np.frombuffer(table["sha256"].buffers()[2], "S64")
