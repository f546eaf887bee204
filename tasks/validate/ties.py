"""Finds out which images are tied: connected by equal pixels, groups or looks."""

import hashlib

import numpy as np
from numpy.typing import NDArray


def code(text: str) -> int:
    """A number of 64 bits for a text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)


def equal(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Pairs (2, P) of the indices of equal values, enough of them to connect all that are equal."""
    _, first, which = np.unique(values, return_index=True, return_inverse=True)
    return np.stack([np.arange(len(values)), first[which]])


def connect(pairs: NDArray[np.int64], names: NDArray[np.int64]) -> NDArray[np.int64]:
    """The smallest name among all that each is connected with.

    Args:
        pairs: int64 (2, P), indices of those that are connected.
        names: int64 (N,).
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    links = coo_array((np.ones(pairs.shape[1], bool), tuple(pairs)), shape=(len(names),) * 2)
    parts, part = connected_components(links, directed=False)
    smallest = np.full(parts, np.iinfo(np.int64).max)
    np.minimum.at(smallest, part, names)
    connected: NDArray[np.int64] = smallest[part]
    return connected
