"""What remains of a scan that was killed, and of one of bad data."""

import shutil

import pytest

from retrain.workload import Checks, Data
from tasks.data import raw_dataset
from tasks.validate.step import validate
from tests.tasks.toy_data import png, pulled, workspace, write_files

pytestmark = pytest.mark.usefixtures("ray_session")

NAMES = [f"{split}/{label}.png" for split in ("test", "train", "val") for label in ("a/1", "b/1")]


def run(root):
    space = workspace(root, "validate")
    checks = Checks(min_images_per_class=1)
    validate(Data(path="data"), checks, pulled(root, "folders"), space)
    return (space.folder / "images.parquet").read_bytes()


def test_a_run_that_was_killed_goes_on_with_the_units_that_are_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(raw_dataset, "WORTH_ROWS", 1)
    write_files(tmp_path / "data", {name: png(number) for number, name in enumerate(NAMES)})
    written = run(tmp_path)
    lost, *kept = sorted((tmp_path / "validate-scratch/inspected").glob("*.parquet"))
    assert len(kept) == 5
    before = [path.stat().st_mtime_ns for path in kept]
    lost.unlink()
    shutil.rmtree(tmp_path / "validate")
    assert run(tmp_path) == written
    assert lost.exists()
    assert [path.stat().st_mtime_ns for path in kept] == before


def test_data_that_was_rejected_leaves_nothing_behind(tmp_path):
    write_files(tmp_path / "data", dict.fromkeys(NAMES, b"broken"))
    with pytest.raises(ValueError, match="The data is rejected"):
        run(tmp_path)
    assert not (tmp_path / "validate-scratch").exists()
