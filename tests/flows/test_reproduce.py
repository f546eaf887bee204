"""A version of a real clone is trained again from its lineage."""

import hashlib
import json

import pytest

from retrain.project import Project
from retrain.registry import decisions, lineage, tracking, versions
from retrain.store import Store

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
