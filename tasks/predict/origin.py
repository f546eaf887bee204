"""Reads from a file of predictions which model wrote it, and whether it is as it was."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from retrain.errors import UsageError
from tasks.predict.inputs import digest_of_images

KEYS = ("model", "version", "package")  # each below `retrain.` in the file's metadata
IMAGES = b"retrain.images"


@dataclass(frozen=True)
class Origin:
    """What a file of predictions says of itself.

    Attributes:
        rows: How many images.
        model: The name of the model.
        version: The number of the version.
        package: The digest of the package that answered.
        images: SHA-256 (hex) over the paths and the contents of the images, as it was written; None
            in a copy that lacks it: PyArrow does not copy what was added at the end.
        unchanged: Whether the file's rows still have that digest; None as above.
    """

    rows: int
    model: str
    version: int
    package: str
    images: str | None
    unchanged: bool | None


def read_origin(file: Path) -> Origin:
    """Reads what a file that `predict` has written says of itself.

    Raises:
        UsageError: There is no such file, or `predict` has not written it.
    """
    import pyarrow as pa
    from pyarrow import parquet

    if not file.is_file():
        raise UsageError(f"There is no file {file}.")
    digest = hashlib.sha256()
    try:
        with parquet.ParquetFile(file) as predictions:
            metadata = predictions.metadata.metadata or {}
            model, version, package = (metadata[f"retrain.{key}".encode()] for key in KEYS)
            for batch in predictions.iter_batches(columns=["path", "sha256"]):
                rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
                digest.update(digest_of_images(list(rows)))
            count = predictions.metadata.num_rows
    except KeyError:
        raise UsageError(
            f"{file} does not say which model wrote it: retrain predict writes that into the "
            "metadata, and copies that other programs make may lack it."
        ) from None
    except pa.ArrowInvalid as error:
        raise UsageError(f"{file} is no Parquet file that can be read: {error}") from error
    images = metadata[IMAGES].decode() if IMAGES in metadata else None
    return Origin(
        rows=count,
        model=model.decode(),
        version=int(version),
        package=package.decode(),
        images=images,
        unchanged=None if images is None else digest.hexdigest() == images,
    )
