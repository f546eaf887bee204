import numpy as np
import pytest

from tasks.data.shards import Shards, digest_of_learnt, shard_name
from tests.tasks.train.helpers import write_prepared


@pytest.mark.parametrize("rows", [range(20), [19, 0, 7], [6, 7, 8, 16, 17], [3, 3, 3], [12], []])
def test_rows_come_in_the_order_that_was_asked_for(tmp_path, rows):
    pixels = np.random.default_rng(0).integers(0, 256, (20, 4, 4, 3), np.uint8)
    paths = [tmp_path / shard_name(number) for number in range(4)]
    for path, shard in zip(paths, np.split(pixels, [7, 8, 17]), strict=True):
        np.save(path, shard)
    shards = Shards(paths)
    assert (len(shards), shards.shape) == (20, (4, 4, 3))
    found = shards[np.array(rows, np.int64)]
    assert np.array_equal(found, pixels[[*rows]])
    assert found.dtype == np.uint8
    found[:] = 0  # the file stays
    assert np.array_equal(shards[np.array(rows, np.int64)], pixels[[*rows]])


@pytest.mark.parametrize(
    ("file", "is_read"),
    [
        ("labels.json", True),
        ("images.json", True),
        ("train/labels.npy", True),
        ("val/images-00001.npy", True),
        ("test/labels.npy", False),
    ],
)
def test_all_that_a_training_reads_is_in_the_digest(tmp_path, file, is_read):
    folder = write_prepared(tmp_path / "images")
    before = digest_of_learnt(folder)
    (folder / file).write_bytes((folder / file).read_bytes() + b" ")
    assert (digest_of_learnt(folder) != before) is is_read
