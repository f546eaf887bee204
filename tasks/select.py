"""Chooses images to label: those of which the model is unsure, that are new, and that differ.

How unsure the model is: 1 less the difference of the two highest probabilities (margin sampling;
T. Scheffer, C. Decomain, S. Wrobel: Active Hidden Markov Models for Information Extraction, 2001).
How new an image is: the distance of its embedding from the nearest image of the data, or from the
nearest that was chosen before it (k-center greedy; O. Sener, S. Savarese: Active Learning for
Convolutional Neural Networks: A Core-Set Approach, 2018). The product of the two is the score, and
the image with the highest is chosen next.

Distances are those of embeddings of length 1: from 0 to 2.
"""

import numpy as np
from numpy.typing import NDArray

# An image that is closer to one of the data than nineteen of twenty of the data are to their
# nearest neighbour is a near-duplicate.
CLOSE = 0.05
SURE = 1e-6  # how unsure a model is that is wholly sure: of such images the newest one is chosen
SAMPLE = 2000  # images
_ROWS = 4096  # that are compared at a time


def directions(embeddings: NDArray[np.float32]) -> NDArray[np.float32]:
    """Embeddings of length 1: float32 (N, D)."""
    lengths = np.linalg.norm(embeddings, axis=1, keepdims=True)
    return np.asarray(embeddings / np.maximum(lengths, 1e-12), np.float32)


def nearest(asked: NDArray[np.float32], known: NDArray[np.float32]) -> NDArray[np.float32]:
    """The distance of each image from the nearest of some others.

    Args:
        asked: float32 (N, D), of length 1.
        known: float32 (M, D), of length 1.

    Returns:
        float32 (N,).
    """
    found = np.full(len(asked), 2, np.float32)
    for first in range(0, len(known), _ROWS):
        cosines = asked @ known[first : first + _ROWS].T
        found = np.minimum(found, _distance(cosines.max(axis=1)))
    return found


def neighbours(known: NDArray[np.float32]) -> NDArray[np.float32]:
    """The distances of a sample of images from the nearest of the others.

    Args:
        known: float32 (M, D), of length 1; two or more.
    """
    order = np.random.default_rng(0).permutation(len(known))
    some, others = known[order[:SAMPLE]], known[order[SAMPLE:]]
    cosines = some @ some.T
    np.fill_diagonal(cosines, -1)
    return np.minimum(_distance(cosines.max(axis=1)), nearest(some, others))


def choose(
    probabilities: NDArray[np.float32],
    embeddings: NDArray[np.float32],
    distances: NDArray[np.float32],
    count: int,
    closest: float,
) -> NDArray[np.int64]:
    """Chooses images, the most useful first.

    Args:
        probabilities: float32 (N, classes).
        embeddings: float32 (N, D), of length 1.
        distances: float32 (N,): from the nearest image of the data.
        count: How many to choose, at most.
        closest: No image is chosen that is closer to the data, or to one that was chosen.

    Returns:
        The indices of the images, int64.
    """
    highest = np.sort(probabilities.astype(np.float64), axis=1)[:, -2:]
    unsure = np.maximum(1 - (highest[:, 1] - highest[:, 0]), SURE)
    left = distances.astype(np.float64)
    chosen: list[int] = []
    while len(chosen) < count:
        best = int(np.where(left > closest, unsure * left, -1).argmax())
        if left[best] <= closest:
            break
        chosen.append(best)
        left = np.minimum(left, _distance(embeddings @ embeddings[best]))
        left[best] = 0
    return np.array(chosen, np.int64)


def _distance(cosines: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray(np.sqrt(np.maximum(2 - 2 * cosines, 0)), np.float32)
