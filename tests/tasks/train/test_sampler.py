import numpy as np
import pytest
import torch

from retrain.workload import Augment
from tasks.train.sampler import Batches


def batches(rows=23, size=4, seed=0, rank=0, workers=1):
    return Batches(rows, size, seed, rank, workers)


def test_an_epoch_has_every_row_at_most_once_and_only_the_odd_ones_are_left_out():
    rows = batches().epoch(0)
    assert rows.shape == (5, 4)
    assert len(np.unique(rows)) == 20
    assert rows.min() >= 0 and rows.max() < 23


def test_each_epoch_and_each_seed_has_its_own_order():
    first = batches().epoch(0)
    assert np.array_equal(first, batches().epoch(0))
    assert not np.array_equal(first, batches().epoch(1))
    assert not np.array_equal(first, batches(seed=1).epoch(0))


def test_workers_share_out_the_very_batches_of_one():
    alone = batches().epoch(3)
    shares = [batches(rank=rank, workers=2).epoch(3) for rank in range(2)]
    assert np.array_equal(np.concatenate(shares, axis=1), alone)


def test_fewer_rows_than_a_batch_make_one_of_equal_shares():
    shares = [batches(rows=5, size=16, rank=rank, workers=2).epoch(0) for rank in range(2)]
    assert [share.shape for share in shares] == [(1, 2), (1, 2)]
    assert batches(rows=5, size=16).epoch(0).shape == (1, 5)


def images(count=4, height=5, width=6, channels=3):
    return torch.arange(count * height * width * channels, dtype=torch.int64).remainder(251).to(
        torch.uint8
    ).view(count, height, width, channels)  # fmt: skip


def test_without_changes_images_stay_as_they_are():
    x = images()
    assert batches().augment(x, Augment(), 0) is x


def test_flipping_mirrors_some_images_left_to_right_and_leaves_the_others():
    x, flipped = images(64), 0
    changed = Batches(64, 64, 0, 0, 1).augment(x, Augment(flip=True), 7)
    for before, after in zip(x, changed, strict=True):
        if torch.equal(before.flip(1), after):
            flipped += 1
        else:
            assert torch.equal(before, after)
    assert 16 < flipped < 48


def test_shifting_moves_an_image_and_repeats_its_edge():
    x = images(64)
    changed = Batches(64, 64, 0, 0, 1).augment(x, Augment(shift=1), 7)
    moves = set()
    for before, after in zip(x, changed, strict=True):
        padded = torch.nn.functional.pad(
            before.permute(2, 0, 1)[None].float(), (1, 1, 1, 1), mode="replicate"
        )[0].permute(1, 2, 0).to(torch.uint8)  # fmt: skip
        possible = {
            (y, x): padded[1 + y : 6 + y, 1 + x : 7 + x] for y in (-1, 0, 1) for x in (-1, 0, 1)
        }
        [move] = [move for move, each in possible.items() if torch.equal(each, after)]
        moves.add(move)
    assert len(moves) == 9


def test_an_images_change_does_not_depend_on_the_number_of_workers():
    x, changes = images(), Augment(flip=True, shift=2)
    alone = batches().augment(x, changes, 11)
    shares = [
        batches(rank=rank, workers=2).augment(x[2 * rank : 2 * rank + 2], changes, 11)
        for rank in range(2)
    ]
    assert torch.equal(torch.cat(shares), alone)
    assert not torch.equal(alone, batches().augment(x, changes, 12))


@pytest.mark.parametrize("other", [{"rank": 1, "workers": 2}, {"seed": 1}])
def test_every_worker_step_and_seed_draws_its_own_dropout(other):
    seeds = batches().network_seeds(5)
    assert seeds == batches().network_seeds(5)
    assert len({*seeds, *batches().network_seeds(6), *batches(**other).network_seeds(5)}) == 15
