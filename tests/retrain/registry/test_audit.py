"""Ledgers that were changed behind MLflow's back: real corruption of its database and files."""

import re
import sqlite3
from contextlib import closing

import pytest

from retrain import tracking
from retrain.project import Project
from retrain.registry import audit, decisions
from tests import templates
from tests.retrain.registry.helpers import decision, register

EDIT = "UPDATE params SET value = replace(value, 'c0ffee', 'badbad') WHERE key = ?"


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


def test_a_whole_ledger_has_no_faults(project):
    assert found(project) == []


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_an_entry_that_was_edited_is_found(project, number):
    change(project, EDIT, f"00000{number}")
    broken = f"entry {number} or {number + 1} was changed: the one does not follow the other"
    assert found(project) == [
        broken if number < 4 else "entry 4 was changed since it was carried out"
    ]


@pytest.mark.parametrize("number", [1, 2, 4])
def test_an_entry_that_was_removed_is_found(project, number):
    change(project, "DELETE FROM params WHERE key = ?", f"00000{number}")
    assert f"entry {number} is gone" in found(project)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("000000", "The ledger of vit: entry 000000 was changed, so that it cannot be read."),
        ("note", "The ledger of vit: entry note was changed, so that it cannot be read."),
        ("000005", "entry 4 or 5 was changed: the one does not follow the other"),
    ],
)
def test_an_entry_that_was_put_in_is_found(project, key, said):
    copied = (
        "INSERT INTO params (key, value, run_uuid) "
        "SELECT ?, value, run_uuid FROM params WHERE key = '000002'"
    )
    change(project, copied, key)
    assert found(project)[0].startswith(said)


def test_a_first_entry_that_follows_another_one_is_found(project):
    cut = 'UPDATE params SET value = replace(value, \'"before":""\', \'"before":"0"\')'
    change(project, f"{cut} WHERE key = '000001'")
    assert (
        found(project)[0] == "entry 1 was changed: it follows another one, and should be the first"
    )


def test_an_entry_that_cannot_be_read_is_found_and_no_decision_is_made(project):
    change(project, "UPDATE params SET value = '{' WHERE key = '000002'")
    said = "The ledger of vit: entry 000002 was changed, so that it cannot be read"
    assert found(project)[0].startswith(said)
    with pytest.raises(ValueError, match=said):
        decisions.champion(project, "vit")


def test_a_document_that_was_changed_or_is_gone_is_found(project):
    folder = next((project.root / "mlruns").rglob("decisions"))
    one, other = sorted(folder.iterdir())
    one.write_text(one.read_text() + " ")
    other.unlink()
    said = found(project)
    assert any(
        re.fullmatch(rf"the document of entry \d, decisions/{one.name}, was changed", each)
        for each in said
    )
    assert any(
        re.fullmatch(rf"the document of entry \d, decisions/{other.name}, is gone", each)
        for each in said
    )
    assert len(said) == 4  # each document is of two entries


def test_a_ledger_that_was_deleted_is_found(project):
    run = decisions.read(project, "vit").run
    tracking.client(project).delete_run(run)
    [said] = found(project)
    assert said.endswith(f"mlflow runs restore --run-id {run}")
    for table in ("params", "tags", "runs"):
        change(project, f"DELETE FROM {table} WHERE run_uuid = ?", run)
    assert found(project) == [f"its ledger is gone: there is no MLflow run {run}"]
    client = tracking.client(project)
    client.delete_registered_model_tag("vit", "retrain.ledger_run")
    assert found(project) == ["its ledger is gone: the tag retrain.ledger_run was removed"]
