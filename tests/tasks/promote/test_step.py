import json
import re
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from retrain import tracking
from retrain.project import Project
from retrain.registry import versions
from retrain.step import DataVersion, Workspace
from retrain.store import Artifact
from tasks.promote.step import promote, promoted
from tests.tasks.toy_model import workspace, write_model

DATA = DataVersion("data-1", tracked=True)
PASSED = {"rule": "accuracy >= 0.9", "value": 0.95, "bound": 0.9, "passed": True}
HISTORY = [
    {
        "epoch": 1,
        "train_loss": 1.0,
        "val_loss": 1.1,
        "val_accuracy": 0.9,
        "lr": 0.1,
        "images_per_second": 9.0,
    }
]


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """An MLflow database with its tables, to be copied: making them takes seconds."""
    project = Project(tmp_path_factory.mktemp("database"))
    tracking.client(project).search_registered_models()
    return project.root / "mlflow.db"


@pytest.fixture
def project(tmp_path, database):
    (tmp_path / "mlflow.db").write_bytes(database.read_bytes())
    return Project(tmp_path)


def train(project: Project, seed: int = 0) -> Artifact:
    """A model as `train` leaves it, with its MLflow run."""
    trained = write_model(project.root / f"train-{seed}", seed=seed)
    run = tracking.start_run(project, "toy", trained.key, {"train.lr": 0.1}, "digest")
    tracking.end_run(project, run.run_id, "FINISHED")
    report = trained.folder / "report"
    report.mkdir()
    (report / "history.json").write_text(json.dumps(HISTORY))
    (report / "mlflow.json").write_text(json.dumps({"run_id": run.run_id}))
    return replace(trained, provenance={"commit": "c0ffee"})


def decide(trained: Artifact, verdict: str, champion: int | None) -> tuple[Artifact, Artifact]:
    """The scores of a model and the gate's decision."""
    metrics = {"accuracy": 0.95, "log_loss": 0.2}
    scores = Artifact(
        "evaluate", "k", "d", Path(), {"metrics": metrics, "weights": trained.facts["weights"]}
    )
    decision = {
        "passed": verdict in ("first", "better", "champion already"),
        "verdict": verdict,
        "rules": [PASSED],
        "champion": champion and {"version": champion, "metrics": metrics},
    }
    return scores, Artifact("gate", "k", "d", Path(), decision, {"run": "run-1"})


def run(project: Project, trained: Artifact, verdict: str, champion: int | None = None):
    scores, decision = decide(trained, verdict, champion)
    with TemporaryDirectory() as folder:
        place = workspace(Path(folder) / "promote", project.root)
        facts = promote(DATA, trained, scores, decision, place)
        assert list(place.folder.iterdir()) == []
    return facts


def state(project: Project):
    """All that the registry says, with its times."""
    client = tracking.client(project)
    return (
        [(dict(each), each.aliases) for each in client.search_model_versions("name = 'toy'")],
        dict(client.get_registered_model("toy").tags),
        client.get_registered_model("toy").aliases,
        [dict(each) for each in client.search_logged_models(["1"])],
    )


def test_the_first_model_that_passes_becomes_champion(project):
    trained = train(project)
    facts = run(project, trained, "first")
    assert facts == {
        "name": "toy",
        "version": 1,
        "aliases": ["champion"],
        "digest": trained.facts["weights"],
    }
    champion = versions.champion(project, "toy")
    assert champion.train_digest == trained.digest
    assert champion.metrics == {"accuracy": 0.95, "log_loss": 0.2}
    assert (champion.data, champion.commit) == ("data-1", "c0ffee")
    [event] = versions.history(project, "toy")
    assert (event.action, event.version, event.previous) == ("promoted", 1, None)
    assert (event.run, event.data, event.rules) == ("run-1", "data-1", (PASSED,))


def test_a_model_that_failed_is_registered_as_rejected_and_the_champion_stays(project):
    run(project, train(project), "first")
    facts = run(project, train(project, seed=1), "not better", champion=1)
    assert (facts["version"], facts["aliases"]) == (2, [])
    assert versions.champion(project, "toy").version == 1
    assert [event.action for event in versions.history(project, "toy")] == ["promoted", "rejected"]


@pytest.mark.parametrize("verdict", ["below bounds", "not better"])
def test_the_same_decision_on_the_same_model_changes_nothing(project, verdict):
    champion, challenger = train(project), train(project, seed=1)
    run(project, champion, "first")
    first = run(project, challenger, verdict, champion=1)
    before = state(project)
    assert run(project, challenger, verdict, champion=1) == first
    assert state(project) == before


def test_the_champion_itself_is_left_alone(project):
    trained = train(project)
    first = run(project, trained, "first")
    before = state(project)
    assert run(project, trained, "champion already", champion=1) == first
    assert state(project) == before


def test_looking_tells_what_there_is_left_to_do_and_does_nothing(project):
    def look(trained, verdict, champion):
        scores, decision = decide(trained, verdict, champion)
        place = Workspace(Path(), Path(), "key", "toy", project)
        return promoted(DATA, trained, scores, decision, place)

    champion, challenger = train(project), train(project, seed=1)
    assert look(champion, "first", None) is None
    first = run(project, champion, "first")
    assert look(champion, "champion already", 1) == first
    assert look(champion, "first", None) is None  # there is a champion by now
    assert look(challenger, "not better", 1) is None
    second = run(project, challenger, "not better", champion=1)
    before = state(project)
    assert look(challenger, "not better", 1) == second
    assert look(challenger, "below bounds", 1) is None
    assert look(challenger, "better", 1) is None
    assert state(project) == before


def test_a_rejected_model_that_passes_later_keeps_its_version(project):
    trained = train(project)
    run(project, trained, "below bounds")
    facts = run(project, trained, "first")
    assert (facts["version"], facts["aliases"]) == (1, ["champion"])
    said = [(event.action, event.verdict) for event in versions.history(project, "toy")]
    assert said == [("rejected", "below bounds"), ("promoted", "first")]


@pytest.mark.parametrize(
    "call",
    [
        "create_logged_model",
        "log_outputs",
        "log_model_artifacts",
        "finalize_logged_model",
        "create_registered_model",
        "create_model_version",
        "set_logged_model_tags",
        "set_registered_model_tag",
        "set_model_version_tag",
        "update_model_version",
        "set_registered_model_alias",
    ],
)
@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_a_promotion_that_was_killed_is_completed_by_the_next_run(project, monkeypatch, call, done):
    from mlflow import MlflowClient

    trained = train(project)
    original = getattr(MlflowClient, call)

    def killed(self, *args, **kwargs):
        if done:
            original(self, *args, **kwargs)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(MlflowClient, call, killed)
        with pytest.raises(KeyboardInterrupt):
            run(project, trained, "first")
    appointed = versions.champion(project, "toy") is not None
    assert appointed == (done and call == "set_registered_model_alias")
    if appointed:
        run(project, trained, "champion already", champion=1)
    else:
        run(project, trained, "first")
    registered, _, aliases, logged = state(project)
    assert len(registered) == len(versions.history(project, "toy")) == 1
    assert [model["status"] for model in logged] == ["READY"]
    assert {name: int(version) for name, version in aliases.items()} == {"champion": 1}
    assert versions.champion(project, "toy").verdict == "first"
    assert versions.download(project, versions.champion(project, "toy"))


def test_a_decision_against_a_champion_of_the_past_is_not_carried_out(project):
    run(project, train(project), "first")
    with pytest.raises(ValueError, match="champion version None, but champion is version 1"):
        run(project, train(project, seed=1), "first")
    assert len(versions.history(project, "toy")) == 1


def test_weights_that_changed_since_the_training_are_not_registered(project):
    trained = train(project)
    weights = trained.folder / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match=re.escape("model.safetensors has changed")):
        run(project, trained, "first")
    assert versions.champion(project, "toy") is None


def test_nothing_of_the_model_is_pickled(project):
    run(project, train(project), "first")
    package = versions.download(project, versions.champion(project, "toy")).parent
    kinds = {path.suffix for path in package.rglob("*") if path.is_file()}
    assert kinds <= {".safetensors", ".json", ".py", ".txt", ".yaml", ""}
    lines = (package / "requirements.txt").read_text().split()
    assert "torch==2.13.0" in lines
    assert not [line for line in lines if "+" in line]


def test_a_run_that_was_deleted_is_made_again_from_the_artifact(project):
    trained = train(project)
    client = tracking.client(project)
    deleted = json.loads((trained.folder / "report" / "mlflow.json").read_text())["run_id"]
    client.delete_run(deleted)
    plan = {"config": {"train.lr": 0.1}, "inputs": {"preprocess": "digest"}}
    (trained.folder / "manifest.json").write_text(json.dumps({"plan": plan}))
    run(project, trained, "first")
    run_id = versions.champion(project, "toy").run_id
    assert run_id != deleted
    made = client.get_run(run_id)
    assert made.info.status == "FINISHED"
    assert made.data.params == {"train.lr": "0.1"}
    assert made.data.metrics["test_accuracy"] == 0.95
    assert made.data.metrics["val_accuracy"] == 0.9
