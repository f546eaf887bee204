"""The images that reach the training: examples, batches, and what a `DataLoader` makes of them."""

from itertools import chain

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from tasks.train.datasets import BatchSampler, Loader, SplitDataset, in_order, processes_for
from tests.tasks.train.helpers import write_form, write_split

CPU = torch.device("cpu")
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


def rows_of(batches):
    """The row numbers of the batches, after a look at whether images and labels belong together."""
    rows = []
    for images, labels in batches:
        assert images.dtype == torch.uint8 and labels.dtype == torch.int64
        assert torch.equal(images, labels.to(torch.uint8)[:, None, None, None].expand_as(images))
        rows.append(labels.tolist())
    return rows


@pytest.mark.parametrize(("rank", "workers"), [(0, 1), (1, 2)])
def test_batches_are_those_of_the_sampler_from_any_on(dataset, rank, workers):
    which = BatchSampler(ROWS, size=4, seed=0, rank=rank, workers=workers)
    loader = Loader(dataset, which, CPU)
    for epoch in range(2):
        for first in range(14):
            assert rows_of(loader.epoch(epoch, first)) == which.epoch(epoch)[first:].tolist()


def test_rows_in_order_end_with_a_smaller_batch(dataset):
    assert rows_of(in_order(dataset, range(10, 17), 3, CPU)) == [[10, 11, 12], [13, 14, 15], [16]]


@pytest.mark.parametrize("processes", [0, 2])
def test_a_loader_of_the_user_s_gets_every_example_once(dataset, processes):
    image, label = dataset[7]
    assert image.shape == (SIZE, SIZE, 3) and image.unique().tolist() == [label] == [7]
    loader = DataLoader(dataset, batch_size=10, shuffle=True, num_workers=processes)
    assert sorted(chain(*rows_of(loader))) == list(range(ROWS))


@pytest.mark.parametrize(
    ("device", "batch", "expected"),
    [
        ("cuda:0", (256, 224, 224, 3), 2),
        ("cuda:0", (64, 32, 32, 3), 0),  # to hand it over would take longer than to read it
        ("cpu", (256, 224, 224, 3), 0),
    ],
)
def test_processes_bring_the_large_batches_of_a_training_on_a_gpu(device, batch, expected):
    assert processes_for(torch.device(device), np.prod(batch)) == expected
