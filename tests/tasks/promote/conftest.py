"""A registry, and what a promotion takes."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from retrain.project import Project
from retrain.registry import decisions
from retrain.registry.versions import Latency
from retrain.step import DataVersion, Workspace
from retrain.store import Artifact
from retrain.workload import Data, Gate
from tasks.promote.step import Intent, promote, promoted
from tests import templates
from tests.tasks.toy_model import workspace, write_data, write_model, write_report, write_scores

COLUMNS = Data(path="data")
DATA = DataVersion("data-1", tracked=True)
PASSED = {"rule": "accuracy >= 0.9", "value": 0.95, "bound": 0.9, "passed": True}
ROWS = 20
PROMOTE, COMPARE = Intent(promote=True), Intent(promote=False)
AUTOMATIC, MANUAL = Gate(), Gate(approval="manual")
FAST = Latency(p50=1.0, p95=2.0, calls=20, threads=1, device="cpu")


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

    def call(
        trained: Artifact,
        verdict: str,
        champion: int | None = None,
        scores=None,
        intent=PROMOTE,
        rules=AUTOMATIC,
        data=DATA,
        run_id="run-1",
        decision=None,
    ):
        scores = scores or write_scores(trained.folder.parent / "scores", trained, ROWS)
        decision = decision or decide(verdict, champion, run_id)
        inputs = (data, *images, trained, scores, decision, intent)
        with TemporaryDirectory() as folder:
            place = workspace(Path(folder) / "promote", project.root)
            facts = promote(COLUMNS, rules, *inputs, place)
            assert list(place.folder.iterdir()) == []
        return facts

    return call


def train(project: Project, seed: int = 0) -> Artifact:
    """A model as `train` leaves it, with its MLflow run."""
    trained = write_model(project.root / f"trained-{seed}" / "train", seed=seed)
    write_report(trained, project)
    return replace(trained, provenance={"commit": "c0ffee"})


@pytest.fixture
def look(project, images):
    """Tells what there is left to do about a model with a verdict, and does nothing."""

    def call(
        trained: Artifact, verdict: str, champion: int | None, intent=PROMOTE, rules=AUTOMATIC
    ):
        scores = write_scores(trained.folder.parent / "scores", trained, ROWS)
        place = Workspace(Path(), Path(), "key", "toy", project)
        decision = decide(verdict, champion)
        inputs = (DATA, *images, trained, scores, decision, intent)
        return promoted(COLUMNS, rules, *inputs, place)

    return call


def decide(verdict: str, champion: int | None, run_id: str = "run-1") -> Artifact:
    """The gate's decision."""
    facts = {
        "passed": verdict in ("first", "better", "repackaged", "champion already"),
        "verdict": verdict,
        "rules": [PASSED],
        "says": ["Nothing was compared."],
        "slices": [],
        "test_images": "test images",
        "reference": verdict in ("first", "better"),
        "champion": champion and {"version": champion, "metrics": {"accuracy": 0.95}},
    }
    return Artifact("gate", "k", "d", Path(), facts, {"run": run_id})


def history(project: Project):
    return decisions.read(project, "toy").entries
