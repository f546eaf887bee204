"""Which images make up each batch.

All of it follows from the seed and the position in the training, so that a training goes on
anywhere as if it had never stopped, and workers agree without talking.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# One stream of random numbers for each use, so that none repeats another's.
SHUFFLE, AUGMENT, NETWORK = range(3)


@dataclass(frozen=True)
class Windows:
    """How an epoch goes through images of which only a part is in memory.

    Attributes:
        batches: Of a window: the batches whose images are in memory together.
        block: Images that lie together on disk and stay together until they are in memory.
    """

    batches: int
    block: int


@dataclass(frozen=True)
class BatchSampler:
    """The part of every batch that one worker trains on.

    The last batch of an epoch is left out if it is not full; fewer images than a batch make one.

    Attributes:
        rows: Images of the training split.
        size: Images of a batch, over all workers.
        seed: Of all random choices of the training.
        rank: Which worker this is, from 0.
        workers: How many there are.
        windows: None when any image can be had at any time.
    """

    rows: int
    size: int
    seed: int
    rank: int
    workers: int
    windows: Windows | None = None

    @property
    def per_epoch(self) -> int:
        """Batches of an epoch."""
        return max(1, self.rows // self.size)

    @property
    def share(self) -> int:
        """Images of a batch that are this worker's."""
        return min(self.size, self.rows) // self.workers

    def epoch(self, epoch: int) -> "NDArray[np.int64]":
        """This worker's part of an epoch, in an order of its own.

        With windows, the blocks are shuffled, and then the images of each window. An image meets
        others than those beside it on disk only within a window: the larger, the closer this is to
        the order without windows, in which any image can be anywhere. These are the orders
        QUASI_RANDOM and RANDOM of FFCV (Leclerc et al., 2023).

        Args:
            epoch: From 0.

        Returns:
            int64 (batches, share), row indices of the training split.
        """
        import numpy as np

        random = np.random.default_rng((self.seed, SHUFFLE, epoch))
        if self.windows is None:
            order = random.permutation(self.rows)
        else:
            block = self.windows.block
            firsts = block * random.permutation(-(-self.rows // block))
            order = (firsts[:, None] + np.arange(block)).reshape(-1)
            order = order[order < self.rows]
            images = self.windows.batches * self.size
            for first in range(0, self.rows, images):
                random.shuffle(order[first : first + images])
        used = self.per_epoch * self.share * self.workers
        return order[:used].reshape(self.per_epoch, self.workers, self.share)[:, self.rank]

    def network_seeds(self, epoch: int) -> list[int]:
        """What the network's own random choices (dropout) are drawn from, by batch of an epoch."""
        import numpy as np

        seeds = np.random.SeedSequence((self.seed, NETWORK, epoch, self.rank))
        return [int(seed) for seed in seeds.generate_state(self.per_epoch, np.uint64)]
