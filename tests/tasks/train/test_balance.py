"""Rare classes: their weights, and how often their images are drawn."""

import numpy as np
import pytest

from tasks.train.balance import class_weights
from tasks.train.sampler import BatchSampler, Windows

LABELS = np.repeat([0, 1, 2], [900, 90, 10])


def test_the_weights_make_classes_equal_and_are_1_on_average():
    weights = class_weights(LABELS, 3)
    assert weights * np.bincount(LABELS) == pytest.approx([1000 / 3] * 3)
    assert weights[LABELS].mean() == pytest.approx(1)


@pytest.mark.parametrize("windows", [None, Windows(batches=20, block=5)])
def test_images_are_drawn_so_that_classes_are_equal(windows):
    chances = class_weights(LABELS, 3)[LABELS]
    sampler = BatchSampler(1000, 10, 0, 0, 1, windows, chances)
    # With windows, only a window that has a rare class can draw it.
    drawn = np.concatenate([LABELS[sampler.epoch(epoch)].ravel() for epoch in range(20)])
    shares = np.bincount(drawn, minlength=3) / len(drawn)
    assert shares == pytest.approx([1 / 3] * 3, abs=0.1 if windows is None else 0.25)
    assert shares[2] > 0.1
    assert np.array_equal(sampler.epoch(1), sampler.epoch(1))


def test_workers_share_out_what_is_drawn():
    chances = class_weights(LABELS, 3)[LABELS]
    alone = BatchSampler(1000, 10, 0, 0, 1, None, chances).epoch(2)
    shares = [BatchSampler(1000, 10, 0, rank, 2, None, chances).epoch(2) for rank in range(2)]
    assert np.array_equal(np.concatenate(shares, axis=1), alone)
