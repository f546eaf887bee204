"""Finds images that look the same: by fingerprints, compared in bulk, and then by their pixels.

The fingerprint has 63 bits: it is the perceptual hash of C. Zauner, Implementation and Benchmarking
of Perceptual Image Hash Functions (2010), section 3.2.1, with the sign of each coefficient for its
comparison with the median: the discrete cosine transform of the grey image, its 8 x 8 lowest
frequencies without the mean. It is that of the package ImageHash, of many images at a time.

Of pairs of different photos, one in ten million differs in 3 bits or less; of handwritten digits,
which are strokes on an empty page, seventy-five in a million do. So the thumbnails of such a pair
are compared too, after one's brightness and contrast were brought to the other's.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

# Gives uint8 (n, THUMBNAIL) for the indices of images, int64 (n,).
Thumbnails = Callable[[NDArray[np.int64]], NDArray[np.uint8]]

THUMBNAIL = 16 * 16  # grey pixels
LARGEST = 32  # difference of two thumbnails of images that look the same, of 255
BITS = 3  # by which the fingerprints of images that look the same may differ
SIDE = 8  # the frequencies in each direction
NEIGHBOURS = 16  # with which a fingerprint is compared in each order, on each side
_PAIRS = 2**14  # of thumbnails that are compared at a time
_IMAGES = 2**18  # that are compared with others at a time
_PIXELS = 32  # of a side of a shrunk image
# Of a side that are averaged to so few. With 128, one in a hundred copies of a photo that were made
# smaller by a quarter is missed, with 32 half of them; with 256 none, and of 12 million pixels it
# takes 0.4 ms instead of 48.
_SAMPLED = 256
# The cosines of the lowest frequencies, float32 (SIDE, 32).
_PHASES = np.pi * np.arange(SIDE)[:, None] * (np.arange(_PIXELS) + 0.5) / _PIXELS
_WAVES = (np.cos(_PHASES) / _PIXELS).astype(np.float32)
_FLAT = 0.01  # grey levels; what is smaller is rounding


def shrink(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """An image in the pixels that its fingerprint needs, uint8 (32, 32), grey.

    Args:
        pixels: uint8 (H, W, C), C being 1 or 3.
    """
    every = max(1, min(pixels.shape[:2]) // _SAMPLED)
    pixels = np.ascontiguousarray(pixels[::every, ::every])
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).convert("L")
    return np.asarray(image.resize((_PIXELS, _PIXELS), Image.Resampling.BICUBIC))


def fingerprints(
    shrunk: Sequence[NDArray[np.uint8]],
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """The fingerprint of each image, 0 for one in a single colour; and its thumbnail.

    Args:
        shrunk: uint8 (32, 32) each, as `shrink` gives them.

    Returns:
        int64 (N,), not negative; and uint8 (N, THUMBNAIL).
    """
    grey = np.array(shrunk, np.float32).reshape(-1, _PIXELS, _PIXELS)
    bits = (_WAVES @ grey @ _WAVES.T).reshape(-1, SIDE * SIDE) > _FLAT
    bits[:, 0] = False  # the mean
    prints = np.packbits(bits, axis=1).view(">i8")[:, 0].astype(np.int64)
    thumbnails = grey.reshape(-1, 16, 2, 16, 2).mean(axis=(2, 4)).astype(np.uint8)
    return prints, thumbnails.reshape(-1, THUMBNAIL)


def near_duplicates(
    prints: NDArray[np.int64], ranks: NDArray[np.int64], thumbnails: Thumbnails
) -> NDArray[np.int64]:
    """For each image, one of a higher rank that looks the same.

    Args:
        prints: int64 (N,), the fingerprints of the images; 0 is never a match.
        ranks: int64 (N,), of the images' splits.
        thumbnails: A function that gives the thumbnails of images.

    Returns:
        int64 (N,), the index of the image found, or -1.
    """
    matches = np.full(len(prints), -1)
    candidates = np.flatnonzero(prints)
    for rank in np.unique(ranks)[:-1]:
        lower, higher = candidates[ranks[candidates] == rank], candidates[ranks[candidates] > rank]
        for lefts, rights in _near(prints, lower, higher):
            unmatched = matches[lefts] < 0
            lefts, rights = lefts[unmatched], rights[unmatched]
            alike = _look_the_same(lefts, rights, thumbnails)
            matches[lefts[alike]] = rights[alike]
    return matches


def look_alikes(prints: NDArray[np.int64], thumbnails: Thumbnails) -> NDArray[np.int64]:
    """Pairs of images that look the same, enough of them to connect all that do.

    Args:
        prints: int64 (N,), the fingerprints of the images; 0 is never a match.
        thumbnails: A function that gives the thumbnails of images.

    Returns:
        int64 (2, P), the indices of the images.
    """
    candidates = np.flatnonzero(prints)
    pairs = [np.empty((2, 0), np.int64)]
    for lefts, rights in _near(prints, candidates, candidates):
        alike = _look_the_same(lefts, rights, thumbnails)
        pairs.append(np.stack([lefts[alike], rights[alike]]))
    return np.concatenate(pairs, axis=1)


def _look_the_same(
    lefts: NDArray[np.int64], rights: NDArray[np.int64], thumbnails: Thumbnails
) -> NDArray[np.bool_]:
    """Whether the thumbnails of pairs agree, but for their brightness and contrast."""
    alike = np.empty(len(lefts), bool)
    for first in range(0, len(lefts), _PAIRS):
        part = slice(first, first + _PAIRS)
        pair = np.stack([thumbnails(lefts[part]), thumbnails(rights[part])]).astype(np.float32)
        pair -= pair.mean(axis=2, keepdims=True)
        contrast = pair.std(axis=2, keepdims=True).clip(1)
        a, b = pair * (contrast.mean(axis=0) / contrast)
        alike[part] = np.abs(a - b).max(axis=1) <= LARGEST
    return alike


def _near(
    prints: NDArray[np.int64], images: NDArray[np.int64], among: NDArray[np.int64]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Pairs of images whose fingerprints differ in a few bits, of a part of the pairs at a time.

    Fingerprints are put in order four times, each time by other bits first, and each is compared
    with those next to its place. If two differ in up to 3 bits, they agree in the first 16 bits of
    one of the orders. A pair is missed only where more than `NEIGHBOURS` lie between its two there;
    the time grows with the number of images, not with its square.

    Args:
        prints: int64 (N,), the fingerprints of all images.
        images: int64, the indices of the first images of the pairs.
        among: int64, those of the second images.
    """
    bits = prints.view(np.uint64)
    for turn in range(0, 64, 16):
        turned = bits << np.uint64(turn)
        turned |= bits >> np.uint64(-turn % 64)
        ordered = among[np.argsort(turned[among], kind="stable")]
        keys = turned[ordered]
        for first in range(0, len(images), _IMAGES):
            some = images[first : first + _IMAGES]
            some = some[np.argsort(turned[some])]
            ours = turned[some]
            places = np.searchsorted(keys, ours)
            for distance in range(-NEIGHBOURS, NEIGHBOURS):
                place = places + distance
                inside = np.flatnonzero((place >= 0) & (place < len(keys)))
                differ = np.bitwise_count(ours[inside] ^ keys[place[inside]])
                near = inside[differ <= BITS]
                lefts, rights = some[near], ordered[place[near]]
                others = lefts != rights
                yield lefts[others], rights[others]
        del ordered, keys  # before the next ones need the memory
