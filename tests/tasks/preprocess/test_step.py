import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from models.image import to_array
from retrain.outputs import list_files
from retrain.store import Artifact
from retrain.workload import Checks, Data, Images
from tasks.compute import ray_data
from tasks.data import raw_dataset
from tasks.data.shards import open_prepared
from tasks.preprocess.step import preprocess
from tasks.validate.step import validate
from tests.tasks.toy_data import png, pulled, workspace, write_files, write_parquet

DATA = Data(path="data")
CHECKS = Checks(min_images_per_class=1, max_bad_fraction=0.5)
IMAGES = Images(size=6, channels=3, resize="crop")

pytestmark = pytest.mark.usefixtures("ray_session")


def run(tmp_path, format, images=IMAGES):
    """Validates and preprocesses what lies below `tmp_path / "data"`."""
    raw = pulled(tmp_path, format)
    checked = workspace(tmp_path, "validate")
    facts = validate(DATA, CHECKS, raw, checked)
    validated = Artifact("validate", "key", "digest", checked.folder, facts)
    space = workspace(tmp_path, "preprocess")
    return preprocess(DATA, images, raw, validated, space), space.folder


def write_digits(root: Path, count: int = 40) -> dict[str, bytes]:
    """Class folders without splits: `count` images of the classes 2 and 10."""
    files = {f"{2 if n % 2 else 10}/{n:03}.png": png(n, 10, 8) for n in range(count)}
    write_files(root, files)
    return files


def test_images_come_out_as_the_model_will_see_them_when_it_serves(tmp_path):
    files = write_digits(tmp_path / "data")
    facts, folder = run(tmp_path, "folders")
    assert facts["classes"] == ["2", "10"]
    assert facts["shape"] == [6, 6, 3]
    prepared = open_prepared(folder)
    assert prepared.labels == ("2", "10")
    assert prepared.shape == (6, 6, 3)
    assert prepared.images == {"size": 6, "channels": 3, "resize": "crop"}
    seen = []
    for name, count in facts["rows"].items():
        split = prepared.split(name)
        assert len(split) == len(split.images) == len(split.rows) == count > 0
        arrays = split.images[np.arange(count)]
        assert (arrays.dtype, split.labels.dtype) == (np.uint8, np.int64)
        for array, label, row in zip(arrays, split.labels, split.rows.itertuples(), strict=True):
            assert np.array_equal(array, to_array(files[row.file], 6, 3, "crop"))
            assert prepared.labels[label] == row.label == row.file.split("/")[0]
            seen.append(row.file)
    assert sorted(seen) == sorted(files)


@pytest.mark.parametrize(
    ("images", "sizes"),
    [
        (Images(size=6, margin=2), {"train": 8, "val": 6, "test": 6}),
        (Images(size=8, channels=1, resize="stretch"), {"train": 8, "val": 8, "test": 8}),
    ],
)
def test_images_have_the_size_and_the_channels_that_are_wanted(tmp_path, images, sizes):
    files = write_digits(tmp_path / "data")
    facts, folder = run(tmp_path, "folders", images)
    prepared = open_prepared(folder)
    assert prepared.shape == tuple(facts["shape"]) == (images.size, images.size, images.channels)
    for name, size in sizes.items():
        split, form = prepared.split(name), (size, images.channels, images.resize)
        assert split.images.shape == (size, size, images.channels)
        wanted = [to_array(files[row.file], *form) for row in split.rows.itertuples()]
        assert np.array_equal(split.images[np.arange(len(split))], wanted)


def test_the_files_are_those_of_the_layout(tmp_path):
    write_digits(tmp_path / "data")
    _, folder = run(tmp_path, "folders")
    assert [file["path"] for file in list_files(folder)] == [
        "images.json",
        "labels.json",
        *(
            f"{split}/{name}"
            for split in ("test", "train", "val")
            for name in ("images-00000.npy", "labels.npy", "rows.parquet")
        ),
    ]
    assert json.loads((folder / "labels.json").read_text()) == ["2", "10"]
    assert list(pd.read_parquet(folder / "train/rows.parquet")) == [
        *("path", "label", "sha256", "pixels", "file", "row")
    ]
    shard = np.load(folder / "train/images-00000.npy", mmap_mode="r")
    assert isinstance(shard, np.memmap)
    assert (shard.dtype, shard.shape[1:]) == (np.uint8, (6, 6, 3))


@pytest.mark.parametrize("format", ["folders", "parquet"])
def test_many_tasks_write_the_same_images_as_one_in_the_same_order(tmp_path, monkeypatch, format):
    files = write_digits(tmp_path / "one/data")
    write_digits(tmp_path / "many/data")
    if format == "parquet":
        for name in ("one", "many"):
            for number in range(2):
                rows = list(files.items())[number::2]
                write_parquet(
                    tmp_path / name / f"data/{number}.parquet",
                    [data for _, data in rows],
                    [path.split("/")[0] for path, _ in rows],
                    row_group_size=5,
                )
    _, one = run(tmp_path / "one", format)
    monkeypatch.setattr(raw_dataset, "WORTH_ROWS", 5)
    _, many = run(tmp_path / "many", format)
    assert len(list((one / "train").glob("*.npy"))) == 2
    assert len(list((many / "train").glob("*.npy"))) == 9
    for name in ("train", "val", "test"):
        few, lots = open_prepared(one).split(name), open_prepared(many).split(name)
        everything = np.arange(len(few))
        assert np.array_equal(few.images[everything], lots.images[everything])
        assert np.array_equal(few.labels, lots.labels)
        pd.testing.assert_frame_equal(few.rows, lots.rows)
        order = list(zip(lots.rows["file"], lots.rows["row"], strict=True))
        assert order == sorted(order)


def test_images_that_were_set_aside_are_left_out(tmp_path):
    write_digits(tmp_path / "data")
    write_files(tmp_path / "data", {"2/broken.png": b"broken", "2/tiny.png": png(99, 2, 2)})
    facts, folder = run(tmp_path, "folders")
    assert sum(facts["rows"].values()) == 40
    left = pd.concat([open_prepared(folder).split(name).rows for name in facts["rows"]])
    assert not left["path"].isin(["2/broken.png", "2/tiny.png"]).any()


def test_the_bytes_are_the_same_in_this_process_and_by_a_plan(tmp_path, monkeypatch):
    monkeypatch.setattr(raw_dataset, "WORTH_ROWS", 7)
    listed = []
    for worth in (False, True):
        monkeypatch.setattr(ray_data, "_is_worth_a_plan", lambda _, worth=worth: worth)
        write_digits(tmp_path / str(worth) / "data")
        listed.append(list_files(run(tmp_path / str(worth), "folders")[1]))
    assert listed[0] == listed[1]


def test_a_run_that_was_killed_makes_only_the_shards_that_are_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(raw_dataset, "WORTH_ROWS", 2)
    write_digits(tmp_path / "data")
    _, folder = run(tmp_path, "folders")
    expected = list_files(folder)
    lost, *kept = sorted((tmp_path / "preprocess-scratch").glob("*/images-*"))
    before = [path.stat().st_mtime_ns for path in kept]
    lost.unlink()
    for step in ("validate", "preprocess"):
        shutil.rmtree(tmp_path / step)
    _, folder = run(tmp_path, "folders")
    assert list_files(folder) == expected
    assert [path.stat().st_mtime_ns for path in kept] == before


def test_training_images_that_are_not_prepared_stay_in_the_data(tmp_path):
    files = write_digits(tmp_path / "data")
    facts, folder = run(tmp_path, "folders", IMAGES.model_copy(update={"storage": "source"}))
    assert facts["storage"] == "source"
    assert sorted(path.name for path in (folder / "train").iterdir()) == [
        *("labels.npy", "rows.parquet", "source.json")
    ]
    rows = pd.read_parquet(folder / "train/rows.parquet")
    assert json.loads((folder / "train/source.json").read_text()) == {
        "format": "folders",
        "image_column": None,
        "label_column": None,
        "bytes": sum(len(files[file]) for file in rows["file"]),
    }
