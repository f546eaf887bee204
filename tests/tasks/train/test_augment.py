import torch

from retrain.workload import Augment
from tasks.train.augment import augment
from tasks.train.sampler import BatchSampler

WHOLE = BatchSampler(64, 64, 0, 0, 1)  # all images in one batch


def sampler(rank=0, workers=1):
    return BatchSampler(23, 4, 0, rank, workers)


def images(count=4, height=5, width=6, channels=3):
    return torch.arange(count * height * width * channels, dtype=torch.int64).remainder(251).to(
        torch.uint8
    ).view(count, height, width, channels)  # fmt: skip


def test_without_changes_images_stay_as_they_are():
    x = images()
    assert augment(x, Augment(), sampler(), 0) is x


def test_flipping_mirrors_some_images_left_to_right_and_leaves_the_others():
    x, flipped = images(64), 0
    changed = augment(x, Augment(flip=True), WHOLE, 7)
    for before, after in zip(x, changed, strict=True):
        if torch.equal(before.flip(1), after):
            flipped += 1
        else:
            assert torch.equal(before, after)
    assert 16 < flipped < 48


def test_shifting_moves_an_image_and_repeats_its_edge():
    x = images(64)
    changed = augment(x, Augment(shift=1), WHOLE, 7)
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


def test_an_images_change_does_not_depend_on_the_workers_or_parts():
    x, changes = images(), Augment(flip=True, shift=2)
    alone = augment(x, changes, sampler(), 11)
    shares = [
        augment(x[2 * rank : 2 * rank + 2], changes, sampler(rank, 2), 11) for rank in range(2)
    ]
    assert torch.equal(torch.cat(shares), alone)
    parts = [augment(x[first:][:3], changes, sampler(), 11, first) for first in (0, 3)]
    assert torch.equal(torch.cat(parts), alone)
    assert not torch.equal(alone, augment(x, changes, sampler(), 12))
