"""A training that starts from the champion's weights."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load

import models
from retrain.project import Project
from retrain.registry import packages, versions
from retrain.runs.run import Run, following
from retrain.step import DataVersion, plan
from retrain.store import Artifact
from retrain.workload import Best, Data, Model, Train, Workload
from tasks.train.initial_weights import find_initial_weights
from tasks.train.step import train
from tests.tasks.toy_model import VERSION
from tests.tasks.train.helpers import LABELS, SMALL, run

BASE = Train(epochs=3, batch_size=16, lr=0.01)
AGAIN = BASE.model_copy(update={"init": "champion", "epochs": 1, "lr": 1e-6})


@pytest.fixture(scope="module")
def champion(images, tmp_path_factory):
    trained = run(tmp_path_factory.mktemp("champion"), images, BASE)
    package = trained.project.root / "package"
    (package / packages.MODEL).parent.mkdir(parents=True)
    (package / packages.MODEL).symlink_to(trained.folder / "model")
    return trained, SimpleNamespace(package=package, version=VERSION)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"function": "examples.huggingface:train", "best": Best(metric="eval_accuracy")},
    ],
    ids=["own loop", "function"],
)
def test_it_begins_where_the_champion_ended(champion, images, tmp_path, changes):
    before, start = champion
    recipe = AGAIN.model_copy(update=changes)
    after = run(tmp_path, images, recipe, start=start)
    theirs, ours = (load(each.model_files()[models.WEIGHTS]) for each in (before, after))
    for name, value in theirs.items():
        assert torch.allclose(value, ours[name], atol=1e-4), name
    assert after.facts["start"] == VERSION.weights
    assert after.facts[recipe.best.metric] == pytest.approx(before.facts["val_accuracy"], abs=0.05)
    assert "start" not in before.facts


def test_the_classes_are_taken_by_their_names(champion):
    names = ["new", LABELS[2], LABELS[0]]
    settings = SMALL.model_dump(exclude={"family"})
    make = partial(models.build, "vit", settings, (8, 8, 1))
    network = make(len(names))
    own = {name: value.clone() for name, value in network.state_dict().items()}
    trained, _ = champion
    models.take_weights(network, trained.folder / "model", names, make)
    theirs, now = load(trained.model_files()[models.WEIGHTS]), network.state_dict()
    for name, value in now.items():
        if name.startswith("classifier.classifier."):
            expected = torch.stack([own[name][0], theirs[name][2], theirs[name][0]])
            assert torch.equal(value, expected)
        else:
            assert torch.equal(value, theirs[name])


def test_another_network_is_refused(champion, images, tmp_path):
    other = SMALL.model_copy(update={"hidden_size": 32})
    with pytest.raises(ValueError, match=r"train\.init: the champion is another network: its "):
        run(tmp_path, images, AGAIN, model=other, start=champion[1])


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

    def find(workload, prepared=images):
        return find_initial_weights(workload, Project(tmp_path), prepared, pulled)

    def start(workload, prepared=images):
        registered = find(workload, prepared).value
        return registered and registered.version.weights

    def register(weights, workload):
        begun, key = start(workload), plan(train, workload, [images, pulled, find(workload)]).key
        registered[weights] = replace(VERSION, weights=weights, train_key=key, start=begun)

    assert start(once) is None
    register("a" * 64, once)
    assert start(once) is None  # that of the champion itself
    assert start(more) == "a" * 64
    assert start(once, newer) == "a" * 64
    register("b" * 64, more)
    assert start(more) == "a" * 64
    assert start(once) == start(more, newer) == "b" * 64
    assert start(once.model_copy(update={"train": BASE})) is None
    del registered["a" * 64]  # with its record
    run = Run("train", once, DataVersion("d", tracked=True), Project(tmp_path), "run")
    with following(run):
        assert start(more) == "b" * 64
    assert "aaaaaaaa are not found any more" in run.warnings[0]
