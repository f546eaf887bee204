"""The images that reach the training: which make up a batch, and what a `DataLoader` gets."""

from itertools import chain

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from tasks.train.data_loading import (
    BatchSampler,
    SplitDataset,
    class_weights,
)
from tests.tasks.train.helpers import write_form, write_split

ROWS, SIZE = 53, 8


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Every pixel of an image is the number of its row, and so is its label."""
    folder = tmp_path_factory.mktemp("prepared")
    images = np.repeat(np.arange(ROWS, dtype=np.uint8), SIZE * SIZE * 3)
    shards = np.split(images.reshape(ROWS, SIZE, SIZE, 3), [20, 21, 40])
    write_split(folder / "train", shards, np.arange(ROWS))
    write_form(folder, ("a", "b"), size=SIZE, channels=3)
    return SplitDataset(folder, "train")


def as_matrix(batches):
    """The row numbers of the batches, after a look at whether images and labels belong together."""
    rows = []
    for images, labels in batches:
        assert images.dtype == torch.uint8 and labels.dtype == torch.int64
        assert torch.equal(images, labels.to(torch.uint8)[:, None, None, None].expand_as(images))
        rows.append(labels.tolist())
    return rows


@pytest.mark.parametrize("processes", [0, 2])
def test_a_loader_of_the_user_s_gets_every_example_once(dataset, processes):
    image, label = dataset[7]
    assert image.shape == (SIZE, SIZE, 3) and image.unique().tolist() == [label] == [7]
    loader = DataLoader(dataset, batch_size=10, shuffle=True, num_workers=processes)
    assert sorted(chain(*as_matrix(loader))) == list(range(ROWS))


LABELS = np.repeat([0, 1, 2], [900, 90, 10])


def batches(rows=23, size=4, seed=0, rank=0, workers=1, **more):
    return BatchSampler(rows, size, seed, rank, workers, **more)


@pytest.mark.parametrize("chances", [None, class_weights(LABELS, 3)[LABELS]])
@pytest.mark.parametrize("workers", [2, 4])
def test_workers_share_out_the_very_batches_of_one(chances, workers):
    given = {"rows": 1000, "size": 12, "chances": chances}
    alone = batches(**given).epoch(3)
    shares = [batches(rank=rank, workers=workers, **given).epoch(3) for rank in range(workers)]
    assert np.array_equal(np.concatenate(shares, axis=1), alone)


def test_images_are_drawn_so_that_classes_are_equal():
    weights = class_weights(LABELS, 3)
    assert weights * np.bincount(LABELS) == pytest.approx([1000 / 3] * 3)
    sampler = batches(1000, 10, chances=weights[LABELS])
    drawn = np.concatenate([LABELS[sampler.epoch(epoch)].ravel() for epoch in range(20)])
    shares = np.bincount(drawn, minlength=3) / len(drawn)
    assert shares == pytest.approx([1 / 3] * 3, abs=0.1)
