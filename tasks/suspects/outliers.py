"""Finds images that look like none of the others, by the distance of their embeddings."""

import numpy as np
from numpy.typing import NDArray

RIDGE = 0.01  # of the mean variance, which keeps directions in which nothing varies from counting
FENCE = 3.0  # interquartile ranges above the upper quartile: Tukey's "far out"
ROWS = 16_384  # that are compared at a time


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
    from scipy.cluster.vq import vq
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        classes, places = np.unique(labels, return_inverse=True)
        means = np.stack([embeddings[labels == label].mean(axis=0) for label in classes])
        inside = embeddings - means[places]
        covariance = inside.T.astype(np.float64) @ inside / len(inside)
        ridge = RIDGE * max(float(np.trace(covariance)) / len(covariance), 1e-12)
        whitening = np.linalg.inv(np.linalg.cholesky(covariance + ridge * np.eye(len(covariance))))
        parts = np.array_split(embeddings, 1 + len(embeddings) // ROWS)
        return np.concatenate([vq(part @ whitening.T, means @ whitening.T)[1] for part in parts])


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
