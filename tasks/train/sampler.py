"""Selects the images of each batch.

The seed and the position in the training decide the selection, so that a resumed training gets the
same batches, and workers agree without communication.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# A separate stream of random numbers for each use.
SHUFFLE, AUGMENT, NETWORK, CROP = range(4)


@dataclass(frozen=True)
class Windows:
    """The order of an epoch, if only a part of the images is in memory at a time.

    Attributes:
        batches: Batches of a window; their images are in memory together.
        block: Images that lie together on disk and stay together until they are in memory.
    """

    batches: int
    block: int


@dataclass(frozen=True)
class BatchSampler:
    """The part of every batch that one worker trains on.

    The last batch of an epoch is left out if it is not full; fewer images than one batch make a
    smaller one.

    Attributes:
        rows: Images of the training split.
        size: Images of a batch, over all workers.
        seed: The seed of all random choices of the training.
        rank: The rank of this worker, from 0.
        workers: The number of workers.
        windows: The windows of an epoch; None if all images are in memory.
        chances: float64 (rows,), how likely each image is drawn, to any scale; None when an epoch
            has every image once.
    """

    rows: int
    size: int
    seed: int
    rank: int
    workers: int
    windows: Windows | None = None
    chances: "NDArray[np.float64] | None" = None

    @property
    def per_epoch(self) -> int:
        """Batches of an epoch."""
        return max(1, self.rows // self.size)

    @property
    def share(self) -> int:
        """Images of a batch for this worker."""
        return min(self.size, self.rows) // self.workers

    def epoch(self, epoch: int) -> "NDArray[np.int64]":
        """This worker's part of an epoch, in an order of that epoch.

        With windows, the blocks are shuffled, and then the images of each window. The larger the
        window, the closer this is to the order without windows, in which all images are shuffled.
        These are the orders QUASI_RANDOM and RANDOM of FFCV (Leclerc et al., 2023).

        Args:
            epoch: From 0.

        Returns:
            int64 (batches, share), row indices of the training split.
        """
        import numpy as np

        random = np.random.default_rng((self.seed, SHUFFLE, epoch))
        order, window = np.arange(self.rows), self.rows
        if self.windows is not None:
            block = self.windows.block
            firsts = block * random.permutation(-(-self.rows // block))
            order = (firsts[:, None] + np.arange(block)).reshape(-1)
            order = order[order < self.rows]
            window = self.windows.batches * self.size
        own = np.zeros(self.rows, bool)
        self._part(own)[:] = True
        for first in range(0, self.rows, window):
            which = slice(first, first + window)
            self._shuffle(random, order[which], own[which])
        return self._part(order).copy()  # the others' parts need no memory during the epoch

    def _part(self, values: "NDArray[Any]") -> "NDArray[Any]":
        """This worker's part (batches, share) of an epoch's values, as a view."""
        used = self.per_epoch * self.share * self.workers
        return values[:used].reshape(self.per_epoch, self.workers, self.share)[:, self.rank]

    def _shuffle(
        self, random: "np.random.Generator", rows: "NDArray[np.int64]", own: "NDArray[np.bool_]"
    ) -> None:
        """Puts rows in a random order, or as many drawn from them by their chances."""
        if self.chances is None:
            random.shuffle(rows)
            return
        # What `Generator.choice` does, but that a worker looks up its own draws only.
        chances = self.chances[rows]
        limits = (chances / chances.sum()).cumsum()
        limits /= limits[-1]
        rows[own] = rows[limits.searchsorted(random.random(len(rows))[own], side="right")]

    def network_seeds(self, epoch: int) -> list[int]:
        """The seeds of the network's random choices (dropout), one for each batch of an epoch."""
        import numpy as np

        seeds = np.random.SeedSequence((self.seed, NETWORK, epoch, self.rank))
        return [int(seed) for seed in seeds.generate_state(self.per_epoch, np.uint64)]


def class_weights(labels: "NDArray[np.int64]", classes: int) -> "NDArray[np.float64]":
    """A weight for each class, larger for rarer ones; the mean over all images is 1.

    It is rows / (classes * images of the class), as scikit-learn's `balanced` (King and Zeng,
    2001).

    Args:
        labels: int64 (rows,), class indices; each class has at least one image.
        classes: How many classes there are.

    Returns:
        float64 (classes,).
    """
    import numpy as np

    return len(labels) / (classes * np.bincount(labels, minlength=classes))
