"""Finds images that look like none of the others, by the distance of their embeddings."""

import numpy as np
from numpy.typing import NDArray

RIDGE = 0.01  # of the mean variance, which keeps directions in which nothing varies from counting
FENCE = 3.0  # interquartile ranges above the upper quartile: Tukey's "far out"
_ROWS = 16_384  # that are compared at a time


def distances(embeddings: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """How far each image is from the nearest mean of a class.

    It is the Mahalanobis distance with the covariance within the classes (Lee, Lee, Lee and Shin:
    A Simple Unified Framework for Detecting Out-of-Distribution Samples, 2018).

    Args:
        embeddings: float32 (N, D).
        labels: int64 (N,).

    Returns:
        float64 (N,).
    """
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        means = np.stack([embeddings[labels == label].mean(axis=0) for label in np.unique(labels)])
        inside = embeddings - means[np.unique(labels, return_inverse=True)[1]]
        covariance = inside.T.astype(np.float64) @ inside / len(inside)
        ridge = RIDGE * max(float(np.trace(covariance)) / len(covariance), 1e-12)
        whitening = np.linalg.inv(np.linalg.cholesky(covariance + ridge * np.eye(len(covariance))))
        centres = means @ whitening.T
        found = np.empty(len(embeddings))
        for first in range(0, len(embeddings), _ROWS):
            white = embeddings[first : first + _ROWS] @ whitening.T
            squares = (white**2).sum(axis=1)[:, None] + (centres**2).sum(axis=1)
            nearest = (squares - 2 * white @ centres.T).min(axis=1)
            found[first : first + _ROWS] = np.sqrt(nearest.clip(0))
    return found


def far_out(distances: NDArray[np.float64]) -> NDArray[np.int64]:
    """The images that are much farther away than most, the farthest first.

    Args:
        distances: float64 (N,).

    Returns:
        int64: the indices of the images.
    """
    lower, upper = np.quantile(distances, [0.25, 0.75])
    found = np.flatnonzero(distances > upper + FENCE * (upper - lower))
    return found[np.argsort(-distances[found], kind="stable")]
