"""A team's servers: a worker and a person who use them."""

import sys

import boto3
import httpx
import pytest

from tests.flows.conftest import make_clone
from tests.team_servers import postgres_is_missing, started, team_servers

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(postgres_is_missing(), reason="no PostgreSQL here: apt install postgresql"),
]


@pytest.fixture
def environment(tmp_path):
    """The variables of somebody who uses the servers."""
    with team_servers(tmp_path / "servers") as variables:
        yield variables


def test_a_worker_and_a_person_who_train_at_once_make_one_champion(
    environment, tmp_path, monkeypatch
):
    """Neither has keys of the object store: MLflow's server keeps the artifacts there for them."""
    api, login = environment["PREFECT_API_URL"], environment["PREFECT_API_AUTH_STRING"].split(":")
    server = httpx.Client(base_url=f"{api}/", auth=(login[0], login[1]))
    own = {k: v for k, v in environment.items() if not k.startswith("AWS_")}
    team, person = (make_clone(tmp_path / name, api) for name in ("team", "person"))
    with started(
        tmp_path / "worker.log",
        ["deploy/worker.sh"],
        lambda: server.get("deployments/name/train/vit").status_code == 200,
        env=team.environment | own,
        cwd=team.root,
    ):
        run = person.start("train", "vit", output=tmp_path / "person.txt", **own)
        command = ("prefect", "deployment", "run", "train/vit", "--watch")
        team.run(sys.executable, "-m", *command, **own)
        assert run.wait() == 0, (tmp_path / "person.txt").read_text(encoding="utf-8")
    assert team.json("verify", **own)["ledgers"] == []
    [entry] = person.json("history", "vit", **own)
    assert entry["action"] == "promoted"
    assert server.get("work_pools/local").json()["concurrency_limit"] == 1
    states = [run["state"]["type"] for run in server.post("flow_runs/filter", json={}).json()]
    assert [state for state in states if state != "SCHEDULED"] == ["COMPLETED"] * 2
    for name in environment.keys() - own.keys():
        monkeypatch.setenv(name, environment[name])
    s3 = boto3.client("s3", endpoint_url=environment["AWS_ENDPOINT_URL"])
    kept = s3.list_objects_v2(Bucket="retrain", Prefix="mlflow/")["Contents"]
    assert any(object["Key"].endswith(".safetensors") for object in kept)
