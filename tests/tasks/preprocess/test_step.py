import json
import os
import signal
import subprocess
import sys
import time
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


def test_with_a_margin_only_the_training_images_are_larger(tmp_path):
    files = write_digits(tmp_path / "data")
    facts, folder = run(tmp_path, "folders", Images(size=6, margin=2))
    prepared = open_prepared(folder)
    assert prepared.shape == tuple(facts["shape"]) == (6, 6, 3)
    assert prepared.images == {"size": 6, "channels": 3, "resize": "crop"}
    for name, size in (("train", 8), ("val", 6), ("test", 6)):
        split = prepared.split(name)
        assert split.images.shape == (size, size, 3)
        wanted = [to_array(files[row.file], size, 3, "crop") for row in split.rows.itertuples()]
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


def test_grey_images_have_one_channel(tmp_path):
    files = write_digits(tmp_path / "data")
    facts, folder = run(tmp_path, "folders", Images(size=8, channels=1, resize="stretch"))
    split = open_prepared(folder).split("train")
    assert facts["shape"] == [8, 8, 1]
    expected = to_array(files[split.rows["file"][0]], 8, 1, "stretch")
    assert np.array_equal(split.images[np.array([0])][0], expected)


def test_the_bytes_are_the_same_in_this_process_and_by_a_plan(tmp_path, monkeypatch):
    monkeypatch.setattr(raw_dataset, "WORTH_ROWS", 7)
    listed = []
    for worth in (False, True):
        monkeypatch.setattr(ray_data, "_is_worth_a_plan", lambda _, worth=worth: worth)
        write_digits(tmp_path / str(worth) / "data")
        listed.append(list_files(run(tmp_path / str(worth), "folders")[1]))
    assert listed[0] == listed[1]


# Run in a process of its own, to be killed.
PROGRAM = """
import sys, time
from pathlib import Path
from retrain.store import Artifact
from tasks.preprocess import step
from tasks.data import raw_dataset
from tests.tasks.preprocess.test_step import DATA, IMAGES
from tests.tasks.toy_data import pulled, workspace

def slowly(*args, decode=step.to_array):
    time.sleep(0.01)
    return decode(*args)

root = Path(sys.argv[1])
raw_dataset.WORTH_ROWS = 2
step.to_array = slowly
step.preprocess(
    DATA,
    IMAGES,
    pulled(root, "folders"),
    Artifact("validate", "key", "digest", root / "validate", {}),
    workspace(root, "preprocess"),
)
"""


def test_a_run_that_was_killed_makes_only_the_shards_that_are_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(raw_dataset, "WORTH_ROWS", 2)
    killed, undisturbed = tmp_path / "killed", tmp_path / "undisturbed"
    for root in (killed, undisturbed):
        write_digits(root / "data")
    _, expected = run(undisturbed, "folders")

    raw, checked = pulled(killed, "folders"), workspace(killed, "validate")
    facts = validate(DATA, CHECKS, raw, checked)
    scratch = killed / "preprocess-scratch"
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(killed)],
        cwd=Path(__file__).parents[3],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
    )
    while len(list(scratch.glob("*/images-*"))) < 8:
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    finished = {
        path.relative_to(scratch): path.stat().st_mtime_ns for path in scratch.glob("*/images-*")
    }

    (killed / "preprocess").rename(killed / "aborted")
    space = workspace(killed, "preprocess")
    validated = Artifact("validate", "key", "digest", checked.folder, facts)
    preprocess(DATA, IMAGES, raw, validated, space)
    assert list_files(space.folder) == list_files(expected)
    written = {
        path: (space.folder / path).stat().st_mtime_ns
        for path in (p.relative_to(scratch) for p in scratch.glob("*/images-*"))
    }
    assert len(written) > len(finished) + 5
    assert {path: written[path] for path in finished} == finished
