"""One step of a flow, as DVC runs it: on toy steps in a real store."""

import json
from dataclasses import replace
from functools import wraps

import pytest
from ruamel.yaml import YAML

from flows.train import train
from retrain.flow import RECORD, run_one
from retrain.project import Project
from retrain.store import Store
from tests.flows.conftest import ROOT
from tests.retrain.runs.toy import ASKS, DATA, FIRST, SECOND, WORKLOAD


class Toy:
    """A flow of the toy steps, of which each call is noted."""

    def __init__(self):
        self.called = []
        self.steps = tuple(self._noting(step) for step in (FIRST, SECOND, ASKS))
        self.report = self

    def _noting(self, step):
        @wraps(step.function)
        def noting(*arguments):
            self.called.append(step.name)
            return step.function(*arguments)

        return replace(step, function=noting)

    name = "toy"

    def body(self, version):
        made = version
        for step in self.steps:
            made = step(made)

    def find_version(self, data, project, revision):
        return DATA

    def document(self, run):
        return {"steps": [*run.outcomes], "seconds": 1.0, "promote": run.promote}

    def show(self, document):
        self.shown = document


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.setenv("RETRAIN_STORE", str(tmp_path / "store"))
    return Project(tmp_path)


def build(project, step):
    return project.root / "build" / "toy" / step


def test_a_flow_is_followed_to_one_step_whose_output_is_copied(project):
    toy = Toy()
    first, second, _ = toy.steps
    record = run_one(toy, second, WORKLOAD, project)
    assert toy.called == ["first", "second"]
    assert {path.name for path in build(project, "second").iterdir()} == {"out.txt", RECORD}
    assert (build(project, "second") / "out.txt").read_text() == "22"
    assert json.loads((build(project, "second") / RECORD).read_text()) == record
    assert record["digest"] == Store(project.store).find("second", record["key"]).digest
    run_one(toy, first, WORKLOAD, project)
    assert toy.called == ["first", "second"]  # the store had it
    assert (build(project, "first") / "out.txt").read_text() == "2"


def test_the_last_step_shows_the_run_and_an_experiment_says_how_to_promote(project, monkeypatch):
    toy = Toy()
    run_one(toy, toy.steps[-1], WORKLOAD, project)
    steps = ["first", "second", "asks"]
    assert toy.shown == {"steps": steps, "seconds": 1.0, "promote": None, "took": 1.0}
    monkeypatch.setenv("DVC_EXP_NAME", "longer")
    run_one(toy, toy.steps[-1], WORKLOAD, project)
    assert toy.shown["promote"] is False
    assert toy.shown["how"] == "dvc exp apply longer && dvc repro promotes it"


def test_a_later_stage_uses_the_version_of_the_data_that_the_first_has_recorded(project):
    toy = Toy()
    first, second, _ = toy.steps
    run_one(toy, first, WORKLOAD, project)
    path = build(project, "first") / RECORD
    path.write_text(path.read_text().replace(DATA.digest, "def"))
    assert run_one(toy, second, WORKLOAD, project)["version"]["digest"] == "def"


def test_a_step_that_a_workload_does_not_need_leaves_an_empty_record(project):
    toy = Toy()
    unneeded = replace(toy.steps[1], needed=lambda workload: False)
    assert run_one(toy, unneeded, WORKLOAD, project) == {"step": "second"}
    assert json.loads((build(project, "second") / RECORD).read_text()) == {"step": "second"}


def test_the_steps_are_in_the_order_of_the_stages():
    stages = YAML(typ="safe").load((ROOT / "dvc.yaml").read_text())["stages"]
    assert [step.name for step in train.steps if step.name in stages] == list(stages)
    names = [step.name for step in train.steps]
    assert names.index("evaluate") < names.index("compare_champion") < names.index("gate")
