"""A training that starts from the champion's weights."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load

import models
from retrain.project import Project
from retrain.registry import versions
from retrain.runs.run import Run, following
from retrain.step import DataVersion, plan
from retrain.store import Artifact
from retrain.workload import Data, Train, Workload
from tasks.data.champion import RegisteredVersion
from tasks.train.initial_weights import NEW, as_input, find_initial_weights
from tasks.train.step import train
from tests.tasks.toy_model import VERSION
from tests.tasks.train.helpers import SMALL, run

BASE = Train(epochs=3, batch_size=16, lr=0.01)
AGAIN = BASE.model_copy(update={"init": "champion", "epochs": 1, "lr": 1e-6})


def test_it_begins_where_the_champion_ended(images, tmp_path, caplog):
    before = run(tmp_path / "champion", images, BASE, output="package/artifacts")
    start = SimpleNamespace(package=before.project.root / "package", version=VERSION)
    theirs = load(before.model_files()[models.WEIGHTS])
    after = run(tmp_path / "again", images, AGAIN, start=start)
    assert "train starts from the weights of version 1." in caplog.messages
    for name, value in load(after.model_files()[models.WEIGHTS]).items():
        assert torch.allclose(value, theirs[name], atol=1e-4), name
    assert after.facts["start"] == VERSION.weights
    assert "start" not in before.facts


IMAGES = Artifact("preprocess", "k", "ab" * 32, Path(), {"storage": "pixels", "learnt": "1"})
NEWER = replace(IMAGES, facts=IMAGES.facts | {"learnt": "2"})
PULLED = Artifact("pull", "k", "cd" * 32, Path(), {"format": "parquet"})
ONCE = Workload(name="sides", data=Data(path="data/sides"), model=SMALL, train=AGAIN)
MORE = ONCE.model_copy(update={"train": AGAIN.model_copy(update={"epochs": 2})})
PLAIN = ONCE.model_copy(update={"train": BASE})
FIRST = replace(VERSION, weights="first")


@pytest.mark.parametrize(
    ("begun", "workload", "prepared", "expected"),
    [
        (None, ONCE, IMAGES, None),  # as that of the champion itself
        (None, MORE, IMAGES, "champion"),
        (None, ONCE, NEWER, "champion"),
        (None, PLAIN, IMAGES, None),
        (FIRST, ONCE, IMAGES, "first"),
        (FIRST, MORE, IMAGES, "champion"),
        (FIRST, ONCE, NEWER, "champion"),
    ],
)
def test_a_champion_is_not_trained_further_before_something_has_changed(
    tmp_path, monkeypatch, begun, workload, prepared, expected
):
    """It was trained once on the images, from new weights or those of the first version."""
    project = Project(tmp_path)
    start = as_input(begun and RegisteredVersion(project, begun))
    key = plan(train, ONCE, [IMAGES, PULLED, start]).key
    champion = replace(VERSION, weights="champion", train_key=key, start=begun and begun.weights)
    monkeypatch.setattr(versions, "champion", lambda *of: champion)
    monkeypatch.setattr(versions, "find_by_weights", lambda *of: {"first": FIRST}[of[-1]])
    found = find_initial_weights(workload, project, prepared, PULLED).value
    assert (found and found.version.weights) == expected


def test_without_a_champion_the_weights_are_new(tmp_path, monkeypatch):
    monkeypatch.setattr(versions, "champion", lambda *of: None)
    assert find_initial_weights(ONCE, Project(tmp_path), IMAGES, PULLED) == NEW


def test_a_champion_whose_start_is_gone_is_trained_further_with_a_warning(tmp_path, monkeypatch):
    champion = replace(VERSION, start="a" * 64)
    monkeypatch.setattr(versions, "champion", lambda *of: champion)
    monkeypatch.setattr(versions, "find_by_weights", lambda *of: None)
    project = Project(tmp_path)
    run = Run("train", ONCE, DataVersion("d", tracked=True), project, "run")
    with following(run):
        assert find_initial_weights(ONCE, project, IMAGES, PULLED).value.version is champion
    assert "aaaaaaaa are not found any more" in run.warnings[0]
