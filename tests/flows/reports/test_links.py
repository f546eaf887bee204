"""What Prefect and MLflow show of a run that was made on the command line."""

import pytest

from retrain.project import Project
from retrain.registry import tracking, versions


@pytest.fixture
def ask(prefect_session):
    """A client of the server that the clone's runs use."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        yield client


def test_the_flow_run_has_the_verdict(clone, first, ask):
    assert first["state"] == "Promoted"
    assert first["outcome"] == "vit version 1 is the first champion."
    again = clone.train("--run")  # another process of the tests may have made the first run
    run = ask.read_flow_run(again["run"])
    assert (run.state.type.value, run.state.name) == ("COMPLETED", again["state"])
    assert run.state.message == again["outcome"]
    assert again["state"] == "Unchanged"


def test_a_refused_run_fails_with_one_line(clone, first, ask):
    error = clone.json("validate", "vit", "--set", "checks.min_images_per_class=90000", code=1)
    [run] = ask.read_flow_runs(limit=1, sort="START_TIME_DESC")
    assert (run.state.type.value, run.state.name) == ("FAILED", "Failed")
    assert run.state.message == " ".join(error["error"].partition("More is in")[0].split())


def test_mlflow_describes_the_run_and_the_version(clone, first):
    project, run = Project(clone.root), first["look"]["MLflow run"]
    data = tracking.client(project).get_run(run).data
    facts = first["training"]
    assert data.metrics["best_epoch"] == facts["best_epoch"]
    assert data.metrics["best_val_loss"] == facts["val_loss"]
    described = tracking.client(project).get_model_version("vit", "1").description
    assert described.startswith("**Promoted** on ")
    verdict = described.partition("\n")[0]
    assert data.tags["mlflow.note.content"] == f"vit version 1. {verdict}"
    told = {"version": "vit 1", "data": first["data"]["version"], "verdict": "first"}
    assert {name: data.tags[f"retrain.{name}"] for name in told} == told
    assert f"Version `{first['data']['version']}`" in described


def test_what_mlflow_has_says_what_it_is_for(clone, first):
    client = tracking.client(Project(clone.root))
    assert versions.champion(Project(clone.root), "vit").version == 1
    assert "the workload vit" in client.get_registered_model("vit").description
    experiment = client.get_experiment_by_name("vit")
    assert "`retrain status vit`" in experiment.tags["mlflow.note.content"]
