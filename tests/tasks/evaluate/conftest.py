"""A model as `train` leaves it, and its evaluation, which the tests of the room share."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from retrain.project import Project
from retrain.store import Artifact
from retrain.workload import Evaluate, Gate
from tasks.evaluate.step import evaluate
from tasks.promote.package import write_package
from tests import templates
from tests.tasks.toy_model import (
    LABELS,
    described,
    workspace,
    write_data,
    write_model,
    write_prepared,
    write_report,
)

ROWS = 45


def run(folder: Path, trained: Artifact, images: Artifact, project: Project):
    """Evaluates; gives the folder and the facts."""
    place, settings = workspace(folder, project.root), Evaluate(batch_size=16, precision="fp32")
    facts = evaluate(settings, Gate(slices=("width",)), trained, images, described(images), place)
    return folder, facts


@pytest.fixture(scope="package")
def scored(tmp_path_factory):
    """A model with its history, its MLflow run and its package, its evaluation, and the data."""
    project = Project(tmp_path_factory.mktemp("scored"))
    templates.place_mlflow_database(project.root)
    trained = write_model(project.root / "train")
    run_id = write_report(trained, project)
    images = write_prepared(project.root / "images", ROWS)
    folder, facts = run(project.root / "evaluate", trained, images, project)
    package = project.root / "package"
    write_package(trained.folder / "model", "fp32", dict.fromkeys(LABELS, 12), package)
    return SimpleNamespace(
        trained=trained, images=images, folder=folder, facts=facts, run_id=run_id, project=project,
        package=package, scores=Artifact("evaluate", "k", "d", folder, facts),
        data=write_data(project.root / "data", ROWS),
    )  # fmt: skip
