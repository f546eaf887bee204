"""The images that reach the training, from memory and through windows."""

import numpy as np
import pytest
import torch

from tasks.data.shards import open_prepared
from tasks.train.ingest import Ingest, windows
from tasks.train.sampler import BatchSampler, Windows
from tests.tasks.train.helpers import write_form, write_split

CPU = torch.device("cpu")
ROWS, SIZE = 53, 8
WINDOWS = Windows(batches=3, block=5)


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    """Every pixel of an image is the number of its row, and so is its label."""
    folder = tmp_path_factory.mktemp("prepared")
    images = np.repeat(np.arange(ROWS, dtype=np.uint8), SIZE * SIZE * 3)
    shards = np.split(images.reshape(ROWS, SIZE, SIZE, 3), [20, 21, 40])
    write_split(folder / "train", shards, np.arange(ROWS))
    write_form(folder, ("a", "b"), size=SIZE, channels=3)
    return open_prepared(folder).split("train")


def batches(**changes):
    return BatchSampler(**{"rows": ROWS, "size": 4, "seed": 0, "rank": 0, "workers": 1} | changes)


def rows_of(epoch):
    """The row numbers of the batches, after a look at whether images and labels belong together."""
    rows = []
    for images, labels in epoch:
        assert images.dtype == torch.uint8 and labels.dtype == torch.int64
        assert torch.equal(images, labels.to(torch.uint8)[:, None, None, None].expand_as(images))
        rows.append(labels.tolist())
    return rows


@pytest.mark.parametrize("order", [None, WINDOWS])
@pytest.mark.parametrize(("rank", "workers"), [(0, 1), (1, 2)])
def test_batches_are_those_of_the_order_from_any_on(split, order, rank, workers):
    which = batches(windows=order, rank=rank, workers=workers)
    ingest = Ingest(split, which, CPU)
    for epoch in range(2):
        for first in range(14):
            assert rows_of(ingest.epoch(epoch, first)) == which.epoch(epoch)[first:].tolist()


def test_what_fits_the_memory_has_no_windows_and_what_does_not_stays_within_it(split):
    stored = ROWS * SIZE * SIZE * 3
    assert windows(split.images, "auto", stored / 1e9, batch_size=4) is None
    found = windows(split.images, "auto", stored / 2 / 1e9, batch_size=4)
    held = 2 * found.batches * 4 * SIZE * SIZE * 3
    assert 0.6 * stored / 2 < held <= stored / 2
