"""A run that decides when another one has decided since it has looked, on a real registry."""

from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field, replace
from functools import partial

import pytest

from flows.train import decide
from retrain.params import ParamsEntry
from retrain.project import Project
from retrain.registry import decisions
from retrain.runs.run import Run, following
from retrain.workload import Data, Gate, Model, Workload
from tests.tasks.promote.conftest import DATA, ROWS, leave_out_loading, run_on, train
from tests.tasks.toy_model import write_data, write_scores
from tests.templates import place_mlflow_database

# Neither network was trained, so that neither is better; both are promoted.
GATE = Gate(margin=0.9, min_compared=ROWS)
WORKLOAD = Workload(name="toy", data=Data(path="data"), model=Model(family="vit"), gate=GATE)
WORKLOAD._entry = ParamsEntry("toy", "toy", {})  # as `load_workload` has it


@dataclass
class Overtaken(Run):
    """Runs steps without Prefect; another run comes between its first decision and promotion."""

    other: Callable[[], object] | None = None
    called: list[str] = field(default_factory=list)

    def output(self, step, *inputs):
        self.called.append(step.name)
        return super().output(step, *inputs)

    def call(self, task, *arguments):
        self.called.append(task.name)
        facts = super().call(task, *arguments)
        if self.called == ["gate"]:
            Context().run(self.other)  # whose steps are not this run's
        return facts


@pytest.mark.slow
def test_a_model_is_compared_with_the_one_that_came_before_it_meanwhile(tmp_path, monkeypatch):
    place_mlflow_database(tmp_path)
    leave_out_loading(monkeypatch)
    project, data = Project(tmp_path), write_data(tmp_path / "data", ROWS)
    ours, theirs = train(project, 1), train(project, 2)
    scores = write_scores(tmp_path / "scores", ours, ROWS)
    other = partial(run_on, data, project, theirs, "first")
    run = Overtaken("train", WORKLOAD, DATA, project, "run-1", other=other)
    with following(run):
        decide(*data, replace(ours, provenance={"commit": None}), scores)
    once, again = ["gate", "promote"], ["evaluate_champion", "compare_champion"]
    assert run.called == [*once, *again, *once]
    first, second = decisions.read(project, "toy").entries
    assert (first.verdict, second.verdict, second.previous) == ("first", "not worse", first.version)
