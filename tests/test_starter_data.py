"""The starter data: what it holds, and that its script makes it."""

import importlib.util
import json
from configparser import ConfigParser
from pathlib import Path

import pytest

from retrain.project import Project
from retrain.workload import Data
from tasks.pull.step import data_version, pull
from tests.tasks.pull.pulling import make_workspace

ROOT = Path(__file__).parents[1]
ROWS = {"train": 1237, "val": 200, "test": 360}


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """The starter data as the flow pulls it."""
    project, data = Project(ROOT), Data(path="data/digits")
    workspace = make_workspace(tmp_path_factory.mktemp("digits"), project)
    facts = pull(data, data_version(data, project), workspace)
    assert facts == {"format": "parquet", "images": sum(ROWS.values()), "image_column": "image"}
    return workspace.folder / "data"


def read(digits, split):
    import pyarrow.parquet as pq

    return pq.read_table(digits / f"{split}.parquet")


def test_the_splits_are_stratified_and_share_no_image(digits):
    import io

    import numpy as np
    from PIL import Image

    seen = set()
    for split, rows in ROWS.items():
        table = read(digits, split)
        labels = np.bincount(table["label"].to_numpy(), minlength=10)
        images = [image["bytes"] for image in table["image"].to_pylist()]
        pixels = {np.asarray(Image.open(io.BytesIO(image))).tobytes() for image in images}
        assert table.num_rows == rows == len(pixels)
        assert labels.max() - labels.min() <= 0.01 * rows
        assert not seen & pixels
        seen |= pixels


def test_the_columns_are_those_of_the_hugging_face_hub(digits):
    import pyarrow as pa

    schema = read(digits, "train").schema
    assert schema.field("image").type == pa.struct({"bytes": pa.binary(), "path": pa.string()})
    assert schema.field("label").type == pa.int64()
    features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
    assert features["image"] == {"_type": "Image"}
    assert features["label"] == {"_type": "ClassLabel", "names": [str(i) for i in range(10)]}


def test_the_script_makes_the_same_bytes(digits, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    written_by = pq.read_metadata(digits / "train.parquet").created_by
    if not written_by.endswith(f" {pa.__version__}"):
        pytest.skip(f"the data was written by {written_by}, whose name is in the files")
    place = ROOT / "scripts" / "make_digits.py"
    spec = importlib.util.spec_from_file_location("make_digits", place)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.make(tmp_path)
    for split in ROWS:
        made, pinned = (folder / f"{split}.parquet" for folder in (tmp_path, digits))
        assert made.read_bytes() == pinned.read_bytes()


def test_dvc_phones_nobody():
    settings = ConfigParser()
    settings.read(ROOT / ".dvc" / "config")
    assert dict(settings["core"]).items() >= {"analytics": "false", "check_update": "false"}.items()
