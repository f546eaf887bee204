"""Simple facts about a sample of images, and what a model said of them: what drift is found in.

The facts are those of the image as it comes in, before it is resized, and do not depend on the
model.
"""

import hashlib

import pyarrow as pa

from models.image import inspect

FACTS = ("side", "aspect", "brightness", "contrast")
SAMPLE = 1000  # images, about; a sample shows a shift of 0.1 between two distributions
WITH_FEATURES = 500  # of the sample; each has thousands of bytes of features


def lot(path: str, sha256: str | None) -> str:
    """What decides whether an image of an input belongs to its sample, as a digest does.

    Copies of an image have lots of their own: else all of them would be in the sample, or none.
    """
    return hashlib.sha256(f"{path}\0{sha256}".encode()).hexdigest()


def is_sampled(digest: str, total: int) -> bool:
    """Whether an image belongs to the sample of a number of images.

    The end of its digest decides, or of its lot where there may be copies of it.
    """
    return _is_among(SAMPLE, digest, total)


def has_features(digest: str, total: int) -> bool:
    """Whether the features of an image are kept; it is one of the sample then."""
    return _is_among(WITH_FEATURES, digest, total)


def _is_among(size: int, digest: str, total: int) -> bool:
    return int(digest[-8:], 16) * total < size << 32


def measure(data: bytes) -> dict[str, float] | None:
    """The facts about an encoded image; None if it does not decode.

    Returns:
        `side`, the square root of the number of pixels; `aspect`, width to height; `brightness`
        and `contrast`, the mean and the standard deviation of the pixels, from 0 to 1.
    """
    try:
        properties, pixels = inspect(data, reduced=True)
    except ValueError:
        return None
    width, height = properties.width, properties.height
    grey = pixels.mean(axis=2)
    return {
        "side": float((width * height) ** 0.5),
        "aspect": width / height,
        "brightness": float(grey.mean() / 255),
        "contrast": float(grey.std() / 255),
    }


def schema() -> pa.Schema:
    """The columns of a sample: the label and the confidence of a model's answer, and the facts.

    And the digest of the image, which an old reference does not have, so that it is null there. And
    `features`, what the last layer of the model takes: of `WITH_FEATURES` images, null for the
    others, and for a model that cannot tell them.
    """
    facts = dict.fromkeys(FACTS, pa.float64())
    features = {"features": pa.list_(pa.float32())}
    answer = {"label": pa.string(), "confidence": pa.float32()}
    return pa.schema({"sha256": pa.string(), **answer, **facts, **features})
