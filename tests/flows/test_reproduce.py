"""A version of a real clone is trained again from its lineage."""

import hashlib
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from retrain.project import Project
from retrain.registry import decisions, lineage, tracking, versions
from retrain.store import Store
from tests.flows.conftest import copy_clone, shorten_trainings

pytestmark = pytest.mark.slow


@pytest.fixture
def project(clone) -> Project:
    return Project(clone.root)


def state(project: Project) -> tuple:
    """What a reproduction must leave as it is."""
    return (
        [each.public() for each in (versions.find(project, "vit", "1"),)],
        decisions.read(project, "vit"),
        sorted(Store(project.store).entries()),
        project.git("status", "--porcelain"),
        project.git("worktree", "list"),
        tracking.client(project).search_runs(["0", "1"], max_results=50).__len__(),
    )


def test_the_champion_is_reproduced_and_nothing_else_changes(clone, first, project):
    before = state(project)
    assert len(before[4].splitlines()) == 1
    document = clone.json("reproduce", "vit@champion")
    assert document["identical"], document
    assert document["reproduced"] == first["model"]["digest"]
    assert document["steps"].keys() >= {"pull", "train", "evaluate"}
    assert all(document["steps"].values())
    assert all(before == now for before, now in document["metrics"].values())
    assert state(project) == before
    assert not (project.state / "reproduce").exists()


def test_a_commit_that_is_not_here_is_named(project):
    missing = "c0ffee" * 6 + "c0ff"
    with pytest.raises(ValueError, match=f"Commit {missing} is not in this clone. Fetch it"):
        lineage._checked_out(project, missing).__enter__()
    assert not (project.state / "reproduce").exists()


def test_a_version_with_another_parameter_differs(clone, first, project):
    """The record says another learning rate than the one that the version was trained with."""
    leftover = project.state / "reproduce"  # of a process that was killed
    project.git("worktree", "add", "--quiet", "--detach", str(leftover), "HEAD")
    version = versions.find(project, "vit", "1")
    values = versions.read_record(project, version)
    values["parameters"]["train"]["lr"] = 0.001
    client, text = tracking.client(project), json.dumps(values)
    written = hashlib.sha256(text.encode()).hexdigest()
    client.log_text(version.run_id, text, f"{versions.RECORDS}/{written}.json")
    client.set_model_version_tag("vit", "1", versions.RECORD, written)
    try:
        done = clone.retrain("reproduce", "vit", code=1)
    finally:
        client.set_model_version_tag("vit", "1", versions.RECORD, version.lineage)
    said = "vit version 1 is not reproduced: train gave another output; nothing that is recorded"
    assert said in done.stdout
    assert "accuracy" in done.stdout
    assert len(project.git("worktree", "list").splitlines()) == 1
    assert not leftover.exists()


def test_images_that_look_the_same_keep_their_split_and_a_version_is_divided_as_it_was(
    clone, tmp_path
):
    own = copy_clone(clone, tmp_path / "clone")
    rng = np.random.default_rng(0)
    for number in range(120):
        pixels = rng.integers(0, 256, (6, 6, 3), np.uint8).repeat(4, 0).repeat(4, 1)
        file = tmp_path / f"photos/{number % 2}/{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(file)
    own.retrain("init", str(tmp_path / "photos"), "--pretrained", "none", "--yes")
    shorten_trainings(own.root)
    own.edit("params.yaml", "path: data/photos", "path: data/photos, group: near_duplicates")
    assert own.train(workload="photos")["promoted"]
    before = splits(own)
    for file in sorted((own.root / "data/photos").rglob("*.png")):
        pixels = np.array(Image.open(file))
        pixels[0, 0] ^= 1
        Image.fromarray(pixels).save(file.with_suffix(".bmp"))
    own.run("dvc", "add", "--quiet", "data/photos")
    own.train(workload="photos")
    after = splits(own)
    for name, split in before.items():
        assert after[name] == after[name.replace(".png", ".bmp")] == split
    reproduced = own.json("reproduce", "photos@2")
    assert reproduced["identical"] and all(reproduced["steps"].values()), reproduced


def splits(clone):
    """The split of each image of the last training, by its path."""
    steps = clone.json("why", "photos")
    folder = next(each["path"] for each in steps if each["step"] == "validate")
    rows = pq.read_table(f"{folder}/images.parquet", columns=["path", "split"]).to_pylist()
    return {row["path"]: row["split"] for row in rows}
