import hashlib
import json
from dataclasses import replace

import pytest

from retrain import tracking
from retrain.registry import decisions, packages, versions
from tests.retrain.registry.helpers import WEIGHTS, candidate_of, decision, history, register


def test_before_the_first_model_there_is_nothing(project, name):
    assert versions.champion(project, name) is None
    assert versions.find_version(project, name, "package-a") is None
    assert history(project, name) == ()


def test_a_version_carries_what_is_known_of_the_model(project, name, tmp_path):
    made = register(project, name, "a", tmp_path)
    assert made.version == 1
    assert made.weights == hashlib.sha256(WEIGHTS + b"a").hexdigest()
    assert made.images == {"size": 8, "channels": 1, "resize": "crop"}
    assert made.metrics == {"accuracy": 0.95}
    assert (made.data, made.commit) == ("data-1", "c0ffee")
    assert made.verdict is None
    assert made.aliases == ()
    assert versions.find_version(project, name, "package-a") == made
    assert versions.find_version(project, name, "package-b") is None
    assert versions.champion(project, name) is None


def test_the_champion_is_the_version_that_was_promoted_last(project, name, tmp_path):
    first, second = (register(project, name, model, tmp_path) for model in "ab")
    decisions.apply(project, first, decision(1))
    assert versions.champion(project, name).version == 1
    promoted = decisions.apply(project, second, decision(2, previous=1))
    assert promoted == versions.champion(project, name)
    assert promoted.aliases == ("champion",)
    assert promoted.verdict == "better"
    assert versions.find_version(project, name, "package-a").aliases == ()


def test_a_champion_that_somebody_else_registered_is_named_in_the_error(project, name):
    client = tracking.client(project)
    client.create_registered_model(name)
    client.create_model_version(name, "file:///elsewhere")
    client.set_registered_model_alias(name, "champion", "1")
    with pytest.raises(ValueError, match=f"Version 1 of the registered model {name}"):
        versions.champion(project, name)


def test_a_version_of_before_packages_were_known_is_still_read(project, name, tmp_path):
    made = register(project, name, "a", tmp_path)
    client = tracking.client(project)
    client.delete_model_version_tag(name, "1", "retrain.package_digest")
    decisions.apply(project, made, decision(1))
    champion = versions.champion(project, name)
    assert (champion.package_digest, champion.train_digest) == (None, "a")
    assert versions.find_version(project, name, "package-a") is None
    assert (packages.download(project, champion) / "MLmodel").is_file()


def test_two_packages_of_one_training_are_two_versions(project, name, tmp_path):
    first = register(project, name, "a", tmp_path / "1")
    other = replace(candidate_of(first), package_digest="repaired")
    second = versions.register(project, other, tmp_path / "1" / "package-a")
    assert (second.version, second.train_digest) == (2, "a")
    assert versions.find_version(project, name, "package-a").version == 1
    assert versions.find_version(project, name, "repaired").version == 2
    folders = {packages.download(project, version) for version in (first, second)}
    assert len(folders) == 2


def test_what_is_known_of_a_version_can_be_printed_as_json(project, name, tmp_path):
    decisions.apply(project, register(project, name, "a", tmp_path), decision(1))
    shown = json.loads(json.dumps(versions.champion(project, name).public()))
    assert shown["version"] == 1
    assert shown["aliases"] == ["champion"]
    assert shown["metrics"] == {"accuracy": 0.95}
