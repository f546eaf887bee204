"""Two runs that decide at the same moment, in two clones on one real registry."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from flows.train import decide
from retrain.params import Origin
from retrain.project import Project
from retrain.registry import decisions, versions
from retrain.runs.run import Mode, Run, following
from retrain.step import DataVersion
from retrain.store import Artifact
from retrain.workload import Data, Gate, Model, Workload
from tasks.promote import check
from tests import templates
from tests.tasks.promote.conftest import FAST
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


def test_the_one_that_comes_second_compares_again_with_the_one_that_came_first(
    tmp_path, monkeypatch
):
    templates.place_mlflow_database(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    # To load what is promoted takes two processes; see `tests/tasks/promote/test_check.py`.
    monkeypatch.setattr(check, "check_answers", lambda *_: FAST)
    barrier = threading.Barrier(2)
    clones = {seed: tmp_path / f"clone-{seed}" for seed in (1, 2)}
    # Not in the threads, because transformers cannot be imported by two at once.
    trained = {seed: write_model(root / "train", seed=seed) for seed, root in clones.items()}
    with ThreadPoolExecutor(2) as pool:
        runs = [
            pool.submit(promote, root, seed, trained[seed], barrier)
            for seed, root in clones.items()
        ]
    once = ["gate", "promote"]
    scored = ["evaluate_champion", "compare_champion"]
    again = [*once, *scored, *once]
    assert sorted(run.result() for run in runs) == sorted([once, again])
    project = Project(tmp_path)
    first, second = decisions.read(project, "toy").entries
    assert (first.action, first.verdict, first.previous) == ("promoted", "first", None)
    assert (second.action, second.verdict) == ("promoted", "not worse")
    assert second.previous == first.version != second.version  # either was registered first
    assert versions.champion(project, "toy").version == second.version
