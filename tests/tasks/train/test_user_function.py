"""A training function of the user's: what it gets, what it reports, and what it does wrong."""

import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from ray.train import TrainingFailedError
from safetensors.torch import load

import models
from retrain.runs.task import is_transient
from retrain.workload import Best, Model, Scale, Train
from tasks.train.session import CHECKPOINTS
from tests.tasks.train.helpers import SMALL, run, validated

ROOT = Path(__file__).parents[3]
FACTORY = "examples.network:build_model"
MODEL = Model(family="custom", factory=FACTORY, arguments={"channels": 1}, mean=[0.4], std=[0.2])
BASE = Train(epochs=4, batch_size=16, lr=0.01)


def with_function(name, **changes):
    module = "examples.ported" if name == "train" else "tests.tasks.train.functions"
    return BASE.model_copy(update={"function": f"{module}:{name}", **changes})


def kept(trained):
    """The numbers of the checkpoints."""
    folder = trained.project.root / "scratch" / CHECKPOINTS
    return {int(path.name) for path in folder.iterdir()}


@pytest.fixture(scope="module")
def trained(images, tmp_path_factory):
    root = tmp_path_factory.mktemp("trained")
    return run(root, images, with_function("train"), model=MODEL)


def test_it_learns_and_its_best_report_is_the_model(trained, images):
    accuracies = [entry["val_accuracy"] for entry in trained.history]
    assert len(accuracies) == 4
    assert trained.facts["val_accuracy"] == max(accuracies) > 0.8
    assert trained.facts["best_epoch"] == 1 + np.argmax(accuracies)
    assert validated(trained, images)[1] == pytest.approx(max(accuracies))
    assert kept(trained) == {3, 4, trained.facts["best_epoch"]}


def test_a_training_that_was_over_is_not_repeated(trained, images):
    again = run(trained.project.root, images, with_function("train"), model=MODEL, output="again")
    assert again.facts == trained.facts
    assert again.history == trained.history


def reporting(*reports, **arguments):
    """A function that reports numbers, each with its weights."""
    return made_up("reports", arguments={"reports": [*reports], **arguments})


def made_up(name, **changes):
    """A function that reports a number of its own, by which its best report is found."""
    return with_function(name, best=Best(metric="score"), **changes)


def test_the_best_report_with_weights_is_the_model_under_any_names_or_the_one_it_says(
    images, tmp_path
):
    three = reporting(
        ({"score": 0.5}, "filled"),
        ({"score": 0.9}, "filled"),
        ({"score": 0.95}, "none"),
    )
    tied = Model(family="custom", factory="tests.tasks.train.functions:tied")
    for name, given, model, epoch, value in (
        ("three", three, MODEL, 2, 1),
        ("wrapped", made_up("reports_wrapped"), MODEL, 1, 7),
        ("named", made_up("reports_two", arguments={"named": "model.pt"}), MODEL, 1, 2),
        ("tied", made_up("reports_tied"), tied, 1, 3),
    ):
        trained = run(tmp_path / name, images, given, model=model)
        assert trained.facts["best_epoch"] == epoch
        weights = load(trained.model_files()[models.WEIGHTS])
        assert all((weight == value).all() for weight in weights.values())
    assert trained.facts["parameters"] == 64 * 64 + 2 * 64 + 64 * 3 + 3  # the shared ones once


def test_one_that_does_not_resume_begins_again_after_it_was_lost(images, tmp_path):
    accuracies = [({"score": each}, "filled") for each in (0.9, 0.5, 0.6, 0.7)]
    recipe = reporting(*accuracies, lost=str(tmp_path / "lost"))
    with pytest.raises(RuntimeError, match="the connection was lost"):
        run(tmp_path, images, recipe, model=MODEL, output="lost-output")
    trained = run(tmp_path, images, recipe, model=MODEL)
    assert [entry["epoch"] for entry in trained.history] == [1, 2, 3, 4, 5, 6, 7]
    assert trained.facts["best_epoch"] == 1


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
    assert (tmp_path / "reported").read_text() == "2 2 "
    assert validated(resumed, images)[1] == pytest.approx(resumed.facts[best.metric])
    if model is SMALL:  # which keeps the order of the images
        whole = BASE.model_copy(update={"function": "examples.huggingface:train", "best": best})
        undisturbed = run(tmp_path / "whole", images, whole, model=model)
        assert resumed.model_files() == undisturbed.model_files()


HALF = {"score": 0.5}


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        (reporting(), r"reports never called ray\.train\.report .* reported no numbers"),
        (
            reporting((HALF, "filled"), (HALF | {"loss": "nan"}, "filled")),
            "reported loss = nan in its report 2: the training diverged",
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
            made_up("reports_two"),
            r"two networks, in average\.pt and model\.pt\['network'\]: which is the model\? Report",
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
        "two",
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
    assert kept(trained) == {3, 4, trained.facts["best_epoch"]}
