"""What is read from MLflow's file, against what MLflow itself says of it."""

import shutil
import sqlite3
from contextlib import closing

import pytest

from retrain import ledger, registry, registry_file, tracking
from retrain.project import Project
from tests.retrain.test_registry import event, register


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A registry with three versions: one deleted, one rejected, one champion."""
    root = tmp_path_factory.mktemp("project")
    made = Project(root)
    first, second, third = (register(made, "vit", model, root) for model in "abc")
    registry.record(made, first, event(1))
    registry.record(made, second, event(2, previous=1))
    registry.record(made, first, event(1, "rejected", previous=2))
    client = tracking.client(made)
    client.delete_model_version("vit", str(third.version))
    client.set_registered_model_alias("vit", "canary", "1")
    client.set_model_version_tag("vit", "2", "owner", "o'hara")
    register(made, "other", "d", root)
    return made


def test_it_is_what_mlflow_says(project):
    client = tracking.client(project)
    theirs = client.get_registered_model("vit")
    ours = registry_file.read(project.tracking_uri, "vit")
    assert (ours.name, ours.tags) == (theirs.name, theirs.tags)
    assert ours.aliases == {alias: int(of) for alias, of in theirs.aliases.items()}
    versions = client.search_model_versions("name = 'vit'")
    assert list(ours.versions) == [int(version.version) for version in versions] == [1, 2]
    for version in versions:
        read = ours.versions[int(version.version)]
        for name in ("name", "run_id", "creation_timestamp", "tags"):
            assert getattr(read, name) == getattr(version, name)


def test_the_registry_says_the_same_without_the_file(project, monkeypatch):
    def ask():
        return (
            registry.champion(project, "vit"),
            registry.find_version(project, "vit", "a"),
            registry.find_version(project, "vit", "c"),
            registry.history(project, "vit"),
            registry.champion(project, "nobody"),
        )

    with_file = ask()
    assert with_file[0].version == 2
    assert with_file[1].aliases == ("canary",)
    monkeypatch.setattr(registry_file, "read", lambda *_: None)
    assert ask() == with_file


def test_a_decision_is_recorded_only_when_it_was_carried_out(project):
    first, second = (registry.find_version(project, "vit", model) for model in "ab")
    assert registry.is_recorded(project, first, event(1, "rejected", previous=2))
    assert not registry.is_recorded(project, second, event(2, "rejected", previous=1))
    assert registry.is_recorded(project, second, event(2, previous=1))
    assert not registry.is_recorded(project, first, event(1))


def test_before_the_first_run_there_is_nothing_and_no_file_is_made(tmp_path):
    assert registry.champion(Project(tmp_path), "vit") is None
    assert not (tmp_path / "mlflow.db").exists()


def test_other_tables_are_left_to_mlflow(project, tmp_path):
    shutil.copy(project.root / "mlflow.db", tmp_path)
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        database.execute("ALTER TABLE registered_model_aliases RENAME COLUMN version TO number")
    assert registry_file.read(f"sqlite:///{tmp_path}/mlflow.db", "vit") is None


@pytest.mark.parametrize(
    "uri", ["http://127.0.0.1:5000", "postgresql://db/mlflow", "sqlite:///a.db?timeout=3"]
)
def test_other_stores_are_left_to_mlflow(uri):
    assert registry_file.read(uri, "vit") is None


def test_the_ledger_reads_either(project):
    theirs = tracking.client(project).get_registered_model("vit")
    assert ledger.read(registry_file.read(project.tracking_uri, "vit")) == ledger.read(theirs)
