import hashlib
import json
from dataclasses import fields, replace
from pathlib import Path

import pytest

from retrain import tracking
from retrain.project import Project
from retrain.registry import ledger, versions
from retrain.registry.ledger import Event
from retrain.registry.versions import Candidate

WEIGHTS = b"weights of "
RULES = ({"rule": "accuracy >= 0.9", "value": 0.95, "bound": 0.9, "passed": True},)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project with one MLflow database for all tests, which use names of their own."""
    return Project(tmp_path_factory.mktemp("project"))


@pytest.fixture
def name(request):
    return request.node.name[:60]


def register(project: Project, name: str, model: str, root: Path):
    """Registers a model whose training gave `model`."""
    from mlflow.models import Model

    package = root / f"package-{model}"
    (package / versions.MODEL).mkdir(parents=True)
    weights = WEIGHTS + model.encode()
    (package / versions.MODEL / versions.WEIGHTS).write_bytes(weights)
    Model().save(package / "MLmodel")
    candidate = Candidate(
        name=name,
        weights=hashlib.sha256(weights).hexdigest(),
        package_digest=f"package-{model}",
        train_digest=model,
        train_key=None,
        start=None,
        family="vit",
        images={"size": 8, "channels": 1, "resize": "crop"},
        classes="ant and bee",
        metrics={"accuracy": 0.95},
        data="data-1",
        commit="c0ffee",
        run_id=tracking.start_run(project, name, model, {}, "digest").run_id,
    )
    return versions.register(project, candidate, package)


def candidate_of(version) -> Candidate:
    return Candidate(**{field.name: getattr(version, field.name) for field in fields(Candidate)})


def event(version: int, action: str = "promoted", previous: int | None = None, **more) -> Event:
    verdict = {"promoted": "better", "rejected": "not better"}[action]
    given = {"rules": RULES, "data": "data-1", "commit": "c0ffee", "run": "run-1"} | more
    return Event(action, version, previous, verdict, time=ledger.now(), **given)


def test_before_the_first_model_there_is_nothing(project, name):
    assert versions.champion(project, name) is None
    assert versions.find_version(project, name, "package-a") is None
    assert versions.history(project, name) == []


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
    versions.apply_decision(project, first, event(1))
    assert versions.champion(project, name).version == 1
    promoted = versions.apply_decision(project, second, event(2, previous=1))
    assert promoted == versions.champion(project, name)
    assert promoted.aliases == ("champion",)
    assert promoted.verdict == "better"
    assert versions.find_version(project, name, "package-a").aliases == ()


def test_the_description_of_a_rejected_version_has_the_reason(project, name, tmp_path):
    made = register(project, name, "a", tmp_path)
    failed = {"rule": "accuracy >= 0.99", "value": 0.95, "bound": 0.99, "passed": False}
    rejected = versions.apply_decision(project, made, event(1, "rejected", rules=(failed,)))
    assert versions.champion(project, name) is None
    assert rejected.verdict == "not better"
    description = tracking.client(project).get_model_version(name, "1").description
    assert "**Rejected**" in description
    assert "accuracy >= 0.99: is 0.9500, **failed**" in description


def test_the_ledger_keeps_every_decision_in_order(project, name, tmp_path):
    first, second = (register(project, name, model, tmp_path) for model in "ab")
    decisions = [event(1), event(2, "rejected", previous=1), event(2, previous=1)]
    for version, decision in zip((first, second, second), decisions, strict=True):
        versions.apply_decision(project, version, decision)
    assert versions.history(project, name) == decisions


def test_the_same_decision_is_written_once(project, name, tmp_path):
    first, second = (register(project, name, model, tmp_path) for model in "ab")
    for run in ("monday", "tuesday"):
        versions.apply_decision(project, first, event(1, run=run))
        versions.apply_decision(project, second, event(2, "rejected", previous=1, run=run))
    assert [decision.run for decision in versions.history(project, name)] == ["monday", "monday"]


def test_a_model_that_is_promoted_again_after_another_is_written_again(project, name, tmp_path):
    first, second = (register(project, name, model, tmp_path) for model in "ab")
    versions.apply_decision(project, first, event(1))
    versions.apply_decision(project, second, event(2, previous=1))
    versions.apply_decision(project, first, event(1, previous=2))
    versions.apply_decision(project, second, event(2, previous=1))
    assert [decision.version for decision in versions.history(project, name)] == [1, 2, 1, 2]
    assert versions.champion(project, name).version == 2


def test_a_decision_too_long_for_the_registry_changes_nothing(project, name, tmp_path):
    made = register(project, name, "a", tmp_path)
    with pytest.raises(ValueError, match="has 100 rules"):
        versions.apply_decision(project, made, event(1, rules=RULES * 100))
    assert versions.history(project, name) == []
    assert versions.champion(project, name) is None


def test_two_machines_that_decide_at_once_do_not_overwrite_each_other(project, name, tmp_path):
    made = register(project, name, "a", tmp_path)
    client = tracking.client(project)
    for run in ("here", "there"):
        ledger.append(client, name, 1, event(made.version, run=run))
    assert {decision.run for decision in versions.history(project, name)} == {"here", "there"}


def test_a_champion_that_somebody_else_registered_is_named_in_the_error(project, name):
    client = tracking.client(project)
    client.create_registered_model(name)
    client.create_model_version(name, "file:///elsewhere")
    client.set_registered_model_alias(name, "champion", "1")
    with pytest.raises(ValueError, match=f"Version 1 of the registered model {name}"):
        versions.champion(project, name)


def test_a_version_can_be_brought_back_from_the_registry_alone(project, name, tmp_path):
    made = register(project, name, "a", tmp_path)
    package = versions.download(project, made)
    assert (package / "MLmodel").is_file()
    assert (package / versions.MODEL / versions.WEIGHTS).read_bytes() == WEIGHTS + b"a"


def test_weights_that_were_changed_in_the_registry_are_not_taken(project, name, tmp_path):
    made = register(project, name, "a", tmp_path)
    (versions.download(project, made) / versions.MODEL / versions.WEIGHTS).write_bytes(b"other")
    with pytest.raises(ValueError, match="does not hold the weights"):
        versions.download(project, made)


def test_weights_that_are_gone_from_the_registry_are_missed(project, name, tmp_path):
    made = register(project, name, "a", tmp_path)
    (versions.download(project, made) / versions.MODEL / versions.WEIGHTS).unlink()
    with pytest.raises(ValueError, match="version 1 are gone"):
        versions.download(project, made)


def test_a_version_of_before_packages_were_known_is_still_read(project, name, tmp_path):
    made = register(project, name, "a", tmp_path)
    client = tracking.client(project)
    client.delete_model_version_tag(name, "1", "retrain.package_digest")
    versions.apply_decision(project, made, event(1))
    champion = versions.champion(project, name)
    assert (champion.package_digest, champion.train_digest) == (None, "a")
    assert versions.find_version(project, name, "package-a") is None
    assert (versions.download(project, champion) / "MLmodel").is_file()


def test_two_packages_of_one_training_are_two_versions(project, name, tmp_path):
    first = register(project, name, "a", tmp_path / "1")
    other = replace(candidate_of(first), package_digest="repaired")
    second = versions.register(project, other, tmp_path / "1" / "package-a")
    assert (second.version, second.train_digest) == (2, "a")
    assert versions.find_version(project, name, "package-a").version == 1
    assert versions.find_version(project, name, "repaired").version == 2
    folders = {versions.download(project, version) for version in (first, second)}
    assert len(folders) == 2


def test_what_is_known_of_a_version_can_be_printed_as_json(project, name, tmp_path):
    versions.apply_decision(project, register(project, name, "a", tmp_path), event(1))
    shown = json.loads(json.dumps(versions.champion(project, name).public()))
    assert shown["version"] == 1
    assert shown["aliases"] == ["champion"]
    assert shown["metrics"] == {"accuracy": 0.95}
