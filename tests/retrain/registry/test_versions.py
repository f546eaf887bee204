"""Versions, as MLflow has them, and as its answer is kept until its file changes."""

import hashlib
import json
import os
import sqlite3
from contextlib import closing

import pytest

from retrain import tracking
from retrain.errors import UsageError
from retrain.project import Project
from retrain.registry import decisions, snapshot, versions
from tests import templates
from tests.retrain.registry.helpers import WEIGHTS, decision, register


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
    client.set_model_version_tag("vit", "2", "owner", "o'hara")
    register(made, "other", "d", root)
    return made


def test_a_version_is_found_by_what_names_it(made):
    champion = versions.champion(made, "vit")
    assert (champion.version, champion.aliases, champion.verdict) == (2, ("champion",), "better")
    first = versions.find_version(made, "vit", "package-a")
    assert (first.version, first.aliases, first.verdict) == (1, ("canary",), "not better")
    assert versions.find_version(made, "vit", "package-c") is None
    assert versions.find_by_weights(made, "vit", champion.weights) == champion
    assert versions.get(made, "vit", 1) == versions.find(made, "vit", "canary") == first
    assert versions.find(made, "vit", "2") == champion
    assert versions.get(made, "vit", 3) is versions.champion(made, "nobody") is None
    with pytest.raises(UsageError, match=r"vit has no version '3'. There are: 1, 2, canary, cham"):
        versions.find(made, "vit", "3")
    with pytest.raises(UsageError, match="nobody has no registered model yet: retrain train nob"):
        versions.find(made, "nobody", "champion")
    with pytest.raises(UsageError, match=r"other has no champion. There are: 1. See: retrain stat"):
        versions.find(made, "other", "champion")


def test_before_the_first_run_there_is_nothing_and_no_file_is_made(tmp_path):
    assert versions.champion(Project(tmp_path), "vit") is None
    assert versions.every(Project(tmp_path)) == []
    assert not (tmp_path / "mlflow.db").exists()


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_each_change_of_the_database_is_seen(made, tmp_path, mode):
    templates.copy_project(made.root, tmp_path)
    copy = Project(tmp_path)
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        database.execute(f"PRAGMA journal_mode = {mode}")
        for number in ("1", "2", "1"):
            known = (tmp_path / "mlflow.db").stat()
            with database:
                statement = "UPDATE registered_model_aliases SET version = ? WHERE alias = ?"
                database.execute(statement, [number, "champion"])
            # The time and the size of the file may be the same after a change.
            os.utime(tmp_path / "mlflow.db", ns=(known.st_atime_ns, known.st_mtime_ns))
            assert versions.champion(copy, "vit").version == int(number)


def test_an_answer_that_is_kept_is_not_asked_for_again(made, monkeypatch):
    first = snapshot.read(made, "vit")
    assert first == snapshot.ask(made, "vit")
    assert (list(first.versions), len(first.ledger)) == ([1, 2], 3)
    monkeypatch.delattr(snapshot, "ask")
    assert snapshot.read(made, "vit") == first
    [kept] = made.state.glob("registry/vit.json")
    kept.write_text("{")
    with pytest.raises(NameError):
        snapshot.read(made, "vit")


def test_a_version_carries_what_is_known_of_the_model(project, name, tmp_path):
    made = register(project, name, "a", tmp_path)
    assert (made.version, made.aliases, made.verdict, made.latency) == (1, (), None, None)
    assert made.weights == hashlib.sha256(WEIGHTS + b"a").hexdigest()
    assert made.images == {"size": 8, "channels": 1, "resize": "crop"}
    assert made.metrics == {"accuracy": 0.95}
    assert (made.data, made.commit, made.train_key) == ("data-1", "c0ffee", None)
    assert json.loads(json.dumps(made.public()))["metrics"] == {"accuracy": 0.95}
    fast = versions.Latency(p50=1.0, p95=12.34, calls=20, threads=2, device="cpu")
    assert versions.note_latency(project, made, fast).latency == fast
    assert versions.get(project, name, 1).latency == fast
    assert str(fast) == "p95 of a single image: 12.3 ms (p50 1.00 ms; 20 calls, 2 threads, cpu)"
    versions.mark_broken(project, made, "it answers nonsense")
    assert versions.get(project, name, 1).broken == "it answers nonsense"


def test_a_champion_that_somebody_else_registered_is_named_in_the_error(project, name):
    client = tracking.client(project)
    client.create_registered_model(name)
    client.create_model_version(name, "file:///elsewhere")
    client.set_registered_model_alias(name, "champion", "1")
    with pytest.raises(ValueError, match=f"Version 1 of the registered model {name}"):
        versions.champion(project, name)
    assert name not in {version.name for version in versions.every(project)}


def test_a_reference_names_a_version():
    for text, expected in (("vit", "champion"), ("vit@7", "7"), ("vit@best", "best")):
        assert versions.parse_reference(text) == ("vit", expected)
    for text in ("", "@7", "vit@"):
        with pytest.raises(UsageError, match="Write NAME, NAME@ALIAS or NAME@NUMBER"):
            versions.parse_reference(text)
