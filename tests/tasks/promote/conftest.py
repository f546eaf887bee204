"""A registry, and what a promotion takes."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from retrain.params import ParamsEntry
from retrain.project import Project
from retrain.registry import decisions, versions
from retrain.runs.run import DryRun, Run
from retrain.step import DataVersion, Facts
from retrain.store import Artifact
from retrain.workload import Data, Gate, Model, Workload
from tasks.promote import approval, package as packaging
from tasks.promote.step import promote
from tests import templates
from tests.tasks.toy_model import (
    model_in,
    write_data,
    write_model,
    write_report,
    write_scores,
)

WORKLOAD = Workload(name="toy", data=Data(path="data"), model=Model(family="vit"))
WORKLOAD._entry = ParamsEntry("toy", "toy", {})  # as `load_workload` has it
DATA = DataVersion("data-1", tracked=True)
RULE = {"rule": "accuracy >= 0.9", "value": 0.95, "bound": 0.9}
REQUIREMENTS = "numpy==2.4.6\n"
ROWS = 20
PROMOTE, COMPARE, AGAIN = None, False, True  # as `Run` has it
AUTOMATIC, MANUAL = Gate(), Gate(approval="manual")


@pytest.fixture
def project(tmp_path):
    templates.place_mlflow_database(tmp_path)
    return Project(tmp_path)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """The data, pulled and validated."""
    return write_data(tmp_path_factory.mktemp("data"), ROWS)


@pytest.fixture
def run(project, images):
    """Promotes a model with the verdict that it is given."""
    return partial(run_on, images, project)


def run_on(
    images: tuple[Artifact, Artifact],
    project: Project,
    trained: Artifact,
    verdict: str,
    champion: int | None = None,
    scores: Artifact | None = None,
    intent: bool | None = PROMOTE,
    rules: Gate = AUTOMATIC,
    data: DataVersion = DATA,
    run_id: str = "run-1",
    decision: Facts | None = None,
    kind: type[Run] = Run,
) -> Facts:
    """Promotes a model with a verdict."""
    scores = scores or write_scores(trained.folder.parent / "scores", trained, ROWS)
    workload = WORKLOAD.model_copy(update={"gate": rules})
    run = kind("train", workload, data, project, run_id, intent)
    run.follow(
        lambda _: promote(*images, trained, scores, decision or decide(verdict, champion), None)
    )
    return run.artifacts["promote"].facts if "promote" in run.artifacts else None


@pytest.fixture
def not_loaded(monkeypatch):
    """Leaves out what takes 5 s: to load the version. See `test_package.py`."""
    leave_out_loading(monkeypatch)


def leave_out_loading(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(packaging, "check_answers", lambda *_: None)


@pytest.fixture
def one(project):
    """A champion."""
    return promoted(project, "one", {"verdict": "first"})


@pytest.fixture
def pair(project):
    """A champion, and a challenger that passes and waits."""
    waits = {"verdict": "better", "champion": 1, "rules": MANUAL}
    return promoted(project, "pair", {"verdict": "first"}, waits)


@pytest.fixture
def three(project):
    """Three models, which have been champion one after the other."""
    better = [{"verdict": "better", "champion": number} for number in (1, 2)]
    return promoted(project, "three", {"verdict": "first"}, *better)


def promoted(project: Project, name: str, *runs: dict[str, Any]) -> list[Artifact]:
    """A model for each run, which was promoted by it without having been loaded.

    Args:
        project: The project, which becomes a copy of one in which that was done.
        name: Of what is done.
        runs: The arguments of `run_on`.
    """

    def make(root: Path) -> None:
        templates.place_mlflow_database(root)
        (root / "requirements.lock").write_text(REQUIREMENTS)
        with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            leave_out_loading(patch)
            images = write_data(Path(folder), ROWS)
            for seed, arguments in enumerate(runs):
                run_on(images, Project(root), train(Project(root), seed), **arguments)

    templates.copy_project(templates.once(f"promoted-{name}", make), project.root)
    return [trained_in(project, seed) for seed in range(len(runs))]


def trained_in(project: Project, seed: int) -> Artifact:
    """What `train` has left."""
    made = model_in(project.root / f"trained-{seed}" / "train", seed)
    return replace(made, provenance={"commit": "c0ffee"})


def train(project: Project, seed: int = 0) -> Artifact:
    """A model as `train` leaves it, with its MLflow run."""
    made = write_model(project.root / f"trained-{seed}" / "train", seed=seed)
    write_report(made, project)
    return trained_in(project, seed)


@pytest.fixture
def dry_run(project, images):
    """Tells what there is left to do about a model with a verdict, and does nothing."""

    return partial(run_on, images, project, kind=DryRun)


def decide(verdict: str, champion: int | None) -> Facts:
    """The facts of the gate."""
    passed = verdict in ("first", "better", "repackaged", "champion already")
    return {
        "passed": passed,
        "verdict": verdict,
        "rules": [RULE | {"passed": passed}],
        "says": ["Nothing was compared."],
        "comparisons": {},
        "slices": [],
        "new_classes": [],
        "test_images": "test images",
        "reference": verdict in ("first", "better"),
        "champion": champion and {"version": champion, "metrics": {"accuracy": 0.95}},
    }


def approve(project: Project, reason: str):
    """A person promotes what waits."""
    return approval.decide(project, "toy", "promoted", reason)


def reject(project: Project, reason: str):
    """A person rejects what waits."""
    return approval.decide(project, "toy", "rejected", reason)


def roll_back(project: Project, reason: str, to: int | None = None):
    """A person goes back to an earlier champion."""
    return approval.decide(project, "toy", "rolled back", reason, to)


def history(project: Project):
    return decisions.read(project, "toy").entries


def champion(project: Project) -> int | None:
    """The number of the version in production."""
    found = versions.champion(project, "toy")
    return found and found.version


@pytest.fixture
def place_of_commands(project, monkeypatch):
    """Makes the project the place where commands run, without a Prefect server."""
    workload = "{data: {path: data/toy}, model: {family: vit}}"
    text = f"workloads: {{pets: {workload}, toy: {workload}}}\n"
    (project.root / "params.yaml").write_text(text)
    monkeypatch.chdir(project.root)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
