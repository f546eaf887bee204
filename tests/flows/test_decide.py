"""Two runs that decide at the same moment, in two clones on one real registry."""

import json
import os
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import BrokenBarrierError
from typing import Any

from flows.train import decide
from retrain.execute import get_or_run, run_uncached
from retrain.outputs import plan
from retrain.params import Origin
from retrain.project import Project
from retrain.registry import audit, decisions, versions
from retrain.runs.state import RunState, StateRunner
from retrain.step import DataVersion, following
from retrain.store import RunContext, Store
from retrain.workload import Data, Gate, Model, Workload
from tests import templates
from tests.flows.preloaded import forks
from tests.tasks.toy_model import write_data, write_model, write_report, write_scores

ROWS = 20
DATA = DataVersion("data-1", tracked=True)
# Neither network was trained, so that neither is better; both are promoted.
GATE = Gate(margin=0.9, min_compared=ROWS)
WORKLOAD = Workload(name="toy", data=Data(path="data"), model=Model(family="vit"), gate=GATE)
WORKLOAD._origin = Origin(Path(), "toy", "toy", {})  # as `load_workload` has it


@dataclass
class Runner(StateRunner):
    """Runs steps without Prefect, and waits for the other process after the first decision."""

    barrier: Any
    steps: list[str] = field(default_factory=list)

    def __call__(self, step, *inputs):
        now = plan(step, WORKLOAD, inputs)
        common = step, now, WORKLOAD, inputs, self.state.context, lambda _: nullcontext()
        self.steps.append(step.name)
        if step.cached:
            return get_or_run(self.state.store, *common)[0]
        made = run_uncached(*common)
        if step.name == "gate" and self.steps.count("gate") == 1:
            self.barrier.wait(timeout=120)
        return made


def promote(shared: Path, seed: int, barrier: Any) -> list[str]:
    """Trains nothing, and takes a model through comparison, gate and promotion in its clone."""
    root = shared / f"clone-{seed}"
    project = Project(root)
    trained = write_model(root / f"trained-{seed}" / "train", seed=seed)
    write_report(trained, project)
    scores = write_scores(root / f"scores-{seed}", trained, ROWS)
    data = write_data(root / f"data-{seed}", ROWS)
    store = Store(project.store)
    state = RunState("train", WORKLOAD, DATA, store, RunContext(f"run-{seed}", project))
    runner = Runner(state, barrier)
    try:
        with following(runner):
            decide(DATA, *data, replace(trained, provenance={"commit": None}), scores)
    except BrokenBarrierError:
        raise AssertionError("the other process has not decided") from None
    return runner.steps


def promote_and_tell(shared: Path, seed: int, barrier: Any) -> None:
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{shared}/mlflow.db"
    steps = promote(shared, seed, barrier)
    (shared / "steps.json").write_text(json.dumps(steps))


def test_the_one_that_comes_second_compares_again_with_the_one_that_came_first(
    tmp_path, monkeypatch
):
    project = Project(tmp_path)
    barrier = forks.Barrier(2)
    templates.place_mlflow_database(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    other = forks.Process(target=promote_and_tell, args=(tmp_path, 1, barrier))
    other.start()
    mine = promote(tmp_path, 2, barrier)
    other.join(timeout=120)
    assert other.exitcode == 0
    theirs = json.loads((tmp_path / "steps.json").read_text())
    once = ["gate", "promote"]
    again = [*once, "evaluate_champion", "compare_champion", *once]
    assert sorted([mine, theirs]) == sorted([once, again])
    first, second = decisions.read(project, "toy").entries
    assert (first.action, first.verdict, first.previous) == ("promoted", "first", None)
    assert (second.action, second.verdict) == ("promoted", "not worse")
    assert second.previous == first.version != second.version  # either was registered first
    assert versions.champion(project, "toy").version == second.version
    assert audit.faults(project) == []
