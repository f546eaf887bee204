"""Changes that kornia makes, and mixed images: in the loop, from the seed, and what they show."""

import numpy as np
import pytest
import torch

from retrain.workload import Augment, ColorJitter, Data, Images, RandAugment, Train, Workload
from tasks.train.augment import Augmentation, mix
from tasks.train.loss import mean_loss
from tasks.train.sampler import BatchSampler
from tests.tasks.train.helpers import SMALL, run

SAMPLER = BatchSampler(64, 32, 0, 0, 1)
LABELS = torch.arange(32)
CHANGES = {
    "crop": Augment(crop=0.3),
    "colours": Augment(color_jitter=ColorJitter(brightness=0.4, saturation=0.4, hue=0.1)),
    "list": Augment(rand_augment=RandAugment()),
    "all of the list": Augment(rand_augment=RandAugment(count=14, magnitude=29)),
    "erasing": Augment(erasing=0.5),
    "mixup": Augment(mixup=0.4),
    "cutmix": Augment(cutmix=1.0),
    "all": Augment(flip=True, shift=2, crop=0.3, color_jitter=ColorJitter(contrast=0.4), mixup=0.2),
}


def pictures(channels=3):
    """Half bright and half dark images, each of an even shade of its own."""
    shades = torch.arange(32, dtype=torch.uint8)[:, None, None, None]
    return (40 + 5 * shades).expand(32, 16, 16, channels).contiguous()


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES.keys())
def test_the_seed_and_the_step_decide_the_changes(changes):
    random = np.random.default_rng(0)
    images = torch.from_numpy(random.integers(0, 256, (32, 16, 16, 3), np.uint8))
    before = torch.get_rng_state()
    once, targets = Augmentation(changes, SAMPLER, 16)(images, LABELS, 7)
    assert torch.equal(torch.get_rng_state(), before)  # which the network draws from
    torch.rand(3)
    again, same = Augmentation(changes, SAMPLER, 16)(images, LABELS, 7)
    assert torch.equal(once, again)
    assert [share for _, share in targets] == [share for _, share in same]
    other, _ = Augmentation(changes, SAMPLER, 16)(images, LABELS, 8)
    assert not torch.equal(once, other)
    assert not torch.equal(once, images)
    assert once.shape == images.shape
    assert once.min() >= 0
    assert once.max() <= 255.01


def test_workers_change_their_images_differently():
    one, two = (
        Augmentation(CHANGES["colours"], BatchSampler(64, 64, 0, rank, 2), 16)(
            pictures(), LABELS, 0
        )[0]
        for rank in range(2)
    )
    assert not torch.allclose(one, two, atol=1)


def test_a_crop_is_a_part_of_the_image_scaled_to_the_whole():
    ramp = torch.arange(16, dtype=torch.uint8)[None, :, None, None] * 10
    images = ramp.expand(32, 16, 16, 1).contiguous()
    changed, _ = Augmentation(Augment(crop=0.3), SAMPLER, 16)(images, LABELS, 0)
    heights = changed[:, -1, 8, 0] - changed[:, 0, 8, 0]
    assert (changed[:, 1:] >= changed[:, :-1] - 1e-3).all()
    assert heights.max() <= 150.1
    assert heights.min() < 110
    assert heights.min() > 150 * 0.3


def test_a_crop_of_an_image_with_a_margin_has_the_detail_of_the_larger_one():
    stripes = torch.tensor([0, 0, 255, 255], dtype=torch.uint8).repeat(16)[None, None, :, None]
    images = stripes.expand(32, 64, 64, 1)
    changed, _ = Augmentation(Augment(crop=1 / 16), SAMPLER, 16)(images, LABELS, 0)
    assert changed.shape == (32, 16, 16, 1)
    contrast = changed[:, 8].std(1)
    assert contrast.max() > 80  # of a small part
    assert contrast.min() < 20  # of one in which a stripe is less than a pixel wide


def test_erasing_blackens_a_rectangle_of_some_images():
    changed, _ = Augmentation(Augment(erasing=0.5), SAMPLER, 16)(pictures(), LABELS, 0)
    erased = (changed[..., 0] == 0).flatten(1)
    assert 6 < erased.any(1).sum() < 26
    assert not erased.all(1).any()


def test_mixed_images_show_as_much_of_each_label_as_it_says():
    cuts = []
    for step in range(50):
        mixed, targets = mix(pictures(), LABELS, Augment(mixup=0.4), np.random.default_rng(step))
        (labels, share), (others, rest) = targets
        assert share + rest == 1
        expected = share * (40 + 5 * labels) + rest * (40 + 5 * others)
        assert torch.allclose(mixed[:, 3, 4, 0], expected.float(), atol=1e-3)
        mixed, targets = mix(pictures(), LABELS, Augment(cutmix=1.0), np.random.default_rng(step))
        different = targets[0][0] != targets[1][0]
        for labels, share in targets:
            shown = (mixed[..., 0] == (40 + 5 * labels)[:, None, None]).float().mean((1, 2))
            assert torch.allclose(shown[different], torch.tensor(share).float())
        cuts.append(targets[0][1])
    assert min(cuts) < 0.5
    assert max(cuts) > 0.9


def test_with_both_a_batch_gets_one_of_them():
    kinds = set()
    for step in range(20):
        mixed, _ = mix(
            pictures(), LABELS, Augment(mixup=0.4, cutmix=1.0), np.random.default_rng(step)
        )
        even = (mixed == mixed[:, :1, :1]).all()
        kinds.add(bool(even))
    assert kinds == {True, False}


def test_the_loss_of_mixed_labels_is_that_of_their_mixed_probabilities():
    random = np.random.default_rng(1)
    _, targets = mix(pictures(), LABELS, Augment(mixup=0.4), random)
    logits = torch.randn(32, 32)
    soft = sum(share * torch.nn.functional.one_hot(labels, 32) for labels, share in targets)
    expected = torch.nn.functional.cross_entropy(logits, soft)
    found = mean_loss(torch.nn.functional.cross_entropy, logits, targets)
    assert float(found) == pytest.approx(float(expected), rel=1e-5)


EVERYTHING = Augment(
    shift=1, crop=0.5, color_jitter=ColorJitter(brightness=0.2, contrast=0.2), erasing=0.1,
    mixup=0.2, cutmix=1.0,
)  # fmt: skip


def test_a_training_with_all_changes_repeats_to_the_bit(images, tmp_path):
    recipe = Train(epochs=10, batch_size=16, lr=0.01, augment=EVERYTHING, micro_batch=8)
    one, two = (run(tmp_path / name, images, recipe) for name in ("one", "two"))
    assert one.model_files() == two.model_files()
    assert one.facts["val_accuracy"] > 0.6


def test_grey_images_have_no_colours_to_change():
    def faults(changes):
        train, images = Train(augment=changes), Images(size=8, channels=1)
        data = Data(path="data/sides")
        given = Workload(name="sides", data=data, images=images, model=SMALL, train=train)
        return [*given.faults()]

    [fault] = faults(CHANGES["list"])
    assert fault.startswith(
        "train.augment: saturation, hue and rand_augment need images.channels=3"
    )
    assert faults(EVERYTHING) == []
