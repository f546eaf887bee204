"""A training that starts from the champion's weights."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load

import models
from retrain.outputs import plan
from retrain.registry import packages, versions
from retrain.registry.versions import Candidate
from retrain.store import Artifact
from retrain.workload import Best, Data, Lora, Model, Train, Workload
from tasks.data.champion import Registered, Start
from tasks.train.start import find_start
from tasks.train.step import train
from tests import templates
from tests.tasks.train.helpers import LABELS, SMALL, run

BASE = Train(epochs=3, batch_size=16, lr=0.01)
BY_TRAINER = Best(metric="eval_accuracy")
AGAIN = BASE.model_copy(update={"init": "champion", "epochs": 1, "lr": 1e-6})


class Saved:
    """A version in the registry, of which only the files of the network matter."""

    def __init__(self, package: Path) -> None:
        self.package = package
        self.version = replace(VERSION, weights="1" * 64)


VERSION = versions.ModelVersion(
    name="sides", weights="", package_digest=None, train_digest="", train_key=None, start=None,
    family="vit", images={}, classes=None, metrics={}, data=None, commit=None, run_id="",
    version=7, aliases=("champion",), verdict=None, created="",
)  # fmt: skip


def start_of(trained) -> Start:
    """What starts from a training."""
    package = trained.project.root / "package"
    (package / packages.MODEL).parent.mkdir(parents=True, exist_ok=True)
    if not (package / packages.MODEL).exists():
        (package / packages.MODEL).symlink_to(trained.folder / "model")
    return Start(Saved(package))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def champion(images, tmp_path_factory):
    return run(tmp_path_factory.mktemp("champion"), images, BASE)


@pytest.mark.parametrize(
    "changes",
    [{}, {"lora": Lora(r=2)}, {"function": "examples.huggingface:train", "best": BY_TRAINER}],
    ids=["own loop", "lora", "function"],
)
def test_it_begins_where_the_champion_ended(champion, images, tmp_path, changes):
    recipe = AGAIN.model_copy(update=changes)
    trained = run(tmp_path, images, recipe, start=start_of(champion))
    before, after = (load(each.model_files()[models.WEIGHTS]) for each in (champion, trained))
    for name, value in before.items():
        assert torch.allclose(value, after[name], atol=1e-4), name
    assert trained.facts["start"] == "1" * 64
    assert trained.facts[recipe.best.metric] == pytest.approx(
        champion.facts["val_accuracy"], abs=0.05
    )
    assert "start" not in champion.facts


def test_the_classes_are_taken_by_their_names(champion):
    names = ["new", LABELS[2], LABELS[0]]
    torch.manual_seed(0)
    settings = SMALL.model_dump(exclude={"family"})
    network = models.build("vit", settings, (8, 8, 1), len(names))
    own = {name: value.clone() for name, value in network.state_dict().items()}
    models.take_weights(network, champion.folder / "model", names)
    theirs, now = load(champion.model_files()[models.WEIGHTS]), network.state_dict()
    for name in ("classifier.classifier.weight", "classifier.classifier.bias"):
        assert torch.equal(now[name][0], own[name][0])
        assert torch.equal(now[name][1], theirs[name][2])
        assert torch.equal(now[name][2], theirs[name][0])
    for name in now.keys() - {"classifier.classifier.weight", "classifier.classifier.bias"}:
        assert torch.equal(now[name], theirs[name])


def test_another_network_is_refused(champion, images, tmp_path):
    other = SMALL.model_copy(update={"hidden_size": 32})
    with pytest.raises(ValueError, match=r"train\.init: the champion is another network: its "):
        run(tmp_path, images, AGAIN, model=other, start=start_of(champion))


def register(project, workload, start, weights):
    """Registers a version that says what it was trained from."""
    images = Artifact("preprocess", "k", "ab" * 32, Path(), {"storage": "pixels"})
    pulled = Artifact("pull", "k", "cd" * 32, Path(), {"format": "parquet"})
    from retrain import tracking

    client = tracking.client(project)
    run_id = tracking.start_run(project, workload.name, weights, {}, "data").run_id
    key = plan(train, workload, [images, pulled, start]).key
    candidate = Candidate(
        name=workload.name, weights=weights, package_digest=weights, train_digest=weights,
        train_key=key, start=start.weights, family="vit", images={}, classes="classes", metrics={},
        data=None, commit=None, run_id=run_id,
    )  # fmt: skip
    package = project.root / f"package-{weights[:4]}"
    (package / packages.MODEL).mkdir(parents=True)
    (package / "MLmodel").write_text("flavors: {}\n")
    made = versions.register(project, candidate, package)
    client.set_registered_model_alias(workload.name, "champion", str(made.version))
    return made, images, pulled


def test_a_champion_is_not_trained_further_before_something_has_changed(tmp_path):
    from retrain.project import Project

    templates.place_mlflow_database(tmp_path)
    project = Project(tmp_path)
    workload = Workload(
        name="sides", data=Data(path="data/sides"), model=Model(family="vit", patch_size=4),
        train=AGAIN,
    )  # fmt: skip
    images = Artifact("preprocess", "k", "ab" * 32, Path(), {"storage": "pixels"})
    pulled = Artifact("pull", "k", "cd" * 32, Path(), {"format": "parquet"})
    assert find_start(workload, project, images, pulled).weights is None

    first, *inputs = register(project, workload, Start(None), "a" * 64)
    assert find_start(workload, project, *inputs).weights is None  # that of the champion itself
    more = workload.model_copy(update={"train": AGAIN.model_copy(update={"epochs": 2})})
    assert find_start(more, project, *inputs).weights == "a" * 64
    newer = replace(inputs[0], digest="ef" * 32)
    assert find_start(workload, project, newer, pulled).weights == "a" * 64

    register(project, more, Start(Registered(project, first)), "b" * 64)
    assert find_start(more, project, *inputs).weights == "a" * 64
    assert find_start(workload, project, *inputs).weights == "b" * 64
    assert find_start(more, project, newer, pulled).weights == "b" * 64
    new = workload.model_copy(update={"train": BASE})
    assert find_start(new, project, *inputs).weights is None
