"""One step of the flow `train`, on the records of earlier stages, as DVC runs it."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from flows.train import train
from retrain.atomic import write_json
from retrain.errors import RejectedDataError, UsageError
from retrain.outputs import digest_of_output, list_files
from retrain.project import Project
from retrain.registry import decisions, versions
from retrain.registry.ledger import Decision
from retrain.registry.versions import Candidate
from retrain.runs.one_step import RECORD, run_one
from retrain.store import Artifact
from retrain.workload import Data, Gate, Model, Workload
from tasks.data import package
from tasks.promote.package import write_package
from tests import templates
from tests.tasks.toy_model import (
    LABELS,
    write_data,
    write_model,
    write_prepared,
    write_report,
    write_scores,
)

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


GATE = next(step for step in train.steps if step.name == "gate")


@pytest.fixture
def project(tmp_path):
    """A build folder with what was made of data without dogs, and a champion that knows them."""
    templates.place_mlflow_database(tmp_path)
    project = Project(tmp_path)
    trained = write_model(tmp_path / "model", labels=LABELS)
    appoint(project, trained)
    made = [
        *write_data(tmp_path / "made", ROWS, labels=LABELS[:3]),
        trained,
        replace(write_prepared(tmp_path / "prepared", ROWS), facts={"storage": "pixels"}),
        write_scores(tmp_path / "made" / "evaluate", trained, ROWS),
    ]
    for artifact in made:
        folder = shutil.copytree(artifact.folder, build(project, artifact.step))
        digest = digest_of_output(artifact.facts, list_files(folder))
        record = {"key": artifact.key, "digest": digest, "facts": dict(artifact.facts)}
        record["version"] = {"digest": "abc", "tracked": True}
        write_json(folder / RECORD, record)
    return project


def build(project: Project, step: str) -> Path:
    return project.root / "build" / "toy" / step


def workload(**gate: object) -> Workload:
    """The toy workload, with rules for its gate."""
    return Workload(
        name="toy", data=Data(path="data"), model=Model(family="vit"), gate=Gate(**gate)
    )


def test_the_gate_of_dvc_refuses_data_that_lacks_a_class_of_the_champion(project):
    with pytest.raises(RejectedDataError, match=r"missing: dog \(10 images then, 0 now\)"):
        run_one(train, GATE, workload(), project)
    assert not (build(project, "gate") / RECORD).exists()


def test_a_class_that_may_be_dropped_passes_the_gate_of_dvc(project):
    run_one(train, GATE, workload(may_drop=("dog",)), project)
    facts = json.loads((build(project, "gate") / RECORD).read_text())["facts"]
    assert facts["verdict"] == "champion already"  # its own package: nothing was trained here


def test_a_stage_whose_earlier_one_was_not_run_names_it(project):
    shutil.rmtree(build(project, "evaluate"))
    with pytest.raises(UsageError, match="dvc repro evaluate@toy"):
        run_one(train, GATE, workload(may_drop=("dog",)), project)


def test_an_output_that_was_changed_in_the_build_folder_is_not_used(project):
    (build(project, "evaluate") / "more").touch()
    with pytest.raises(ValueError, match="has changed since it was made"):
        run_one(train, GATE, workload(may_drop=("dog",)), project)


def test_a_step_that_a_workload_does_not_need_leaves_an_empty_record(project):
    [embed] = (step for step in train.steps if step.name == "embed")
    run_one(train, embed, workload(), project)
    assert json.loads((build(project, "embed") / RECORD).read_text()) == {"step": "embed"}
