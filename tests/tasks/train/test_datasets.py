"""What a `DataLoader` makes of the images that reach the training."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from tasks.data.shards import open_prepared
from tasks.train.datasets import SplitDataset


@pytest.mark.parametrize("processes", [0, 2])
def test_a_loader_of_the_user_s_gets_every_example_once(images, processes):
    dataset, stored = SplitDataset(images, "train"), open_prepared(images).split("train")
    assert dataset[7][0].dtype == torch.uint8 and dataset[7][0].shape == (8, 8, 1)
    loader = DataLoader(dataset, batch_size=10, shuffle=True, num_workers=processes)
    found = [
        (image.numpy().tobytes(), int(label))
        for batch in loader
        for image, label in zip(*batch, strict=True)
    ]
    pixels = [image.tobytes() for image in stored.images[np.arange(len(stored))]]
    assert sorted(found) == sorted(zip(pixels, stored.labels.tolist(), strict=True))
