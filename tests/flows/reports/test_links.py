"""What MLflow shows of a run that was made on the command line."""

from retrain.project import Project
from retrain.registry import tracking


def test_what_mlflow_has_says_what_it_is_for(clone, first):
    client = tracking.client(Project(clone.root))
    tags = client.get_run(first["look"]["MLflow run"]).data.tags
    told = {"version": "vit 1", "data": first["data"]["version"], "verdict": "first"}
    assert {name: tags[f"retrain.{name}"] for name in told} == told
    assert "the workload vit" in client.get_registered_model("vit").description
    experiment = client.get_experiment_by_name("vit")
    assert "`retrain status vit`" in experiment.tags["mlflow.note.content"]
