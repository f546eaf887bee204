"""Finds images that look the same: by fingerprints, compared in bulk, and then by their pixels.

The fingerprint has 63 bits: it is the perceptual hash of C. Zauner, Implementation and Benchmarking
of Perceptual Image Hash Functions (2010), section 3.2.1, with the sign of each coefficient for its
comparison with the median: the discrete cosine transform of the grey image, its 8 x 8 lowest
frequencies without the mean. The package ImageHash takes 70 to 430 µs for an image of 32 x 32 that
is read and inspected in 35; this takes 3.

Of pairs of different photos, one in ten million differs in 3 bits or less; of handwritten digits,
which are strokes on an empty page, seventy-five in a million do. So the thumbnails of such a pair
are compared too, after one's brightness and contrast were brought to the other's.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

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
_PIXELS = 32  # of a side that are enough
# Of a side that are averaged to so few. With 128, one in a hundred copies of a photo that were made
# smaller by a quarter is missed, with 32 half of them; with 256 none, and of 12 million pixels it
# takes 0.4 ms instead of 48.
_SAMPLED = 256
_LUMA = (0.299, 0.587, 0.114)  # of red, green and blue in a grey image: ITU-R 601-2
_FLAT = 0.01  # grey levels; what is smaller is rounding


def shrink(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """An image in as few pixels as its fingerprint needs; a small one is not changed.

    Args:
        pixels: uint8 (H, W, C), C being 1 or 3.
    """
    height, width, channels = pixels.shape
    if max(height, width) < 2 * _PIXELS:
        return pixels
    every = max(1, min(height, width) // _SAMPLED)
    pixels = np.ascontiguousarray(pixels[::every, ::every])
    height, width, _ = pixels.shape
    image = Image.fromarray(pixels[..., 0] if channels == 1 else pixels)
    image = image.resize((min(width, _PIXELS), min(height, _PIXELS)), Image.Resampling.BOX)
    return np.asarray(image).reshape(image.height, image.width, channels)


def fingerprints(
    images: Sequence[NDArray[np.uint8]],
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """The fingerprint of each image, 0 for one in a single colour; and its thumbnail.

    Images of one shape are computed together, which takes a tenth of the time.

    Args:
        images: uint8 (H, W, C), of any sizes.

    Returns:
        int64 (N,), not negative; and uint8 (N, THUMBNAIL).
    """
    prints, thumbnails = (
        np.empty(len(images), np.int64),
        np.empty((len(images), THUMBNAIL), np.uint8),
    )
    alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for number, image in enumerate(images):
        alike[image.shape].append(number)
    for numbers in alike.values():
        grey = _grey(np.stack([images[number] for number in numbers]))
        prints[numbers], thumbnails[numbers] = _fingerprints(grey), _thumbnails(grey)
    return prints, thumbnails


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


def _grey(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Images (N, H, W, C) as grey ones (N, H, W)."""
    grey = np.zeros(images.shape[:3], np.float32)
    for channel, share in enumerate(_LUMA if images.shape[3] == 3 else (1,)):
        grey += images[..., channel] * np.float32(share)
    return grey


def _fingerprints(grey: NDArray[np.float32]) -> NDArray[np.int64]:
    """The fingerprints of images (N, H, W)."""
    waves = _waves(grey.shape[1]) @ grey @ _waves(grey.shape[2]).T
    bits = waves.reshape(-1, SIDE * SIDE) > _FLAT
    bits[:, 0] = False  # the mean
    return np.packbits(bits, axis=1).view(">i8")[:, 0].astype(np.int64)


def _thumbnails(grey: NDArray[np.float32]) -> NDArray[np.uint8]:
    """The thumbnails of images (N, H, W)."""
    small = _scaling(grey.shape[1]) @ grey @ _scaling(grey.shape[2]).T
    return (small + 0.5).clip(0, 255).astype(np.uint8).reshape(-1, THUMBNAIL)


@lru_cache
def _scaling(length: int) -> NDArray[np.float32]:
    """The weights of an axis's pixels in each of a thumbnail, float32 (16, length)."""
    identity = Image.fromarray(np.eye(length, dtype=np.float32))
    side = math.isqrt(THUMBNAIL)
    return np.asarray(identity.resize((length, side), Image.Resampling.BICUBIC))


@lru_cache
def _waves(length: int) -> NDArray[np.float32]:
    """The cosines of the lowest frequencies over an axis, float32 (SIDE, length)."""
    place = (np.arange(length) + 0.5) / length
    waves = np.cos(np.pi * np.arange(SIDE)[:, None] * place) / length
    waves[length:] = 0  # pixels so few do not show these
    return waves.astype(np.float32)
