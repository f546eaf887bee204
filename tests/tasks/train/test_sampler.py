import numpy as np
import pytest

from tasks.train.datasets import BatchSampler, Part, class_weights

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


def test_fewer_rows_than_a_batch_make_one_of_equal_shares():
    shares = [batches(rows=5, size=16, rank=rank, workers=2).epoch(0) for rank in range(2)]
    assert [share.shape for share in shares] == [(1, 2), (1, 2)]
    assert batches(rows=5, size=16).epoch(0).shape == (1, 5)


def test_images_are_drawn_so_that_classes_are_equal():
    weights = class_weights(LABELS, 3)
    assert weights * np.bincount(LABELS) == pytest.approx([1000 / 3] * 3)
    sampler = batches(1000, 10, chances=weights[LABELS])
    drawn = np.concatenate([LABELS[sampler.epoch(epoch)].ravel() for epoch in range(20)])
    shares = np.bincount(drawn, minlength=3) / len(drawn)
    assert shares == pytest.approx([1 / 3] * 3, abs=0.1)


def test_a_part_has_its_area_and_its_sides_and_fits():
    random = np.random.default_rng(0)
    for width, height in ((300, 200), (20, 900), (7, 7)):
        for area, ratio, x, y in random.uniform((0, 0.5, 0, 0), (1, 1.5, 1, 1), (200, 4)):
            left, top, right, bottom = Part(area, ratio, x, y).box(width, height)
            assert 0 <= left < right <= width and 0 <= top < bottom <= height
            wanted = np.array([ratio**0.5, ratio**-0.5]) * (area * width * height) ** 0.5
            if wanted.max() < min(width, height):
                assert np.abs(wanted - (right - left, bottom - top)).max() <= 1
