"""Random changes of the training images: from the seed and the step, and what they show."""

import numpy as np
import pytest
import torch

from retrain.workload import Augment, ColorJitter, Data, Images, Train, Workload
from tasks.train.augmentation import Augmentation, augment, mix
from tasks.train.data_loading import BatchSampler
from tests.tasks.train.helpers import SMALL

WHOLE = BatchSampler(32, 32, 0, 0, 1)  # all images in one batch
LABELS = torch.arange(32)
CHANGES = {
    "crop": Augment(crop=0.3),
    "colours": Augment(color_jitter=ColorJitter(brightness=0.4, saturation=0.4, hue=0.1)),
    "list": Augment(rand_augment=9),
    "strongest of the list": Augment(rand_augment=29),
    "erasing": Augment(erasing=0.5),
    "mixup": Augment(mixup=0.4),
    "cutmix": Augment(cutmix=1.0),
    "all": Augment(flip=True, shift=2, crop=0.3, color_jitter=ColorJitter(contrast=0.4), mixup=0.2),
}


def noise(channels=3):
    random = np.random.default_rng(0)
    return torch.from_numpy(random.integers(0, 256, (32, 16, 16, channels), np.uint8))


def even():
    """Images of an even shade each, which is 40 + 5 times the label."""
    return (40 + 5 * LABELS).to(torch.uint8)[:, None, None, None].expand(32, 16, 16, 3).contiguous()


def changed(changes, images, step=0):
    return Augmentation(changes, WHOLE, 16)(images, LABELS, step)


@pytest.mark.parametrize(("flip", "shift", "least"), [(True, 1, 13), (True, 0, 2), (False, 1, 7)])
def test_flipping_and_shifting_move_whole_images_and_repeat_their_edges(flip, shift, least):
    images = noise(1)
    moved = augment(images, Augment(flip=flip, shift=shift), WHOLE, 7)
    rows = columns = np.arange(16)
    possible = {
        (y, x, way): ((rows + y).clip(0, 15)[:, None], (columns + x).clip(0, 15)[::way][None])
        for y in range(-shift, shift + 1)
        for x in range(-shift, shift + 1)
        for way in ((1, -1) if flip else (1,))
    }
    moves = set()
    for before, after in zip(images.numpy(), moved.numpy(), strict=True):
        [move] = [move for move, place in possible.items() if (before[place] == after).all()]
        moves.add(move)
    assert len(moves) >= least
    assert augment(images, Augment(), WHOLE, 7) is images


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES.keys())
def test_the_seed_the_step_and_the_worker_decide_the_changes(changes):
    images, before = noise(), torch.get_rng_state()
    once, targets = changed(changes, images, 7)
    assert torch.equal(torch.get_rng_state(), before)  # which the network draws from
    torch.rand(3)
    again, same = changed(changes, images, 7)
    assert torch.equal(once, again)
    assert [share for _, share in targets] == [share for _, share in same]
    second, _ = Augmentation(changes, BatchSampler(64, 64, 0, 1, 2), 16)(images, LABELS, 7)
    for other in (changed(changes, images, 8)[0], second, images):
        assert not torch.equal(once, other)
    own, few = Augmentation(changes, WHOLE, 16), (images[:8], LABELS[:8], 7)
    assert not torch.equal(own(*few, 8)[0], own(*few, 16)[0])  # of later parts of the batch
    assert once.shape == images.shape
    assert once.min() >= 0
    assert once.max() <= 255.01


def test_an_image_is_cut_and_moved_by_its_place_in_the_batch_however_that_is_divided():
    changes, images = Augment(flip=True, shift=2, crop=0.3), noise()
    whole, _ = changed(changes, images, 7)
    for rank in (0, 1):
        own = Augmentation(changes, BatchSampler(32, 32, 0, rank, 2), 16)
        for first in (0, 8):
            place = slice(16 * rank + first, 16 * rank + first + 8)
            part, _ = own(images[place], LABELS[place], 7, first)
            assert torch.equal(part, whole[place])


def test_a_crop_is_a_part_of_the_image_with_the_detail_of_its_margin():
    ramp = torch.arange(16, dtype=torch.uint8)[None, :, None, None] * 10
    parts, _ = changed(Augment(crop=0.3), ramp.expand(32, 16, 16, 1).contiguous())
    heights = parts[:, -1, 8, 0] - parts[:, 0, 8, 0]
    assert (parts[:, 1:] >= parts[:, :-1] - 1e-3).all()
    assert 150 * 0.3 < heights.min() < 110
    assert heights.max() <= 150.1
    stripes = torch.tensor([0, 0, 255, 255], dtype=torch.uint8).repeat(16)[None, None, :, None]
    parts, _ = changed(Augment(crop=1 / 16), stripes.expand(32, 64, 64, 1))
    assert parts[:, 8].std(1).max() > 80  # of a small part
    parts, _ = changed(Augment(crop=0.6), stripes.expand(32, 64, 64, 1))
    assert parts[:, 8].std(1).max() < 40  # of large ones, whose stripes are about a pixel wide


def test_erasing_blackens_a_rectangle_of_some_images():
    erased = (changed(Augment(erasing=0.5), even())[0][..., 0] == 0).flatten(1)
    assert 6 < erased.any(1).sum() < 26
    assert not erased.all(1).any()


def test_mixed_images_show_as_much_of_each_label_as_it_says():
    kinds = set()
    for step in range(20):
        random = np.random.default_rng(step)
        mixed, targets = mix(even(), LABELS, Augment(mixup=0.4, cutmix=1.0), random)
        (labels, share), (others, rest) = targets
        assert share + rest == 1
        shown = share * (40 + 5 * labels) + rest * (40 + 5 * others)
        assert torch.allclose(mixed.mean((1, 2, 3)), shown.float(), atol=1e-3)
        kinds.add(bool((mixed == mixed[:, :1, :1]).all()))
    assert kinds == {True, False}  # a batch gets one of them


def test_as_much_is_replaced_as_the_share_says_but_at_the_edges():
    halves = Augment(cutmix=100)
    mixes = [mix(even(), LABELS, halves, np.random.default_rng(step)) for step in range(20)]
    assert max(rest for _, (_, (_, rest)) in mixes) == pytest.approx(0.5, abs=0.1)


def test_grey_images_have_no_colours_to_change():
    grey = Workload(
        name="sides",
        data=Data(path="data/sides"),
        model=SMALL,
        images=Images(size=8, channels=1),
        train=Train(augment=Augment(rand_augment=9)),
    )
    assert "rand_augment need images.channels=3" in "".join(grey.faults())
