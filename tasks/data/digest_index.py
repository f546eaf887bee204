"""Finds images among many by the SHA-256 of their content."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_DIGEST = np.dtype("S32")
_FILES = ("digests.npy", "places.npy")


@dataclass(frozen=True)
class DigestIndex:
    """The places of images in an order, by their digests: 40 bytes for each image.

    Attributes:
        digests: Bytes (N,) of 32 each, ascending.
        places: int64 (N,), the place of the image with each of them.
    """

    digests: NDArray[np.bytes_]
    places: NDArray[np.int64]

    @classmethod
    def of(cls, parts: Iterable[Sequence[str]]) -> "DigestIndex":
        """Makes the index of images whose digests (hex) come in parts, in the images' order."""
        digests = np.concatenate([np.empty(0, _DIGEST), *map(_packed, parts)])
        places = np.argsort(digests, kind="stable")
        return cls(digests[places], places)

    @classmethod
    def load(cls, folder: Path) -> "DigestIndex":
        """Opens an index that was saved, which stays on disk."""
        return cls(*(np.load(folder / name, mmap_mode="r") for name in _FILES))

    def save(self, folder: Path) -> None:
        """Writes the index to a folder."""
        for name, values in zip(_FILES, (self.digests, self.places), strict=True):
            np.save(folder / name, values)

    def find(self, wanted: Sequence[str]) -> NDArray[np.int64]:
        """Looks images up.

        Args:
            wanted: The digests (hex) of n images.

        Returns:
            int64 (n,), the place of the first image with each of them, or -1.
        """
        if not len(self.digests):
            return np.full(len(wanted), -1)
        keys = _packed(wanted)
        found = np.minimum(np.searchsorted(self.digests, keys), len(self.digests) - 1)
        return np.where(self.digests[found] == keys, self.places[found], -1)


def _packed(digests: Sequence[str]) -> NDArray[np.bytes_]:
    return np.frombuffer(bytes.fromhex("".join(digests)), _DIGEST)
