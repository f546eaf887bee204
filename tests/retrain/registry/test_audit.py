"""Ledgers that were changed behind MLflow's back: real corruption of its database and files."""

import sqlite3
from contextlib import closing

import pytest

from retrain import tracking
from retrain.project import Project
from retrain.registry import audit, decisions
from tests import templates
from tests.retrain.registry.helpers import decision, register

EDIT = "UPDATE params SET value = replace(value, 'c0ffee', 'badbad') WHERE key = '00000{}'"
REMOVE = "DELETE FROM params WHERE key = '00000{}'"
PUT_IN = (
    "INSERT INTO params (key, value, run_uuid) "
    "SELECT '{}', value, run_uuid FROM params WHERE key = '000002'"
)
CUT_OFF = """UPDATE params SET value = replace(value, '"before":""', '"before":"0"')"""
NO_JSON = "UPDATE params SET value = '{' WHERE key = '000002'"
NOT_READ = "The ledger of vit: entry {} was changed, so that it cannot be read."


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A project with a ledger of four entries."""
    root = tmp_path_factory.mktemp("project")
    templates.place_mlflow_database(root)
    project = Project(root)
    first, second = (register(project, "vit", model, root) for model in "ab")
    decisions.apply(project, first, decision(1))
    decisions.apply(project, second, decision(2, "rejected", previous=1))
    decisions.apply(project, second, decision(2, previous=1))
    decisions.apply(project, first, decision(1, "rejected", previous=2, document={"rules": []}))
    return project


@pytest.fixture
def project(whole, tmp_path):
    """A copy of the project, to be harmed."""
    templates.copy_project(whole.root, tmp_path)
    (tmp_path / "ledger" / "vit.json").unlink()  # which would find most of it, too
    return Project(tmp_path)


def change(project: Project, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(project.root / "mlflow.db")) as database, database:
        assert database.execute(statement, values).rowcount


def found(project: Project) -> list[str]:
    faults = audit.faults(project)
    assert {fault.model for fault in faults} <= {"vit"}
    return [fault.what for fault in faults]


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (EDIT.format(1), "entry 2 does not follow the one before it: one of the two was changed"),
        (EDIT.format(3), "entry 4 does not follow the one before it: one of the two was changed"),
        (EDIT.format(4), "entry 4 was changed since it was carried out"),
        (REMOVE.format(1), "entry 1 is gone"),
        (REMOVE.format(2), "entry 2 is gone"),
        (REMOVE.format(4), "entry 4 is gone"),
        (PUT_IN.format("000000"), NOT_READ.format("000000")),
        (PUT_IN.format("note"), NOT_READ.format("note")),
        (PUT_IN.format("000005"), "entry 5 does not follow the one before it"),
        (CUT_OFF, "entry 1 does not follow the one before it"),
        (NO_JSON, NOT_READ.format("000002")),
    ],
)
def test_an_entry_that_was_edited_removed_or_put_in_is_found_and_nothing_is_decided(
    project, statement, said
):
    assert found(project) == []
    change(project, statement)
    assert found(project)[0].startswith(said)
    with pytest.raises(ValueError, match=said):
        decisions.champion(project, "vit")


def test_a_document_that_was_changed_or_is_gone_is_found(project):
    folder = next((project.root / "mlruns").rglob("decisions"))
    one, other = sorted(folder.iterdir())
    one.write_text(one.read_text() + " ")
    other.unlink()
    said = [each.split(", ") for each in found(project)]
    assert len(said) == 4  # each document is of two entries
    assert {(place, how) for _, place, how in said} == {
        (f"decisions/{one.name}", "was changed"), (f"decisions/{other.name}", "is gone")
    }  # fmt: skip


def test_a_ledger_that_was_deleted_is_found(project):
    run = decisions.read(project, "vit").run
    tracking.client(project).delete_run(run)
    [said] = found(project)
    assert said.endswith(f"mlflow runs restore --run-id {run}")
    for table in ("params", "tags", "runs"):
        change(project, f"DELETE FROM {table} WHERE run_uuid = ?", run)
    gone = "its ledger is gone: the tag retrain.ledger_run of the model names no MLflow run"
    assert found(project) == [gone]
    tracking.client(project).delete_registered_model_tag("vit", "retrain.ledger_run")
    assert found(project) == [gone]
