"""The starter data: what it holds, and that its script makes it."""

import runpy
from configparser import ConfigParser
from pathlib import Path

import pytest

from retrain.project import Project
from retrain.workload import Data
from tasks.pull.step import data_version, pull
from tests.tasks.pull.pulling import make_workspace

ROOT = Path(__file__).parents[1]
ROWS = {"train": 1237, "val": 200, "test": 360}


def test_its_script_makes_the_same_bytes(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    project, data = Project(ROOT), Data(path="data/digits")
    workspace = make_workspace(tmp_path, project)
    facts = pull(data, data_version(data, project), workspace)
    assert facts == {"format": "parquet", "images": sum(ROWS.values()), "image_column": "image"}
    written_by = pq.read_metadata(workspace.folder / "data" / "train.parquet").created_by
    if not written_by.endswith(f" {pa.__version__}"):
        pytest.skip(f"the data was written by {written_by}, whose name is in the files")
    made = tmp_path / "made"
    runpy.run_path(str(ROOT / "scripts" / "make_digits.py"))["make"](made)
    for split, rows in ROWS.items():
        pinned = workspace.folder / "data" / f"{split}.parquet"
        assert (made / pinned.name).read_bytes() == pinned.read_bytes()
        assert pq.read_metadata(pinned).num_rows == rows


def test_dvc_phones_nobody():
    settings = ConfigParser()
    settings.read(ROOT / ".dvc" / "config")
    assert dict(settings["core"]).items() >= {"analytics": "false", "check_update": "false"}.items()
