import hashlib
import json
from dataclasses import fields, replace
from pathlib import Path

import pytest

from retrain import tracking
from retrain.project import Project
from retrain.registry import decisions, versions
from retrain.registry.ledger import Decision
from retrain.registry.versions import Candidate
from tests import templates

WEIGHTS = b"weights of "
RULES = ({"rule": "accuracy >= 0.9", "value": 0.95, "bound": 0.9, "passed": True},)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project with one MLflow database for all tests, which use names of their own."""
    root = tmp_path_factory.mktemp("project")
    templates.place_mlflow_database(root)
    return Project(root)


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


def decision(version: int, action: str = "promoted", previous: int | None = None, **more):
    verdict = "not better" if action == "rejected" else "better"
    given = {"document": {"rules": RULES}, "data": "data-1", "commit": "c0ffee", "run": "run-1"}
    return Decision(action, version, previous, verdict, **given | more)


def history(project: Project, name: str):
    return decisions.read(project, name).entries


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


def test_the_description_of_a_rejected_version_has_the_reason(project, name, tmp_path):
    made = register(project, name, "a", tmp_path)
    failed = {"rule": "accuracy >= 0.99", "value": 0.95, "bound": 0.99, "passed": False}
    rejected = decisions.apply(project, made, decision(1, "rejected", document={"rules": [failed]}))
    assert versions.champion(project, name) is None
    assert rejected.verdict == "not better"
    description = tracking.client(project).get_model_version(name, "1").description
    assert "**Rejected**" in description
    assert "accuracy >= 0.99: is 0.9500, **failed**" in description


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
    decisions.apply(project, made, decision(1))
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
    decisions.apply(project, register(project, name, "a", tmp_path), decision(1))
    shown = json.loads(json.dumps(versions.champion(project, name).public()))
    assert shown["version"] == 1
    assert shown["aliases"] == ["champion"]
    assert shown["metrics"] == {"accuracy": 0.95}
