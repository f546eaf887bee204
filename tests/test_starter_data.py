"""The starter data: what it holds, that its script makes it, and that its remote serves it."""

import hashlib
import importlib.util
import json
import subprocess
from pathlib import Path

import pytest

from retrain.project import Project
from retrain.workload import Data
from tasks.pull.step import data_version, pull
from tests.tasks.pull.pulling import dvc, git, make_workspace

ROOT = Path(__file__).parents[1]
ROWS = {"train": 1237, "val": 200, "test": 360}


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """The starter data as the flow pulls it."""
    project, data = Project(ROOT), Data(path="data/digits")
    workspace = make_workspace(tmp_path_factory.mktemp("digits"), project)
    assert pull(data, data_version(data, project), workspace) == {"format": "parquet"}
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


def test_the_images_are_scikit_learns(digits):
    import io

    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_digits

    source = load_digits()
    table = read(digits, "val")
    for image, label in zip(table["image"].to_pylist(), table["label"].to_pylist(), strict=True):
        row = int(image["path"].removesuffix(".png"))
        picture = Image.open(io.BytesIO(image["bytes"]))
        assert (picture.mode, picture.size, picture.format) == ("L", (8, 8), "PNG")
        assert (np.round(np.asarray(picture, float) * 16 / 255) == source.images[row]).all()
        assert label == source.target[row]


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


def test_a_clone_serves_its_own_data(digits, tmp_path):
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--",
         ".dvc", ".dvcignore", ".gitignore", "data.dvc", "dvc.yaml", "params.yaml"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    origin = tmp_path / "origin"
    for name in filter(None, listed.split("\0")):
        (origin / name).parent.mkdir(parents=True, exist_ok=True)
        (origin / name).write_bytes((ROOT / name).read_bytes())
    git(tmp_path, "init", "-q", "origin")
    git(origin, "add", "-A")
    git(origin, "commit", "-qm", "start")
    git(tmp_path, "clone", "-q", "origin", "clone")
    clone = tmp_path / "clone"
    dvc(clone, "pull", "data")
    assert dvc(clone, "status", "data.dvc").strip() == "Data and pipelines are up to date."
    assert dvc(clone, "data", "status").strip() == "No changes."
    assert git(clone, "status", "--porcelain") == ""
    for split in ROWS:
        pulled, ours = (folder / f"{split}.parquet" for folder in (clone / "data/digits", digits))
        assert _md5(pulled) == _md5(ours)


def test_dvc_phones_nobody():
    assert dvc(ROOT, "config", "core.analytics").strip() == "false"
    assert dvc(ROOT, "config", "core.check_update").strip() == "false"


def _md5(path):
    return hashlib.md5(path.read_bytes()).hexdigest()
