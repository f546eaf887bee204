import shutil

import numpy as np
import pandas as pd
import pytest

from models.image import to_array
from retrain.outputs import list_files
from retrain.store import Artifact
from retrain.workload import Images
from tasks.data import raw_images
from tasks.data.shards import ROWS, digest_of_learnt, open_prepared
from tasks.preprocess.step import preprocess
from tests.tasks.toy_data import png, pulled, workspace, write_files, write_parquet
from tests.tasks.validate import validating

IMAGES = Images(size=6, channels=3, resize="crop")


def run(tmp_path, format="folders", images=IMAGES):
    """Validates and preprocesses what lies below `tmp_path / "data"`."""
    facts, folder = validating.run(tmp_path, {}, validating.TOLERANT, format)
    validated = Artifact("validate", "key", "digest", folder, facts)
    space = workspace(tmp_path, "preprocess")
    return preprocess(images, pulled(tmp_path, format), validated, space), space.folder


def write_digits(root, format="folders"):
    """40 images of the classes 2 and 10, without splits, as class folders or as Parquet files."""
    files = {f"{2 if n % 2 else 10}/{n:03}.png": png(n, 10, 8) for n in range(40)}
    if format == "folders":
        write_files(root / "data", files)
    else:
        for number in range(2):
            paths = [*files][number::2]
            encoded, labels = [files[path] for path in paths], [path[:-8] for path in paths]
            write_parquet(root / f"data/{number}.parquet", encoded, labels, row_group_size=5)
    return files


@pytest.mark.parametrize(
    ("images", "margin"),
    [
        (IMAGES, 0),
        (Images(size=6, margin=2), 2),
        (Images(size=8, channels=1, resize="stretch"), 0),
    ],
)
def test_images_come_out_as_the_model_will_see_them_when_it_serves(tmp_path, images, margin):
    files = write_digits(tmp_path)
    # They are set aside, and left out.
    write_files(tmp_path / "data", {"2/broken.png": b"broken", "2/tiny.png": png(99, 2, 2)})
    facts, folder = run(tmp_path, images=images)
    prepared = open_prepared(folder)
    assert facts["classes"] == [*prepared.labels] == ["2", "10"]
    assert facts["learnt"] == digest_of_learnt(folder)
    assert facts["shape"] == [*prepared.shape] == [images.size, images.size, images.channels]
    assert prepared.images == images.model_dump(include={"size", "channels", "resize"})
    seen = []
    for name, count in facts["rows"].items():
        split, side = prepared.split(name), images.size + (margin if name == "train" else 0)
        rows = pd.read_parquet(split.folder / ROWS)
        assert len(split) == len(split.images) == len(rows) == count > 0
        arrays = split.images[np.arange(count)]
        for array, label, row in zip(arrays, split.labels, rows.itertuples(), strict=True):
            expected = to_array(files[row.file], side, images.channels, images.resize)
            assert np.array_equal(array, expected)
            assert prepared.labels[label] == row.label == row.file.split("/")[0]
            seen.append(row.file)
    assert sorted(seen) == sorted(files)


@pytest.mark.parametrize("format", ["folders", "parquet"])
def test_many_tasks_write_the_same_images_as_one_in_the_same_order(tmp_path, monkeypatch, format):
    for name in ("one", "many"):
        write_digits(tmp_path / name, format)
    _, one = run(tmp_path / "one", format)
    monkeypatch.setattr(raw_images, "WORTH_ROWS", 5)
    monkeypatch.setattr(raw_images, "MAX_UNIT_ROWS", 3)  # row groups are longer
    _, many = run(tmp_path / "many", format)
    assert len(list((one / "train").glob("*.npy"))) == 2
    assert len(list((many / "train").glob("*.npy"))) >= 5
    for name in ("train", "val", "test"):
        few, lots = (open_prepared(folder).split(name) for folder in (one, many))
        everything = np.arange(len(few))
        assert np.array_equal(few.images[everything], lots.images[everything])
        assert np.array_equal(few.labels, lots.labels)
        rows = pd.read_parquet(lots.folder / ROWS)
        pd.testing.assert_frame_equal(pd.read_parquet(few.folder / ROWS), rows)
        places = list(zip(rows["file"], rows["row"], strict=True))
        assert places == sorted(places)


def test_a_run_that_was_killed_makes_only_the_shards_that_are_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(raw_images, "WORTH_ROWS", 2)
    write_digits(tmp_path)
    expected = list_files(run(tmp_path)[1])
    lost, *kept = sorted((tmp_path / "preprocess-scratch").glob("*/images-*"))
    before = [path.stat().st_mtime_ns for path in kept]
    lost.unlink()
    for step in ("validate", "preprocess"):
        shutil.rmtree(tmp_path / step)
    assert list_files(run(tmp_path)[1]) == expected
    assert [path.stat().st_mtime_ns for path in kept] == before
