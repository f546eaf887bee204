"""Makes the starter data: 1,797 handwritten digits as Parquet files, in three splits.

    python scripts/make_digits.py
    dvc add data && dvc push

The images are those that scikit-learn ships, the test part of "Optical Recognition of Handwritten
Digits" by E. Alpaydin and C. Kaynak (1998), UCI Machine Learning Repository,
https://doi.org/10.24432/C50P49, licensed under CC BY 4.0. Changed here: packed as PNG, the pixel
values 0..16 scaled to 0..255, and split anew. The 13 people who wrote them are in all splits.

The columns are those of the image data sets on the Hugging Face hub. The same versions of the
libraries give the same bytes on every machine: nothing is compressed, because the bytes that zlib
and Snappy produce depend on the build and the processor.
"""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

ROWS = {"train": 1237, "val": 200, "test": 360}
SEED = 0
LEVELS = 16  # the largest pixel value in the source


def make(folder: Path) -> None:
    """Writes `train.parquet`, `val.parquet` and `test.parquet`.

    Args:
        folder: Made if it is not there.
    """
    import numpy as np
    from sklearn.datasets import load_digits

    source = load_digits()
    images = np.round(source.images * (255 / LEVELS)).astype(np.uint8)
    assert len({image.tobytes() for image in images}) == len(images) == sum(ROWS.values())
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in _split(source.target).items():
        _write(folder / f"{split}.parquet", images, source.target, rows)


def _split(labels: "np.ndarray") -> dict[str, "np.ndarray"]:
    """Deals the rows out to the splits, each with the same share of every class."""
    import numpy as np
    from sklearn.model_selection import train_test_split

    left, rows = np.arange(len(labels)), {}
    for split in ("test", "val"):
        left, rows[split] = train_test_split(
            left, test_size=ROWS[split], random_state=SEED, stratify=labels[left]
        )
    return {name: np.sort(taken) for name, taken in {"train": left, **rows}.items()}


def _write(path: Path, images: "np.ndarray", labels: "np.ndarray", rows: "np.ndarray") -> None:
    import pyarrow as pa
    from pyarrow import parquet

    encoded = [{"bytes": _png(images[row]), "path": f"{row:04d}.png"} for row in rows]
    features = {
        "image": {"_type": "Image"},
        "label": {"names": [str(digit) for digit in range(10)], "_type": "ClassLabel"},
    }
    schema = pa.schema(
        {
            "image": pa.struct({"bytes": pa.binary(), "path": pa.string()}),
            "label": pa.int64(),
        },
        metadata={"huggingface": json.dumps({"info": {"features": features}})},
    )
    table = pa.table({"image": encoded, "label": labels[rows]}, schema=schema)
    parquet.write_table(table, path, compression="none")


def _png(image: "np.ndarray") -> bytes:
    """Encodes a grey image of shape (H, W), uint8."""
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG", compress_level=0)
    return file.getvalue()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path(__file__).parents[1] / "data" / "digits"
    parser.add_argument("folder", type=Path, nargs="?", default=default)
    make(parser.parse_args().folder)
