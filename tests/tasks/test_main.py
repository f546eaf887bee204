"""The runner that DVC calls, on the records of earlier stages."""

import json
import shutil

import pytest

from retrain.atomic import write_json
from retrain.errors import RejectedDataError
from retrain.outputs import digest_of_output, list_files
from retrain.project import Project
from retrain.registry import decisions, versions
from retrain.registry.ledger import Decision
from retrain.registry.versions import Candidate
from retrain.store import Artifact, RunContext
from retrain.workload import Data, Gate, Model, Workload
from tasks.__main__ import GATE, RECORD, Build
from tasks.data import package
from tasks.promote.package import write_package
from tests import templates
from tests.tasks.toy_model import LABELS, write_data, write_model, write_report, write_scores

ROWS = 12


def appoint(project: Project, trained: Artifact) -> None:
    """Registers a model whose data had ten images of each class, and makes it champion."""
    folder = project.root / "package"
    write_package(trained.folder / "model", "fp32", dict.fromkeys(LABELS, 10), folder)
    candidate = Candidate(
        name="toy",
        weights=trained.facts["weights"],
        package_digest=package.digest_of_folder(folder),
        train_digest=trained.digest,
        train_key=None,
        start=None,
        family="vit",
        images={},
        classes=package.classes_digest(LABELS),
        metrics={},
        data=None,
        commit=None,
        run_id=write_report(trained, project),
    )
    version = versions.register(project, candidate, folder)
    decisions.apply(project, version, Decision("promoted", 1, None, "first"))


@pytest.fixture
def build(tmp_path):
    """A build folder with what was made of data without dogs, and a champion that knows them."""
    templates.place_mlflow_database(tmp_path)
    project = Project(tmp_path)
    trained = write_model(tmp_path / "model", labels=LABELS)
    appoint(project, trained)
    workload = Workload(name="toy", data=Data(path="data"), model=Model(family="vit"))
    build = Build(workload, RunContext("dvc", project))
    made = [
        *write_data(tmp_path / "made", ROWS, labels=LABELS[:3]),
        write_scores(tmp_path / "made" / "evaluate", trained, ROWS),
    ]
    for each in made:
        folder = shutil.copytree(each.folder, build.folder(each.step))
        digest = digest_of_output(each.facts, list_files(folder))
        record = {"key": each.key, "digest": digest, "facts": dict(each.facts)}
        write_json(folder / RECORD, record)
    return build


def test_the_gate_of_dvc_refuses_data_that_lacks_a_class_of_the_champion(build):
    with pytest.raises(RejectedDataError, match=r"missing: dog \(10 images then, 0 now\)"):
        build.run(GATE)
    assert not (build.folder("gate") / RECORD).exists()


def test_a_class_that_may_be_dropped_passes_the_gate_of_dvc(build):
    gate = Gate(may_drop=("dog",))
    workload = build.workload.model_copy(update={"gate": gate})
    Build(workload, build.context).run(GATE)
    facts = json.loads((build.folder("gate") / RECORD).read_text())["facts"]
    assert facts["verdict"] == "champion already"  # its own package: nothing was trained here
