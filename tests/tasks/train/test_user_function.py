"""A training function of the user's: what it gets, what it reports, and what it does wrong."""

import shutil
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from ray.train import Checkpoint, TrainingFailedError
from safetensors.torch import load, save_file
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import models
from examples import network
from retrain.runs.task import is_transient
from retrain.workload import Best, Model, Scale, Train
from tasks.train.user_function import Reports, network_of
from tests.tasks.train import functions
from tests.tasks.train.helpers import ROOT, SMALL, kept, run, validated

FACTORY = "examples.network:build_model"
MODEL = Model(family="custom", factory=FACTORY, arguments={"channels": 1}, mean=[0.4], std=[0.2])
BASE = Train(epochs=4, batch_size=16, lr=0.01)


def with_function(name, **changes):
    module = "examples.ported" if name == "train" else "tests.tasks.train.functions"
    return BASE.model_copy(update={"function": f"{module}:{name}", **changes})


def test_it_learns_and_its_best_report_is_the_model(images, tmp_path):
    trained = run(tmp_path, images, with_function("train"), model=MODEL)
    accuracies = [entry["val_accuracy"] for entry in trained.history]
    assert len(accuracies) == 4
    assert trained.facts["val_accuracy"] == max(accuracies) > 0.8
    assert trained.facts["best_epoch"] == 1 + np.argmax(accuracies)
    assert validated(trained, images)[1] == pytest.approx(max(accuracies))
    assert {*kept(tmp_path / "scratch")} == {3, 4, trained.facts["best_epoch"]}


def reporting(*reports, **arguments):
    """A function that reports numbers, each with its weights."""
    return made_up("reports", arguments={"reports": [*reports], **arguments})


def made_up(name, **changes):
    """A function that reports a number of its own, by which its best report is found."""
    return with_function(name, best=Best(metric="score"), **changes)


def wrapped():
    """The names of the weights inside `torch.compile` and other wrappers; each weight is 1."""
    made = network.build_model(3, channels=1)
    made[0] = checkpoint_wrapper(made[0])
    made[3] = torch.compile(made[3])
    names = torch.compile(made).state_dict()
    assert "_orig_mod.3._orig_mod.weight" in names
    return {f"module.{name}": torch.ones_like(each) for name, each in names.items()}


def filled(value, made):
    return {name: torch.full_like(each, value) for name, each in made.state_dict().items()}


ONE, TWO = (filled(value, network.build_model(3, channels=1)) for value in (1, 2))
LACKING = {name: each for name, each in ONE.items() if name != "0.bias"}
TIED = Model(family="custom", factory="tests.tasks.train.functions:tied")
# As safetensors has them: the weight of two layers once.
TIED_ONE = {k: each for k, each in filled(1, functions.tied(3)).items() if k != "second.weight"}


def checkpoint_of(folder, files, named):
    """A checkpoint with files of some content, one of which may be named."""
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        save = save_file if name.endswith(".safetensors") else torch.save
        save(content, folder / name)
    checkpoint = Checkpoint(str(folder))
    checkpoint.set_metadata({"weights": named} if named else {})
    return checkpoint


@pytest.mark.parametrize(
    ("model", "files", "named"),
    [
        (MODEL, {"any.bin": {"network": ONE, "epoch": 3}, "notes.txt": TWO}, None),
        (MODEL, {"wrapped.pt": wrapped()}, None),
        (MODEL, {"average.pt": TWO, "of/model.pth": {"network": ONE}}, "of/model.pth"),
        (MODEL, {"model.ckpt": ONE, "copy.pt": ONE, "loss.pt": 0.5, "part.pt": LACKING}, None),
        (TIED, {"model.safetensors": TIED_ONE}, None),
    ],
    ids=["within", "wrapped", "named", "beside others", "tied"],
)
def test_the_weights_are_found_under_any_names_or_in_the_file_that_is_named(
    job, tmp_path, model, files, named
):
    checkpoint = checkpoint_of(tmp_path, files, named)
    found = network_of(replace(job, model=model), checkpoint)
    assert all((weights == 1).all() for weights in found.classifier.parameters())


@pytest.mark.parametrize(
    ("files", "named", "said"),
    [
        ({"model.pt": LACKING}, None, "no file of the reported checkpoint has the state_dict"),
        ({"model.pt": ONE}, "other.pt", "no file of the reported checkpoint has the state_dict"),
        ({"model.pt": ONE | {"more": ONE["0.bias"]}}, None, "no file of the reported"),
        ({"model.pt": ONE | {"0.bias": torch.ones(2)}}, None, "no file of the reported"),
        (
            {"a.pt": TWO, "b.pt": {"network": ONE}},
            None,
            r"two networks, in a\.pt and b\.pt\['network'\]: which is the model\? Report",
        ),
    ],
    ids=["lacking", "of another name", "more", "another shape", "two"],
)
def test_weights_that_are_not_one_network_are_refused(job, tmp_path, files, named, said):
    with pytest.raises(ValueError, match=said):
        network_of(replace(job, model=MODEL), checkpoint_of(tmp_path, files, named))


def test_one_that_does_not_resume_begins_again_after_it_was_lost(images, tmp_path):
    scores = ((0.5, "filled"), (0.9, "filled"), (0.95, "none"), (0.7, "filled"))
    reports = [({"score": score}, weights) for score, weights in scores]
    recipe = reporting(*reports, lost=str(tmp_path / "lost"))
    with pytest.raises(RuntimeError, match="the connection was lost"):
        run(tmp_path, images, recipe, model=MODEL, output="lost-output")
    trained = run(tmp_path, images, recipe, model=MODEL)
    assert [entry["epoch"] for entry in trained.history] == [1, 2, 3, 4, 5, 6, 7]
    assert trained.facts["best_epoch"] == 2  # the best of those with weights
    weights = load(trained.model_files()[models.WEIGHTS])
    assert all((weight == 1).all() for weight in weights.values())


@pytest.mark.parametrize(
    ("model", "best"),
    # The Trainer of transformers trains a network of the project's.
    [(MODEL, Best()), (SMALL, Best(metric="eval_accuracy"))],
    ids=["ported", "by a trainer"],
)
def test_it_resumes_from_its_last_report(images, tmp_path, model, best):
    given = {"lost": str(tmp_path / "lost"), "by_trainer": model is SMALL}
    lost = with_function("stops_once", best=best, arguments=given)
    with pytest.raises(RuntimeError, match="the connection was lost"):
        run(tmp_path, images, lost, model=model, output="lost-output")
    resumed = run(tmp_path, images, lost, model=model)
    assert [entry["epoch"] for entry in resumed.history] == [1, 2, 3, 4]
    assert validated(resumed, images)[1] == pytest.approx(resumed.facts[best.metric])
    if model is SMALL:  # which keeps the order of the images
        whole = BASE.model_copy(update={"function": "examples.huggingface:train", "best": best})
        undisturbed = run(tmp_path / "whole", images, whole, model=model)
        assert resumed.model_files() == undisturbed.model_files()


def test_of_what_is_reported_numbers_are_kept(job):
    reported = {"score": 0.5, "loss": np.float32(2), "rate": torch.tensor(3), "steps": 4}
    others = {"name": "x", "is_best": True, "each": np.zeros(2), "list": [1.0]}
    reports = Reports(job)
    reports.after_report(None, [reported | others, {"loss": 9.0}], None)
    [entry] = reports.session.history
    assert entry.pop("seconds") < 60
    assert entry == {"score": 0.5, "loss": 2, "rate": 3, "steps": 4, "epoch": 1}


HALF = {"score": 0.5}


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        (reporting(), r"reports never called ray\.train\.report .* reported no numbers"),
        (
            reporting((HALF, "filled"), (HALF | {"loss": "nan"}, "filled")),
            r"^train\.function reported loss = nan in its report 2: the training diverged",
        ),
        (reporting((HALF, "none")), r"It reported score, and 0 checkpoints\.$"),
        (
            reporting(({"accuracy": 0.5}, "filled")),
            "with score, .* It reported accuracy, and 1 checkpoints",
        ),
        (
            reporting((HALF, "another")),
            "has the state_dict of the network that the section model",
        ),
        (
            with_function("reports_the_model", arguments={"metrics": {"val_accuracy": 0.99}}),
            r"reported val_accuracy 0\.990, and the network .* has 0\.\d+ of the validation images",
        ),
        (
            with_function("reads_a_file"),
            r"reads_a_file failed: KeyError: 'file' \(functions\.py, line \d+\)",
        ),
        (
            with_function("reads_a_file", arguments={"file": "gone.pt"}),
            r"reads_a_file failed: FileNotFoundError: .* 'gone.pt' \(functions.py",
        ),
    ],
    ids=[
        "silent",
        "nan",
        "no weights",
        "other metric",
        "other network",
        "far",
        "error",
        "no file",
    ],
)
def test_what_it_does_wrong_is_said_in_one_line(images, tmp_path, recipe, said):
    with pytest.raises(ValueError, match=said) as raised:
        run(tmp_path, images, recipe, model=MODEL)
    assert "\n" not in str(raised.value)
    assert str(raised.value).startswith("train.function")


@pytest.fixture
def for_workers(ray_session, tmp_path):
    """A project's folder with the functions, which workers import from there."""
    for package in ("examples", "tests"):
        shutil.copytree(
            ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    return tmp_path


@pytest.mark.slow
def test_a_worker_that_hangs_ends_the_training_in_one_line(for_workers, images):
    scale = Scale(workers=2, timeout_seconds=10)
    with pytest.raises(ValueError, match="All workers have to report; one") as raised:
        run(for_workers, images, with_function("hangs_on_one_worker"), model=MODEL, scale=scale)
    assert "\n" not in str(raised.value)


def raising(folder, *, passes):
    given = {"folder": str(folder), "passes": passes}
    return with_function("raises_on_the_last_worker", arguments=given)


@pytest.mark.slow
def test_a_verdict_on_one_worker_ends_all_at_once_and_is_not_tried_again(for_workers, images):
    recipe, began = raising(for_workers, passes=False), time.monotonic()
    with pytest.raises(ValueError, match="failed: ValueError: no such thing"):
        run(for_workers, images, recipe, model=MODEL, scale=Scale(workers=2))
    assert time.monotonic() - began < 120  # two workers start in half a minute on a busy machine
    assert (for_workers / "tries-of-1").read_text() == "x"


@pytest.mark.slow
def test_other_errors_are_tried_as_often_as_configured_by_ray_and_no_more(for_workers, images):
    scale = Scale(workers=1, max_failures=0)
    with pytest.raises(TrainingFailedError, match="away") as raised:
        run(for_workers, images, raising(for_workers, passes=True), model=MODEL, scale=scale)
    assert (for_workers / "tries-of-0").read_text() == "x"
    assert not is_transient(raised.value)


@pytest.mark.slow
def test_workers_with_accelerate_train_one_network(for_workers, images):
    chosen = made_up("trains_with_accelerate", arguments={"processes": 2})
    run(for_workers, images, chosen, model=MODEL, scale=Scale(workers=2))


@pytest.mark.slow
def test_workers_resume_from_the_last_report_when_one_is_lost(for_workers, images):
    recipe = with_function("stops_once", arguments={"lost": str(for_workers / "lost")})
    trained = run(for_workers, images, recipe, model=MODEL, scale=Scale(workers=2))
    assert [entry["epoch"] for entry in trained.history] == [1, 2, 3, 4]
    assert trained.facts["val_accuracy"] > 0.6
    assert {*kept(for_workers / "scratch")} == {3, 4, trained.facts["best_epoch"]}
