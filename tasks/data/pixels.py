"""Calculates the identity of an image, which is a digest of its pixels and not of its file.

An image that was saved again without loss, as PNG, BMP or in a Parquet file, keeps its identity. An
image that was saved again as JPEG does not; the fingerprints of `tasks/data/fingerprint.py`
find such copies.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray


def digest(pixels: NDArray[np.uint8]) -> str:
    """SHA-256 (hex) over an image's height, width, channels and pixels.

    Colours that are all grey count as one channel, because formats store a grey image in both ways.

    Args:
        pixels: uint8 (H, W, C), the right way up, C being 1 or 3; see `models.image.inspect`.
    """
    if pixels.shape[2] == 3 and _is_grey(pixels[:1]) and _is_grey(pixels):
        pixels = pixels[..., :1]
    height, width, channels = pixels.shape
    sha256 = hashlib.sha256(f"{height} {width} {channels} ".encode())
    sha256.update(np.ascontiguousarray(pixels).data)
    return sha256.hexdigest()


def _is_grey(pixels: NDArray[np.uint8]) -> bool:
    return bool((pixels == pixels[..., :1]).all())
