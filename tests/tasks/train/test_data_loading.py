"""The images that reach the training: which make up a batch, and what a `DataLoader` gets."""

from itertools import chain

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from tasks.train.data_loading import (
    BatchSampler,
    Loader,
    Part,
    SplitDataset,
    class_weights,
    in_order,
    parts_of,
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
SEEDS = ((0, 0), (1, 0), (0, 1), (1, 1))


def batches(rows=23, size=4, seed=0, rank=0, workers=1, **more):
    return BatchSampler(rows, size, seed, rank, workers, **more)


@pytest.mark.parametrize("chances", [None, class_weights(LABELS, 3)[LABELS]])
@pytest.mark.parametrize("workers", [2, 4])
def test_workers_share_out_the_very_batches_of_one(chances, workers):
    given = {"rows": 1000, "size": 12, "chances": chances}
    alone = batches(**given).epoch(3)
    shares = [batches(rank=rank, workers=workers, **given).epoch(3) for rank in range(workers)]
    assert np.array_equal(np.concatenate(shares, axis=1), alone)


def test_an_epoch_has_full_batches_in_an_order_of_its_own_or_one_batch_of_all_there_are():
    epochs = [batches(23, 4, rank=0, workers=2, seed=seed).epoch(n) for seed, n in SEEDS]
    assert {each.shape for each in epochs} == {(5, 2)}
    assert len({each.tobytes() for each in epochs}) == len(SEEDS)
    assert sorted(batches(3, 8).epoch(0).ravel()) == [0, 1, 2]
    seeds = [batches(23, 4, rank=rank, workers=2).network_seeds(n) for rank, n in SEEDS]
    assert len({*chain(*seeds)}) == 5 * len(SEEDS)  # one for each batch, worker and epoch


@pytest.mark.parametrize(
    ("part", "sides", "box"),
    [
        (Part(1.0, 1.0, 0.0, 0.0), (10, 10), (0, 0, 10, 10)),
        (Part(0.25, 1.0, 0.0, 0.99), (10, 20), (0, 13, 7, 20)),  # 7.07 x 7.07
        (Part(0.5, 4 / 3, 0.5, 0.5), (20, 20), (2, 4, 18, 16)),  # 16.3 x 12.2
        (Part(1.0, 4 / 3, 0.0, 0.0), (10, 10), (0, 0, 10, 8)),  # as wide as the image
        (Part(1.0, 3 / 4, 0.0, 0.0), (10, 10), (0, 0, 8, 10)),  # as high
        (Part(0.01, 1.0, 0.99, 0.5), (4, 4), (3, 2, 4, 3)),  # a pixel at least
    ],
)
def test_a_part_lies_in_its_free_space_and_is_made_smaller_where_it_does_not_fit(part, sides, box):
    assert part.box(*sides) == box
    left, top, right, bottom = part.box(400, 400)
    shorter = min(right - left, bottom - top)
    assert part.shorter_side == pytest.approx(shorter / 400, abs=0.002)


def test_parts_have_all_sizes_from_the_least_and_shapes_from_narrow_to_wide():
    numbers = np.array([[0, 0.5, 0.1, 0.2], [0.5, 1, 0.3, 0.4], [1, 0, 0.5, 0.6]])
    assert parts_of(numbers, 0.2) == [
        Part(pytest.approx(0.2), pytest.approx(1.0), 0.1, 0.2),
        Part(pytest.approx(0.6), pytest.approx(4 / 3), 0.3, 0.4),
        Part(pytest.approx(1.0), pytest.approx(3 / 4), 0.5, 0.6),
    ]


def test_an_epoch_goes_on_at_a_batch_and_rows_in_order_end_with_the_rest(dataset, monkeypatch):
    monkeypatch.setattr("tasks.train.data_loading.LARGE", 1)
    sampler, cpu = batches(ROWS, 10), torch.device("cpu")
    loaded = list(Loader(dataset, sampler, cpu).epoch(2, 3))
    assert as_matrix(loaded) == sampler.epoch(2)[3:].tolist()
    assert not any(images.is_shared() for images, _ in loaded)  # by another process
    assert as_matrix(in_order(dataset, range(40, 53), 10, cpu)) == [[*range(40, 50)], [50, 51, 52]]


def test_images_are_drawn_so_that_classes_are_equal():
    weights = class_weights(LABELS, 3)
    assert weights * np.bincount(LABELS) == pytest.approx([1000 / 3] * 3)
    sampler = batches(1000, 10, chances=weights[LABELS])
    drawn = np.concatenate([LABELS[sampler.epoch(epoch)].ravel() for epoch in range(20)])
    shares = np.bincount(drawn, minlength=3) / len(drawn)
    assert shares == pytest.approx([1 / 3] * 3, abs=0.1)
