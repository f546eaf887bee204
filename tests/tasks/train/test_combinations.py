"""Each combination that a workload may have is refused before the run, or trains."""

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig, get_context
from ray.train.torch import TorchConfig, TorchTrainer, get_device

import models
from retrain.project import Project
from tasks.train.job import TrainingJob
from tasks.train.launch import run_trainer
from tasks.train.session import Session
from tasks.train.step import train_and_save
from tasks.train.train import best_network, fit, save
from tests.tasks.train.combinations import EPOCHS, SIDE, TABLE, Place, document, to_train
from tests.tasks.train.helpers import Trained, validated


def train_on_workers(jobs: Sequence[TrainingJob], storage: Path) -> None:
    """Runs trainings by the project's own loop, one after the other in the same two workers."""
    replaces_workers = FailureConfig(max_failures=jobs[0].scale.max_failures)  # as a run does
    trainer = TorchTrainer(
        _work,
        train_loop_config={"jobs": list(jobs)},
        torch_config=TorchConfig(backend="gloo", timeout_s=60),
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.4}),
        run_config=RunConfig("combinations", str(storage), failure_config=replaces_workers),
    )
    run_trainer(trainer)


def _work(config: Mapping[str, Any]) -> None:
    context = get_context()
    place = context.get_world_rank(), context.get_world_size(), get_device()
    for job in config["jobs"]:
        fit(Session(job, *place))


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
    alone, shared = (
        [place.job(each, Path(f"{kind}-{n}")) for n, each in enumerate(chosen)]
        for kind, chosen in zip(("alone", "shared"), to_train(refused), strict=True)
    )
    for job in alone:
        train_and_save(job)
    train_on_workers(shared, place.root / "workers")
    for job in shared:
        save(job, best_network(Session(job)))
    for job in alone + shared:
        _check(job)
