"""A training that starts from the champion's weights."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import load

import models
from retrain.project import Project
from retrain.registry import packages, versions
from retrain.runs.run import Run, following
from retrain.step import DataVersion, plan
from retrain.store import Artifact
from retrain.workload import Data, Model, Train, Workload
from tasks.train.initial_weights import find_initial_weights
from tasks.train.step import train
from tests.tasks.toy_model import VERSION
from tests.tasks.train.helpers import run

BASE = Train(epochs=3, batch_size=16, lr=0.01)
AGAIN = BASE.model_copy(update={"init": "champion", "epochs": 1, "lr": 1e-6})


def test_it_begins_where_the_champion_ended(images, tmp_path):
    before = run(tmp_path / "champion", images, BASE)
    package = before.project.root / "package"
    (package / packages.MODEL).parent.mkdir(parents=True)
    (package / packages.MODEL).symlink_to(before.folder / "model")
    start = SimpleNamespace(package=package, version=VERSION)
    theirs = load(before.model_files()[models.WEIGHTS])
    after = run(tmp_path / "again", images, AGAIN, start=start)
    for name, value in load(after.model_files()[models.WEIGHTS]).items():
        assert torch.allclose(value, theirs[name], atol=1e-4), name
    assert after.facts["start"] == VERSION.weights
    assert "start" not in before.facts


def test_a_champion_is_not_trained_further_before_something_has_changed(tmp_path, monkeypatch):
    registered = {}  # by their weights; the last is the champion
    monkeypatch.setattr(versions, "champion", lambda *of: next(reversed(registered.values()), None))
    monkeypatch.setattr(
        versions, "find_by_weights", lambda project, name, weights: registered.get(weights)
    )
    images = Artifact("preprocess", "k", "ab" * 32, Path(), {"storage": "pixels", "learnt": "1"})
    newer = replace(images, facts={**images.facts, "learnt": "2"})
    pulled = Artifact("pull", "k", "cd" * 32, Path(), {"format": "parquet"})
    once = Workload(
        name="sides", data=Data(path="data/sides"), model=Model(family="vit", patch_size=4),
        train=AGAIN,
    )  # fmt: skip
    more = once.model_copy(update={"train": AGAIN.model_copy(update={"epochs": 2})})

    def start(workload, prepared=images):
        """The weights that a training begins with, and its input."""
        found = find_initial_weights(workload, Project(tmp_path), prepared, pulled)
        return (found.value.version.weights if found.value else None), found

    def register(weights, workload):
        begun, found = start(workload)
        key = plan(train, workload, [images, pulled, found]).key
        registered[weights] = replace(VERSION, weights=weights, train_key=key, start=begun)

    new, a, b = None, "a" * 64, "b" * 64
    assert start(once)[0] is new
    register(a, once)
    for workload, prepared, expected in (
        (once, images, new),  # as that of the champion itself
        (more, images, a),
        (once, newer, a),
        (once.model_copy(update={"train": BASE}), images, new),
    ):
        assert start(workload, prepared)[0] == expected
    register(b, more)
    for workload, prepared, expected in ((more, images, a), (once, images, b), (more, newer, b)):
        assert start(workload, prepared)[0] == expected
    del registered[a]  # with its record
    run = Run("train", once, DataVersion("d", tracked=True), Project(tmp_path), "run")
    with following(run):
        assert start(more)[0] == b
    assert "aaaaaaaa are not found any more" in run.warnings[0]
