"""Small real images, and what a step is run with."""

import base64
import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from retrain.project import Project
from retrain.step import Workspace
from retrain.store import Artifact
from retrain.workload import Data
from tasks.data import index
from tasks.data.raw_images import INDEX

# 32 x 32 pixels, four squares: white and black; written by libheif.
HEIC = base64.b64decode(
    "AAAAHGZ0eXBoZWljAAAAAG1pZjFoZWljbWlhZgAAAX1tZXRhAAAAAAAAACFoZGxyAAAAAAAAAABwaWN0AAAAAAAAAAAAAA"
    "AAAAAAACJpbG9jAAAAAERAAAEAAQAAAAABoQABAAAAAAAAACEAAAAjaWluZgAAAAAAAQAAABVpbmZlAgAAAAABAABodmMx"
    "AAAAAA5waXRtAAAAAAABAAAA/WlwcnAAAADdaXBjbwAAAHZodmNDAQNwAAAAkAAAAAAAHvAA/P34+AAADwNgAAEAGEABDA"
    "H//wNwAAADAJAAAAMAAAMAHroCQGEAAQAqQgEBA3AAAAMAkAAAAwAAAwAeoCCBBZbq5Ka5uAhoMCAAAAMDIAAAAwAhYgAB"
    "AAZEAcFzwIkAAAATY29scm5jbHgAAQANAAaAAAAAFGlzcGUAAAAAAAAAQAAAAEAAAAAoY2xhcAAAACAAAAABAAAAIAAAAA"
    "H////gAAAAAv///+AAAAACAAAAEHBpeGkAAAAAAwgICAAAABhpcG1hAAAAAAAAAAEAAQWBAgMFhAAAACltZGF0AAAAHSgB"
    "rxmA9wHIvffU94n/4rNQ//HhPNf1xqaJMBiY"
)


def png(number: int, width: int = 8, height: int = 8) -> bytes:
    """A grey image of its own for each number."""
    pixels = np.random.default_rng(number).integers(0, 256, (height, width), np.uint8)
    return encoded(Image.fromarray(pixels), "PNG")


def encoded(image: Image.Image, kind: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def write_files(root: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def parquet(columns: dict, **options) -> bytes:
    """A Parquet file with these columns."""
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer, **options)
    return buffer.getvalue()


def write_parquet(path: Path, images: list, labels: list, *, names=None, **options) -> None:
    """A file as the Hugging Face hub has it; with `names`, its labels are their numbers.

    Args:
        path: Where to.
        images: Encoded images, or rows of the column.
        labels: As many.
        names: The names of the classes.
        options: Of `pyarrow.parquet.write_table`.
    """
    rows = [
        {"bytes": image, "path": None} if isinstance(image, bytes) else image for image in images
    ]
    table = pa.table(
        {
            "image": pa.array(rows, pa.struct({"bytes": pa.binary(), "path": pa.string()})),
            "label": labels,
        }
    )
    if names is not None:
        features = {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
        written = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": written})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **options)


def pulled(folder: Path, format: str = "auto", **data: str) -> Artifact:
    """The output of `pull` for the images below `folder / "data"`."""
    found = index.build(folder / "data", Data(path="data", format=format, **data))
    pq.write_table(found.images, folder / INDEX)
    facts = {"format": found.format, "images": len(found.images)}
    facts["image_column"] = found.files.image_column
    return Artifact("pull", "key", "digest", folder, facts)


def workspace(root: Path, step: str, earlier: Path | None = None) -> Workspace:
    """A place for a step to write to, in a project of its own."""
    folder, scratch = root / step, root / f"{step}-scratch"
    folder.mkdir()
    return Workspace(folder, scratch, "key", "digits", Project(root), earlier=lambda: earlier)
