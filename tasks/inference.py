"""Batch inference with Ray Data over prepared images.

What goes through Ray is the numbers of batches one way and probabilities the other way. Pixels do
not: each actor maps the shards into its own memory, so the images may be more than all memory.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import models
from retrain import cluster
from tasks.prepared import open_prepared

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# One thread per actor: PyTorch divides some sums by threads, so that results would depend on the
# machine's cores. More cores are used by more actors, which is also the faster way.
THREADS = 1
# Enough to spread the work evenly; a task costs Ray about as much as a batch of a small network.
TASKS_PER_ACTOR = 16


class _Predictor:
    """Ray Data calls it in an actor: the model is loaded once, then it takes batch numbers."""

    def __init__(self, model: Path, images: Path, split: str, batch_size: int, device: str) -> None:
        import torch

        torch.set_num_threads(THREADS)
        self._module = models.load(model).module.to(device)
        self._images = open_prepared(images).split(split).images
        self._batch_size = batch_size
        self._device = device

    def __call__(
        self, numbers: "dict[str, NDArray[np.int64]]"
    ) -> "Iterator[dict[str, NDArray[np.float32]]]":
        import numpy as np
        import torch

        for number in numbers["id"]:
            start = number * self._batch_size
            stop = min(start + self._batch_size, len(self._images))
            pixels = torch.from_numpy(self._images[np.arange(start, stop)])
            with torch.inference_mode():
                logits = self._module(pixels.to(self._device))
                yield {"probabilities": torch.softmax(logits.float(), dim=1).cpu().numpy()}


def probabilities(
    model: Path, images: Path, split: str, batch_size: int, chunk: int
) -> "Iterator[NDArray[np.float32]]":
    """Runs a model over a split, on the GPUs of the cluster or else on its CPUs.

    The result does not depend on how many actors there are: the rows of a forward pass depend on
    `batch_size` alone.

    Args:
        model: A folder that `models.save` wrote.
        images: The folder of the prepared images.
        split: `train`, `val` or `test`.
        batch_size: Images per forward pass.
        chunk: Rows per array that is given back.

    Yields:
        float32 (chunk, classes of the model), in the order of the split; the last has the rest.
    """
    import ray
    import ray.data

    cluster.connect()
    gpus = int(ray.cluster_resources().get("GPU", 0))
    actors = gpus or int(ray.cluster_resources()["CPU"])
    batches = -(-len(open_prepared(images).split(split)) // batch_size)
    numbers = ray.data.range(batches, override_num_blocks=min(batches, TASKS_PER_ACTOR * actors))
    numbers.context.execution_options.preserve_order = True
    predicted = numbers.map_batches(
        _Predictor,
        fn_constructor_args=(model, images, split, batch_size, "cuda" if gpus else "cpu"),
        batch_size=None,
        num_cpus=None if gpus else 1,
        num_gpus=1 if gpus else None,
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=min(actors, batches)),
    )
    for rows in predicted.iter_batches(batch_size=chunk, batch_format="numpy"):
        yield rows["probabilities"]
