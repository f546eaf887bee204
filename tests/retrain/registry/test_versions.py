"""Versions, as MLflow has them."""

import shutil
import sqlite3
import subprocess
from contextlib import closing

import pytest

from retrain.errors import UsageError
from retrain.project import Project
from retrain.registry import decisions, packages, tracking, versions
from tests import templates
from tests.retrain.registry.helpers import decision, register


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A registry with three versions: one deleted, one rejected, one champion."""
    root = tmp_path_factory.mktemp("made")
    templates.place_mlflow_database(root)
    made = Project(root)
    first, second, _ = (register(made, "vit", model, root) for model in "abc")
    decisions.apply(made, first, decision(1))
    decisions.apply(made, second, decision(2, previous=1))
    decisions.apply(made, first, decision(1, "rejected", previous=2))
    client = tracking.client(made)
    client.delete_model_version("vit", "3")
    client.set_registered_model_alias("vit", "canary", "1")
    versions.mark_broken(made, second, "it answers nonsense")
    client.set_model_version_tag("vit", "2", "owner", "o'hara")
    register(made, "other", "d", root)
    return made


def test_a_version_is_found_by_what_names_it(made):
    champion = versions.champion(made, "vit")
    assert (champion.version, champion.aliases, champion.verdict) == (2, ("champion",), "better")
    assert champion.broken == "it answers nonsense"
    assert champion.created.endswith("+00:00")
    assert "." not in champion.created  # of a second
    first = versions.find_version(made, "vit", "package-a")
    assert (first.version, first.aliases, first.verdict) == (1, ("canary",), "not better")
    assert versions.find_version(made, "vit", "package-c") is None
    assert versions.find_by_weights(made, "vit", champion.weights) == champion
    assert versions.get(made, "vit", 1) == versions.find(made, "vit", "canary") == first
    assert versions.find(made, "vit", "2") == champion
    assert versions.get(made, "vit", 3) is versions.champion(made, "nobody") is None


@pytest.mark.parametrize(
    ("name", "reference", "said"),
    [
        ("vit", "3", "vit has no version '3'. There are: 1, 2, canary, champion"),
        ("nobody", "champion", "nobody has no registered model yet: retrain train nobody"),
        ("other", "champion", "other has no champion. There are: 1. See: retrain status"),
    ],
)
def test_a_version_that_is_not_there_is_refused(made, name, reference, said):
    with pytest.raises(UsageError, match=said):
        versions.find(made, name, reference)


def test_before_the_first_run_there_is_nothing_and_no_file_is_made(tmp_path):
    project = Project(tmp_path)
    assert versions.champion(project, "vit") is versions.reference(project, "vit") is None
    assert versions.every_of(project, "vit") == tracking.model_names(project) == []
    assert not (tmp_path / "mlflow.db").exists()
    (tmp_path / "mlruns").mkdir()  # as if the database was lost
    for ask in (tracking.client, tracking.model_names, lambda it: versions.champion(it, "vit")):
        with pytest.raises(ValueError, match=r"mlflow\.db is gone, and mlruns/ has .*: bring"):
            ask(project)


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_the_database_is_read_as_mlflow_reads_it(made, tmp_path, mode):
    templates.copy_project(made.root, tmp_path)
    copy = Project(tmp_path)
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        database.execute(f"PRAGMA journal_mode = {mode}")
    asked = tracking._ask(copy, "vit")
    assert tracking.read_model(copy, "vit") == asked
    assert (sorted(asked.versions), len(asked.entries)) == ([1, 2], 3)
    assert tracking.read_model(copy, "nobody") == tracking._ask(copy, "nobody")


def test_a_clone_that_was_moved_finds_its_models_and_none_of_another(made, tmp_path, capsys):
    elsewhere = (tmp_path / "mlruns of another" / "mlruns" / "own").as_uri()
    place = Project(tmp_path / "it's new")
    shutil.copytree(made.root, place.root)
    with closing(sqlite3.connect(place.root / "mlflow.db")) as database, database:
        statement = "UPDATE experiments SET name = 'own', artifact_location = ? WHERE name = ?"
        database.execute(statement, [elsewhere, "other"])
    client = tracking.client(place)  # or whatever looks first
    assert "mlflow.db.before-move is as it was" in capsys.readouterr().err
    champion = versions.champion(place, "vit")
    assert packages.download(place, champion).is_relative_to(place.root)
    assert made.root.as_uri().encode() in (place.root / "mlflow.db.before-move").read_bytes()
    assert client.get_experiment_by_name("own").artifact_location == elsewhere
    for each in (client.get_experiment_by_name("vit").artifact_location,
                 client.get_run(champion.run_id).info.artifact_uri):  # fmt: skip
        assert tracking.local_path(each).is_relative_to(place.root)
    assert capsys.readouterr().err == ""


def test_a_version_is_never_registered_without_its_commit_in_silence(tmp_path, monkeypatch, capsys):
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    templates.place_mlflow_database(tmp_path)
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    register(Project(tmp_path), "vit", "a", tmp_path)
    assert "No commit is recorded, because git does not tell it" in capsys.readouterr().err


def test_a_registered_model_that_a_person_has_made_gets_a_ledger(project, name, tmp_path):
    tracking.client(project).create_registered_model(name)
    decisions.apply(project, register(project, name, "a", tmp_path), decision(1))
    assert versions.champion(project, name).version == 1


def test_a_version_that_somebody_else_registered_is_none(project, name):
    client = tracking.client(project)
    client.create_registered_model(name)
    client.create_model_version(name, "file:///elsewhere")
    with pytest.raises(ValueError, match=f"Version 1 of the registered model {name} was not"):
        versions.find(project, name, "1")
    assert versions.every_of(project, name) == []


def test_a_reference_names_a_version():
    for text, expected in (("vit", "champion"), ("vit@7", "7"), ("vit@best", "best")):
        assert versions.parse_reference(text) == ("vit", expected)
    for text in ("", "@7", "vit@"):
        with pytest.raises(UsageError, match="Write NAME, NAME@ALIAS or NAME@NUMBER"):
            versions.parse_reference(text)
