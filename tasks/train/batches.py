"""Which images make up each batch and how they are changed.

All of it follows from the seed and the position in the training, so that a training goes on
anywhere as if it had never stopped, and workers agree without talking.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from retrain.workload import Augment

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

# One stream of random numbers for each use, so that none repeats another's.
SHUFFLE, AUGMENT, NETWORK = range(3)


@dataclass(frozen=True)
class Batches:
    """The part of every batch that one worker trains on.

    The last batch of an epoch is left out if it is not full; fewer images than a batch make one.

    Attributes:
        rows: Images of the training split.
        size: Images of a batch, over all workers.
        seed: Of the order and of the changes.
        rank: Which worker this is, from 0.
        workers: How many there are.
    """

    rows: int
    size: int
    seed: int
    rank: int
    workers: int

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

        Args:
            epoch: From 0.

        Returns:
            int64 (batches, share), row indices of the training split.
        """
        import numpy as np

        order = np.random.default_rng((self.seed, SHUFFLE, epoch)).permutation(self.rows)
        used = self.per_epoch * self.share * self.workers
        return order[:used].reshape(self.per_epoch, self.workers, self.share)[:, self.rank]

    def augment(self, images: "Tensor", changes: Augment, step: int) -> "Tensor":
        """Mirrors and shifts images at random, whatever device they are on.

        Args:
            images: uint8 (share, H, W, C).
            changes: Which changes.
            step: Optimizer steps before this one.

        Returns:
            uint8 (share, H, W, C).
        """
        if not changes.flip and not changes.shift:
            return images
        import numpy as np
        import torch

        # Drawn for the whole batch: an image's change does not depend on the number of workers.
        random = np.random.default_rng((self.seed, AUGMENT, step))
        whole = (self.workers, self.share)
        shifts = random.integers(-changes.shift, changes.shift + 1, (2, *whole))[:, self.rank]
        flips = random.integers(0, 1 + changes.flip, whole)[self.rank]
        _, height, width, _ = images.shape
        y = (np.arange(height) + shifts[0][:, None]).clip(0, height - 1)
        x = (np.arange(width) + shifts[1][:, None]).clip(0, width - 1)
        x = np.where(flips[:, None], width - 1 - x, x)
        pixels = torch.from_numpy(y[:, :, None] * width + x[:, None, :]).to(images.device)
        flat = images.flatten(1, 2)
        return flat.gather(1, pixels.flatten(1)[:, :, None].expand(flat.shape)).view(images.shape)

    def network_seed(self, step: int) -> int:
        """What the network's own random choices (dropout) of a step are drawn from."""
        import numpy as np

        seeds = np.random.SeedSequence((self.seed, NETWORK, step, self.rank))
        return int(seeds.generate_state(1, np.uint64)[0])
