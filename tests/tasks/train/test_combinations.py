"""Each combination that a workload may have is refused before the run, or trains."""

import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig, get_context
from ray.train.torch import TorchConfig, TorchTrainer, get_device

import models
from retrain.project import Project
from tasks.train import stream
from tasks.train.job import TrainingJob
from tasks.train.launch import run_trainer
from tasks.train.session import Session
from tasks.train.step import train_and_save
from tasks.train.train import best_network, fit, save
from tests.tasks.train.combinations import EPOCHS, OWN, SIDE, TABLE, Place, document, to_train
from tests.tasks.train.helpers import Trained, validated


def train_on_workers(jobs: Sequence[TrainingJob]) -> list[str | None]:
    """Runs trainings by the project's own loop, one after the other in the same two workers.

    Returns:
        What failed in each of them; None for those that ended.
    """
    images = stream.of_trainer(jobs[0]) if jobs[0].streams else {}
    replaces_workers = FailureConfig(max_failures=jobs[0].scale.max_failures)  # as a run does
    with tempfile.TemporaryDirectory() as storage:
        trainer = TorchTrainer(
            _work_all,
            train_loop_config={"job": jobs[0], "jobs": list(jobs)},
            torch_config=TorchConfig(backend="gloo", timeout_s=60),
            scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.4}),
            run_config=RunConfig("combinations", storage, failure_config=replaces_workers),
            **images,
        )
        return list(run_trainer(trainer).return_value)


def _work_all(config: Mapping[str, Any]) -> list[str | None]:
    return [_attempt(_work, job) for job in config["jobs"]]


def _work(job: TrainingJob) -> None:
    """Trains as one of the workers; the first saves the network."""
    context = get_context()
    session = Session(job, context.get_world_rank(), context.get_world_size(), get_device())
    fit(session)
    if session.rank == 0:
        save(job, best_network(session))
        _check(job)


def _train(job: TrainingJob) -> None:
    train_and_save(job)
    _check(job)


def _attempt(train: Callable[[TrainingJob], None], job: TrainingJob) -> str | None:
    """What fails in a training, or is wrong with what it saved."""
    try:
        train(job)
    except Exception:
        return traceback.format_exc()
    return None


def _check(job: TrainingJob) -> None:
    """Compares what a training said with the network that it saved."""
    session = Session(job)
    history, best = session.history, session.best.metrics
    numbers = [value for entry in history for value in entry.values() if isinstance(value, float)]
    assert len(history) == EPOCHS and all(map(isfinite, numbers)), history
    if job.model.family == "embedding_head":  # the saved network makes its own embeddings
        network = models.load(job.output).module
        with torch.inference_mode():
            assert network(torch.zeros(2, SIDE, SIDE, 3, dtype=torch.uint8)).isfinite().all()
    else:
        loss, *_ = validated(Trained({}, job.output.parent, Project(job.root)), job.images)
        tolerance = 0.05 if job.hyperparameters.precision == "bf16" else 1e-3
        told = best.get("val_loss", best.get("eval_loss"))
        assert loss == pytest.approx(told, rel=tolerance, abs=tolerance)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return Place(tmp_path_factory.mktemp("combinations"))


@pytest.fixture(scope="module")
def refused(place):
    return place.refusals()


def test_the_page_says_what_is_refused(refused):
    assert TABLE.read_text(encoding="utf-8") == document(refused)


@pytest.mark.slow
def test_what_is_not_refused_trains(place, refused, ray_session):
    place.write_images()
    chosen = to_train(refused)
    jobs = {each: place.job(each, Path(f"trained-{n}")) for n, each in enumerate(chosen)}
    own = [each for each in chosen if each.loop == OWN and each.workers]
    faults = {each: _attempt(_train, jobs[each]) for each in chosen if each not in own}
    # One trainer for all, but for those whose images stream.
    groups = [[each for each in own if each.storage == "pixels"]]
    groups += [[each] for each in own if each.storage == "source"]
    for group in groups:
        found = train_on_workers([jobs[each] for each in group])
        faults |= dict(zip(group, found, strict=True))
    assert {each: fault for each, fault in faults.items() if fault} == {}
