"""Selects the images of each batch, and the parts that are cut out of them.

The seed and the position in the training decide, so that a resumed training gets the same batches,
and workers agree without communication.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# A separate stream of random numbers for each use.
SHUFFLE, AUGMENT, NETWORK, CROP = range(4)

# The sides of a part that is cut out of an image: width / height.
RATIO = (3 / 4, 4 / 3)


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
        chances: float64 (rows,), how likely each image is drawn, to any scale; None when an epoch
            has every image once.
    """

    rows: int
    size: int
    seed: int
    rank: int
    workers: int
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

        Args:
            epoch: From 0.

        Returns:
            int64 (batches, share), row indices of the training split.
        """
        import numpy as np

        random = np.random.default_rng((self.seed, SHUFFLE, epoch))
        if self.chances is None:
            order = random.permutation(self.rows)
        else:
            order = random.choice(self.rows, self.rows, p=self.chances / self.chances.sum())
        used = self.per_epoch * self.share * self.workers
        return order[:used].reshape(self.per_epoch, self.workers, self.share)[:, self.rank]

    def network_seeds(self, epoch: int) -> list[int]:
        """The seeds of the network's random choices (dropout), one for each batch of an epoch."""
        import numpy as np

        seeds = np.random.SeedSequence((self.seed, NETWORK, epoch, self.rank))
        return [int(seed) for seed in seeds.generate_state(self.per_epoch, np.uint64)]

    def parts(self, step: int, least: float) -> "NDArray[np.float64]":
        """The parts that are cut out of a worker's images, as Szegedy et al. (2015) do.

        Args:
            step: Optimizer steps before that of the batch.
            least: The smallest share of an image's area.

        Returns:
            float64 (share, 4), the values of a `models.image.Part` for each image.
        """
        import numpy as np

        # Drawn for the whole batch: an image's part does not depend on the number of workers.
        random = np.random.default_rng((self.seed, CROP, step))
        parts: NDArray[np.float64] = random.random((self.workers, self.share, 4))[self.rank]
        return as_parts(parts, least)


def as_parts(random: "NDArray[np.float64]", least: float) -> "NDArray[np.float64]":
    """Makes the values of a `models.image.Part` from random numbers, (n, 4), from 0 to below 1."""
    import numpy as np

    parts = random.copy()
    parts[:, 0] = least + (1 - least) * parts[:, 0]
    parts[:, 1] = np.exp(np.interp(parts[:, 1], (0, 1), np.log(RATIO)))
    return parts


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
