"""Three runs that decide at the same moment, in three clones on one real registry."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from flows.train import decide
from retrain.params import Origin
from retrain.project import Project
from retrain.registry import decisions, versions
from retrain.runs.run import Mode, Run, following
from retrain.step import DataVersion
from retrain.store import Artifact
from retrain.workload import Data, Gate, Model, Workload
from tasks.promote import package as packaging
from tests import templates
from tests.tasks.toy_model import write_data, write_model, write_report, write_scores

ROWS = 20
DATA = DataVersion("data-1", tracked=True)
# Neither network was trained, so that neither is better; both are promoted.
GATE = Gate(margin=0.9, min_compared=ROWS)
WORKLOAD = Workload(name="toy", data=Data(path="data"), model=Model(family="vit"), gate=GATE)
WORKLOAD._origin = Origin(Path(), "toy", "toy", {})  # as `load_workload` has it


@dataclass
class Runner(Run):
    """Runs steps without Prefect, and waits for the other run after the first decision."""

    barrier: threading.Barrier | None = None
    steps: list[str] = field(default_factory=list)

    def __call__(self, step, *inputs):
        self.steps.append(step.name)
        made = super().__call__(step, *inputs)
        if step.name == "gate" and self.steps.count("gate") == 1:
            self.barrier.wait(timeout=120)
        return made


def promote(root: Path, seed: int, trained: Artifact, barrier: threading.Barrier) -> list[str]:
    """Trains nothing, and takes a model through comparison, gate and promotion in its clone."""
    project = Project(root)
    write_report(trained, project)
    scores = write_scores(root / f"scores-{seed}", trained, ROWS)
    data = write_data(root / f"data-{seed}", ROWS)
    runner = Runner("train", WORKLOAD, DATA, project, f"run-{seed}", Mode.PLAIN, barrier=barrier)
    with following(runner):
        decide(DATA, *data, replace(trained, provenance={"commit": None}), scores)
    return runner.steps


@pytest.mark.slow
def test_of_three_at_once_each_is_compared_with_the_one_that_came_before_it(tmp_path, monkeypatch):
    templates.place_mlflow_database(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    # To load what is promoted takes two processes; see `tests/tasks/promote/test_package.py`.
    monkeypatch.setattr(packaging, "check_answers", lambda *_: None)
    barrier = threading.Barrier(3)
    clones = {seed: tmp_path / f"clone-{seed}" for seed in (1, 2, 3)}
    # Not in the threads, because transformers cannot be imported by two at once.
    trained = {seed: write_model(root / "train", seed=seed) for seed, root in clones.items()}
    with ThreadPoolExecutor(3) as pool:
        runs = [
            pool.submit(promote, root, seed, trained[seed], barrier)
            for seed, root in clones.items()
        ]
    once, again = ["gate", "promote"], ["evaluate_champion", "compare_champion"]
    first, *others = sorted((run.result() for run in runs), key=len)
    assert first == once
    for steps in others:  # one of the two may have come last, and compares a third time
        assert steps[:6] == [*once, *again, *once]
        assert steps[-2:] == once
    project = Project(tmp_path)
    entries = decisions.read(project, "toy").entries
    assert [entry.action for entry in entries] == ["promoted"] * 3
    assert [entry.verdict for entry in entries] == ["first", "not worse", "not worse"]
    versions_of = [entry.version for entry in entries]
    assert sorted(versions_of) == [1, 2, 3]  # either was registered first
    assert [entry.previous for entry in entries] == [None, *versions_of[:2]]
    assert versions.champion(project, "toy").version == versions_of[-1]
