"""Reads from a file of predictions which model wrote it, and whether it is as it was."""

import hashlib
from pathlib import Path
from typing import Any

from retrain.errors import UsageError
from tasks.predict.inputs import digest_of_images

MODEL, IMAGES = b"retrain.model", b"retrain.images"


def read_origin(file: Path) -> dict[str, Any]:
    """Reads what a file that `predict` has written says of itself.

    Returns:
        `rows`, how many images it has; of the model that answered its name, `model`, its number,
        `version`, and the digest of its `package`; `images`, SHA-256 (hex) over the paths and the
        contents of the images, as it was written, and `unchanged`, whether the rows still have that
        digest. Both are None in a copy that lacks it: PyArrow does not copy what was added last.

    Raises:
        UsageError: There is no such file, or `predict` has not written it.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    digest = hashlib.sha256()
    try:
        with pq.ParquetFile(file) as predictions:
            rows, metadata = predictions.metadata.num_rows, predictions.metadata.metadata or {}
            if MODEL not in metadata:
                raise UsageError(
                    f"{file} does not say which model wrote it: retrain predict writes that into "
                    "the metadata, and copies that other programs make may lack it."
                )
            for batch in predictions.iter_batches(columns=["path", "sha256"]):
                digest.update(digest_of_images(batch))
    except (pa.ArrowInvalid, OSError) as error:
        raise UsageError(f"{file} is no Parquet file that can be read: {error}") from error
    images = metadata[IMAGES].decode() if IMAGES in metadata else None
    return {
        "rows": rows,
        "model": metadata[MODEL].decode(),
        "version": int(metadata[b"retrain.version"]),
        "package": metadata[b"retrain.package"].decode(),
        "images": images,
        "unchanged": images and digest.hexdigest() == images,
    }
