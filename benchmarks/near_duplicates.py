"""How many images are called near-duplicates that are none, and how many copies are found.

    python -m benchmarks.near_duplicates --data FOLDER [--digits FILE]

FOLDER holds the `train.parquet` and `test.parquet` of CIFAR-10, FILE is a Parquet file of MNIST,
both in the layout of the Hugging Face hub; without a FILE the handwritten digits are the 1,797 of
scikit-learn. What is found by fingerprint and thumbnail, as `validate` does it, is compared with
what the fingerprint alone finds.

No two of the digits are copies. Of the photos many are (the same picture, cut or scaled in another
way), but a pair of two classes is none. The copies are made from 2,000 photos and from the digits.
"""

import argparse
import io
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image, ImageEnhance

from benchmarks.table import Row, report
from models.image import inspect
from tasks.data.fingerprint import (
    THUMBNAIL,
    fingerprints,
    look_alikes,
    near_duplicates,
    shrink,
)

COPIED = 2_000
Change = Callable[[Image.Image], bytes]


def encoded(image: Image.Image, kind: str = "PNG", quality: int = 95) -> bytes:
    """An image as a file."""
    file = io.BytesIO()
    image.save(file, kind, quality=quality)
    return file.getvalue()


def scaled(by: float) -> Change:
    """Makes images larger or smaller."""
    return lambda image: encoded(
        image.resize((round(image.width * by), round(image.height * by)), Image.Resampling.BICUBIC)
    )


CHANGES: dict[str, Change] = {
    "JPEG of quality 75": lambda image: encoded(image, "JPEG", 75),
    "JPEG of quality 50": lambda image: encoded(image, "JPEG", 50),
    "smaller by a quarter": scaled(0.75),
    "larger by a half": scaled(1.5),
    "brighter by 10 %": lambda image: encoded(ImageEnhance.Brightness(image).enhance(1.1)),
    "darker by 10 %": lambda image: encoded(ImageEnhance.Brightness(image).enhance(0.9)),
}


def main() -> None:
    """Prints the figures of digits and of photos."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--digits", type=Path)
    options = parser.parse_args()
    files = [options.data / f"{split}.parquet" for split in ("train", "test")]
    digits, classes = read([options.digits]) if options.digits else shipped_digits()
    measure("handwritten digits", digits, classes)
    measure("photos", *read(files))


def shipped_digits() -> tuple[list[NDArray[np.uint8]], NDArray[np.generic]]:
    """The handwritten digits of scikit-learn, uint8 (8, 8, 1) each, and their classes."""
    from sklearn.datasets import load_digits

    data = load_digits()
    return [*(data.images * (255 / 16)).astype(np.uint8)[..., None]], data.target


def read(files: Sequence[Path]) -> tuple[list[NDArray[np.uint8]], NDArray[np.generic]]:
    """The images of Parquet files, and their classes."""
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    return [inspect(row["image"]["bytes"])[1] for row in rows], np.array(
        [row["label"] for row in rows]
    )


def measure(what: str, images: Sequence[NDArray[np.uint8]], classes: NDArray[np.generic]) -> None:
    """Reports the pairs among images that are no copies, and the copies that are found."""
    prints, thumbnails = fingerprints([shrink(image) for image in images])
    ours = pairs(look_alikes(prints, lambda places: thumbnails[places]))
    alone = pairs(look_alikes(prints, blank))
    name = f"{len(images):,} {what}"
    row = ("near_duplicates", f"{name}, pairs found", len(ours), "fingerprint", len(alone))
    report(Row(*row, "pairs"))
    differ = [int((classes[each[:, 0]] != classes[each[:, 1]]).sum()) for each in (ours, alone)]
    print(f"{name}, pairs of two classes: {differ[0]}, fingerprint: {differ[1]}")

    some = range(0, len(images), -(-len(images) // COPIED))
    for change, make in CHANGES.items():
        copies = [inspect(make(Image.fromarray(images[number].squeeze())))[1] for number in some]
        copied, small = fingerprints([shrink(copy) for copy in copies])
        both = np.concatenate([copied, prints[some]])
        every = np.concatenate([small, thumbnails[some]])
        ranks = np.repeat([0, 1], len(copies))
        found = [
            float((near_duplicates(both, ranks, looks)[: len(copies)] >= 0).mean())
            for looks in (lambda places, every=every: every[places], blank)
        ]
        row = ("near_duplicates", f"{what}, {change}", found[0], "fingerprint", found[1])
        report(Row(*row, "found", "≥ 0.95"))


def blank(places: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Thumbnails that are all the same: the fingerprint alone decides."""
    return np.zeros((len(places), THUMBNAIL), np.uint8)


def pairs(found: NDArray[np.int64]) -> NDArray[np.int64]:
    """The pairs (P, 2) of two images, each once."""
    found = np.sort(found[:, found[0] != found[1]], axis=0)
    return np.unique(found.T, axis=0)


if __name__ == "__main__":
    main()
