"""The registry read from MLflow's file, compared with the answers of MLflow itself."""

import shutil
import sqlite3
from contextlib import closing

import pytest

from retrain import tracking
from retrain.project import Project
from retrain.registry import decisions, sqlite_reader, versions
from tests import templates
from tests.retrain.registry.helpers import decision, register


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A registry with three versions: one deleted, one rejected, one champion."""
    root = tmp_path_factory.mktemp("project")
    templates.place_mlflow_database(root)
    made = Project(root)
    first, second, third = (register(made, "vit", model, root) for model in "abc")
    decisions.apply(made, first, decision(1))
    decisions.apply(made, second, decision(2, previous=1))
    decisions.apply(made, first, decision(1, "rejected", previous=2))
    client = tracking.client(made)
    client.delete_model_version("vit", str(third.version))
    client.set_registered_model_alias("vit", "canary", "1")
    client.set_model_version_tag("vit", "2", "owner", "o'hara")
    register(made, "other", "d", root)
    return made


def test_it_agrees_with_mlflow(project):
    client = tracking.client(project)
    theirs = client.get_registered_model("vit")
    ours = sqlite_reader.read(project.tracking_uri, "vit")
    assert (ours.name, ours.tags) == (theirs.name, theirs.tags)
    assert ours.aliases == {alias: int(of) for alias, of in theirs.aliases.items()}
    versions = client.search_model_versions("name = 'vit'")
    assert list(ours.versions) == [int(version.version) for version in versions] == [1, 2]
    for version in versions:
        read = ours.versions[int(version.version)]
        for name in ("name", "run_id", "creation_timestamp", "tags"):
            assert getattr(read, name) == getattr(version, name)


def test_the_registry_is_the_same_without_the_file(project, monkeypatch):
    def ask():
        return (
            versions.champion(project, "vit"),
            versions.find_version(project, "vit", "package-a"),
            versions.find_version(project, "vit", "package-c"),
            decisions.read(project, "vit"),
            versions.champion(project, "nobody"),
        )

    with_file = ask()
    assert with_file[0].version == 2
    assert with_file[1].aliases == ("canary",)
    monkeypatch.setattr(sqlite_reader, "read", lambda *_: None)
    assert ask() == with_file


def test_a_decision_is_recorded_only_when_it_was_carried_out(project):
    first, second = (versions.find_version(project, "vit", f"package-{model}") for model in "ab")
    assert decisions.is_applied(project, first, decision(1, "rejected", previous=2))
    assert not decisions.is_applied(project, second, decision(2, "rejected", previous=1))
    assert decisions.is_applied(project, second, decision(2, previous=1))
    assert not decisions.is_applied(project, first, decision(1))


def test_before_the_first_run_there_is_nothing_and_no_file_is_made(tmp_path):
    assert versions.champion(Project(tmp_path), "vit") is None
    assert not (tmp_path / "mlflow.db").exists()


def test_other_tables_are_left_to_mlflow(project, tmp_path):
    shutil.copy(project.root / "mlflow.db", tmp_path)
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        database.execute("ALTER TABLE registered_model_aliases RENAME COLUMN version TO number")
    assert sqlite_reader.read(f"sqlite:///{tmp_path}/mlflow.db", "vit") is None


@pytest.mark.parametrize(
    "uri", ["http://127.0.0.1:5000", "postgresql://db/mlflow", "sqlite:///a.db?timeout=3"]
)
def test_other_stores_are_left_to_mlflow(uri):
    assert sqlite_reader.read(uri, "vit") is None


def test_the_ledgers_run_agrees_with_mlflow(project):
    ours = sqlite_reader.read(project.tracking_uri, "vit")
    theirs = tracking.client(project).get_run(ours.tags["retrain.ledger_run"])
    assert len(ours.ledger) == 3
    assert (ours.ledger, ours.ledger_location) == (theirs.data.params, theirs.info.artifact_uri)
