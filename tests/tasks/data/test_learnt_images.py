from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from retrain import tracking
from retrain.project import Project
from retrain.registry.versions import ModelVersion
from tasks.data.predictions import LEARNT, learnt_images
from tests import templates


@pytest.fixture
def project(tmp_path):
    templates.place_mlflow_database(tmp_path)
    return Project(tmp_path)


def version(project: Project, key: str, files: dict[str, list[int]]) -> ModelVersion:
    """A version whose training's run has these files."""
    run = tracking.start_run(project, "toy", key, {}, "digest", again=True)
    folder = Path(project.root, key)
    folder.mkdir()
    for name, ids in files.items():
        np.save(folder / name, np.array(ids, np.uint64))
    tracking.log_artifacts(project, run.run_id, folder, "evaluate")
    return ModelVersion(
        name="toy", weights="w", package_digest="p", train_digest="t", train_key=None, start=None,
        family="vit", images={}, classes=None, metrics={}, data=None, commit=None,
        run_id=run.run_id, version=1, aliases=(), verdict=None, created="now",
    )  # fmt: skip


def test_the_images_come_from_the_run_of_the_training_and_are_kept(project, monkeypatch):
    known = version(project, "new", {LEARNT: [1, 2]})
    assert np.load(learnt_images(project, known)).tolist() == [1, 2]
    monkeypatch.delattr(tracking, "read_artifact")
    assert np.load(learnt_images(project, known)).tolist() == [1, 2]


def test_a_run_that_is_gone_has_recorded_nothing(project):
    gone = replace(version(project, "gone", {}), run_id="0" * 32)
    assert learnt_images(project, gone) is None
    assert learnt_images(project, gone) is None  # known by now not to be known
