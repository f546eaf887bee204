"""Which epoch is the best, when a training ends early, and networks of the user's own.

Such a network is tried before a training; its files travel with it.
"""

import json
import re
import shutil
from dataclasses import replace

import pytest
import torch

import models
from retrain.params import load_workload, resolve
from retrain.project import Project
from retrain.step import DataVersion
from retrain.workload import Best, Model, Scale, Train
from tasks.data.shards import open_prepared
from tasks.train.job import check, lacking_gpus, score, stops_early, try_settings
from tests.tasks.train.helpers import run


def epochs(*accuracies, losses=None):
    losses = losses or [1.0] * len(accuracies)
    return [
        {"val_accuracy": accuracy, "val_loss": loss}
        for accuracy, loss in zip(accuracies, losses, strict=True)
    ]


TIED = epochs(0.5, 0.8, 0.8, 0.8, 0.7, losses=[0.1, 0.5, 0.4, 0.4, 0.2])
BY_LOSS = epochs(0.5, 0.6, 0.9, losses=[0.9, 0.1, 0.3])


@pytest.mark.parametrize(
    ("history", "choice", "expected"),
    [
        (TIED, Best(), 2),  # the highest accuracy, then the lowest loss, then the first
        (BY_LOSS, Best(metric="val_loss"), 1),
        (BY_LOSS, Best(metric="val_loss", mode="max"), 0),
        (BY_LOSS, Best(metric="val_accuracy", mode="min"), 0),
    ],
)
def test_the_best_epoch_follows_from_the_metric_and_its_mode(history, choice, expected):
    assert max(history, key=lambda epoch: score(epoch, choice)) is history[expected]


LOW = (
    "loss",
    "val_loss",
    "val_nll",
    "val_brier",
    "val_ece",
    "top1_error",
    "val_RMSE",
    "perplexity",
)
HIGH = ("val_accuracy", "val_f1", "val_macro_recall", "auc", "lossless")


@pytest.mark.parametrize(("metric", "best"), [(m, 0.2) for m in LOW] + [(m, 0.9) for m in HIGH])
def test_the_lowest_loss_is_kept_whatever_it_is_called_and_the_highest_of_others(metric, best):
    history = [{metric: value} for value in (0.5, 0.2, 0.9, 0.6)]
    assert max(history, key=lambda epoch: score(epoch, Best(metric=metric))) == {metric: best}


BY_LOSS = epochs(0.5, 0.5, 0.5, losses=[1.0, 0.8, 0.6])  # the loss alone becomes better


@pytest.mark.parametrize(
    ("history", "choice", "patience", "ends"),
    [
        (epochs(0.5, 0.6, 0.6, 0.7, 0.65, 0.7, 0.9), Best(), 2, 6),
        (BY_LOSS, Best(), 2, 3),
        (BY_LOSS, Best(metric="val_loss"), 2, None),
        (BY_LOSS, Best(), None, None),
    ],
)
def test_a_training_stops_after_as_many_epochs_without_a_better_one(
    history, choice, patience, ends
):
    lengths = range(len(history) + 1)
    assert next((n for n in lengths if stops_early(history[:n], choice, patience)), None) == ends


@pytest.mark.parametrize(
    ("workers", "is_required", "gpus", "is_lacking"),
    [(0, True, 0, True), (0, True, 1, False), (2, True, 1, True), (2, True, 2, False),
     (2, False, 0, False)],
)  # fmt: skip
def test_each_worker_needs_a_gpu_where_they_are_required(workers, is_required, gpus, is_lacking):
    scale = Scale(workers=workers, require_gpu=is_required)
    assert lacking_gpus(scale, gpus)[0] == is_lacking


FACTORY = "examples.network:build_model"


def pretrained_weights(folder):
    """A file with weights of the first layer, and one with a number."""
    first = torch.nn.Conv2d(1, 16, 3)
    torch.nn.init.constant_(first.weight, 5)
    (folder / "weights").mkdir()
    torch.save(first.state_dict(), folder / "weights" / "mine.pt")
    (folder / "weights" / "bias.txt").write_text("0.5")


OWN = "tests.tasks.train.functions"
FILES = {
    "model.factory": f"{OWN}:pretrained_network",
    "model.files": {"weights": "weights/mine.pt", "vocabulary": "weights/bias.txt"},
    "model.arguments": {},
}


def test_the_files_of_a_factory_are_read_and_travel_with_the_network(job, tmp_path):
    pretrained_weights(tmp_path)
    settings, data = workload(tmp_path, FILES).model, open_prepared(job.images)
    job = replace(job, model=settings, output=tmp_path / "saved")
    job.save(job.build(data), data, 1.0)
    moved = job.output.rename(tmp_path / "elsewhere")
    assert {path.name for path in (moved / models.FILES).iterdir()} == {
        "weights.pt", "vocabulary.txt",
    }  # fmt: skip
    shutil.rmtree(tmp_path / "weights")
    (moved / models.FILES / "weights.pt").write_bytes(b"is not read")
    network = models.load(moved).module.classifier
    assert (network[0].weight == 5).all()
    assert (network[-1].bias == 0.5).all()


def test_a_file_that_has_changed_since_the_run_began_or_is_gone_is_named(tmp_path):
    pretrained_weights(tmp_path)
    before = workload(tmp_path, FILES)
    assert list(check(before, Project(tmp_path))) == []
    (tmp_path / "weights" / "bias.txt").write_text("0.25")
    [changed] = check(before, Project(tmp_path))
    assert changed.startswith("model.files: their content is not model.pretrained_version")
    (tmp_path / "weights" / "bias.txt").unlink()
    gone = workload(tmp_path, FILES)
    assert list(check(gone, Project(tmp_path))) == [
        "model.files.vocabulary: no file weights/bias.txt."
    ]


def workload(folder, changes):
    """A workload that is read from a file, with some parameters changed."""
    tree = {
        "data": {"path": "data/sides"},
        "images": {"size": 8, "channels": 1},
        "model": {"family": "custom", "factory": FACTORY, "arguments": {"channels": 1}},
        "train": {"function": "examples.ported:train"},
    }
    (folder / "params.yaml").write_text(json.dumps({"workloads": {"sides": tree}}))
    return resolve(load_workload(folder / "params.yaml", "sides", changes), Project(folder))


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (
            {"train.function": None, "train.best.metric": "f1"},
            "train.best.metric: f1 is not one of train_loss, val_loss, val_accuracy, "
            "val_macro_recall.",
        ),
        (
            {"train.function": "examples.gone:train"},
            "train.function: there is no module examples.gone in the project's folder.",
        ),
        (
            {"model.factory": "gone:build"},
            "model.factory: there is no module gone in the project's folder.",
        ),
    ],
)
def test_what_is_not_there_is_found_before_anything_runs(tmp_path, changes, fault):
    assert list(check(workload(tmp_path, changes), Project(tmp_path))) == [fault]


WITHOUT_PIXELS = {"model_type": "imagegpt", "n_embd": 8, "n_layer": 1, "n_head": 1}


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"train.function": "examples.ported:run"}, "examples.ported has no function run."),
        ({"model.factory": "examples.network:make"}, "examples.network has no function make."),
        (
            {"model": {"family": "auto", "config": WITHOUT_PIXELS}},
            "this imagegpt cannot take images of 8 x 8",
        ),
    ],
)
def test_what_cannot_be_used_is_found_before_the_training(tmp_path, changes, fault):
    read, project = workload(tmp_path, changes), Project(tmp_path)
    assert list(check(read, project)) == []
    with pytest.raises(ValueError, match=re.escape(fault)) as found:
        try_settings(read, project, DataVersion("data", tracked=False))
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("model", "fault"),
    [
        ({"arguments": {"depth": 1}}, "TypeError: build_model() got an unexpected"),
        ({}, "has to learn from images of (8, 8, 1)"),
        ({"factory": f"{OWN}:no_module"}, "returned a dict, not a torch.nn.Module."),
        (
            {"factory": f"{OWN}:always_pretrained", "arguments": {"weights": "weights/mine.pt"}},
            "pretrained=False if it has such a parameter, and the files of model.files): "
            f"ValueError: model.factory: {OWN}:always_pretrained failed: FileNotFoundError",
        ),
        ({"factory": f"{OWN}:forgets"}, "gives other answers after it was saved and loaded"),
        ({"factory": f"{OWN}:of_ten_classes"}, "returns (2, 10) for two images and 3 classes, not"),
    ],
)
def test_a_network_that_cannot_be_trained_saved_and_loaded_is_found_before_the_training(
    tmp_path, images, model, fault
):
    pretrained_weights(tmp_path)
    settings = Model.model_validate({"family": "custom", "factory": FACTORY} | model)
    with pytest.raises(ValueError, match=re.escape(fault)) as found:
        run(tmp_path, images, Train(batch_size=16), model=settings)
    assert "\n" not in str(found.value)
    assert not list(tmp_path.rglob("mlflow.json"))  # no run was begun
