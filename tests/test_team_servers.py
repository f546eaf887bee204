"""A team's servers: a run through them, and a registry that clones on several machines share."""

import subprocess
import sys
from pathlib import Path

import boto3
import httpx
import pytest

from retrain.project import Project
from retrain.registry import decisions, tracking, versions
from tests.flows.conftest import make_clone
from tests.team_servers import postgres_is_missing, started, team_servers

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(postgres_is_missing(), reason="no PostgreSQL here: apt install postgresql"),
]

MACHINES, ROUNDS = 3, 3
ROOT = Path(__file__).parents[1]

# Each round, a machine registers a model, waits for the others, and decides when they do; who was
# not first rejects its own model. One is killed when it has entered its decision.
MACHINE = """
import os, signal, sys
from pathlib import Path

from retrain.errors import ChampionChangedError
from retrain.project import Project
from retrain.registry import decisions, versions
from tests.retrain.registry.helpers import decision, register

root, model, is_killed = Path(sys.argv[1]), sys.argv[2], sys.argv[3:] == ["killed"]
project = Project(root)

def number():
    champion = versions.champion(project, "toy")
    return champion and champion.version

def killed(*arguments, write=decisions.write):
    if write(*arguments):
        os.kill(os.getpid(), signal.SIGKILL)
    return False

if is_killed:
    decisions.write = killed
made, before = register(project, "toy", model, root), number()
print("ready", flush=True)
sys.stdin.readline()
action = "promoted"
while True:
    try:
        decisions.apply(project, made, decision(made.version, action, previous=before))
        break
    except ChampionChangedError:
        action, before = "rejected", number()
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """The environment of this process and its own: of somebody who uses the servers."""
    with (
        team_servers(tmp_path_factory.mktemp("servers")) as variables,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in variables.items():
            patch.setenv(name, value)
        yield variables


def test_a_worker_and_a_person_who_train_at_once_make_one_champion(environment, tmp_path):
    """Neither has keys of the object store: MLflow's server keeps the artifacts there for them."""
    api, login = environment["PREFECT_API_URL"], environment["PREFECT_API_AUTH_STRING"].split(":")
    server = httpx.Client(base_url=f"{api}/", auth=(login[0], login[1]))
    s3 = boto3.client("s3", endpoint_url=environment["AWS_ENDPOINT_URL"])
    own = {k: v for k, v in environment.items() if not k.startswith("AWS_")}
    with pytest.MonkeyPatch.context() as patch:
        for name in environment.keys() - own.keys():
            patch.delenv(name)
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
    kept = s3.list_objects_v2(Bucket="retrain", Prefix="mlflow/")["Contents"]
    assert any(object["Key"].endswith(".safetensors") for object in kept)


def decide_at_once(folder: Path, number: int) -> None:
    """Has all machines decide at the same time; the first one is killed in the second round."""
    pipe, processes = subprocess.PIPE, []
    for machine in range(MACHINES):
        root = folder / f"machine-{machine}"
        root.mkdir(exist_ok=True)
        command = [sys.executable, "-c", MACHINE, root, f"model-{machine}-{number}"]
        command += ["killed"] if (machine, number) == (0, 1) else []
        processes.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=ROOT))
    for process in processes:
        assert process.stdout.readline() == b"ready\n", process.stderr.read().decode()
    for process in processes:
        process.stdin.write(b"\n")
        process.stdin.flush()
    for machine, process in enumerate(processes):
        errors = process.communicate()[1].decode()
        assert process.returncode == (-9 if (machine, number) == (0, 1) else 0), errors


def test_of_machines_that_decide_at_once_one_has_the_champion_and_no_entry_is_lost(
    environment, tmp_path
):
    for number in range(ROUNDS):
        decide_at_once(tmp_path, number)
    machines = [Project(tmp_path / f"machine-{machine}") for machine in range(MACHINES)]
    decisions.settle(machines[0], "toy")  # what the killed one may have left
    entries = decisions.read(machines[0], "toy").entries
    promoted = [entry for entry in entries if entry.appoints]
    assert [entry.number for entry in entries] == [*range(1, MACHINES * ROUNDS + 1)]
    assert sorted(entry.version for entry in entries) == [entry.number for entry in entries]
    assert len(promoted) == ROUNDS
    assert [entry.previous for entry in promoted] == [None, *(e.version for e in promoted[:-1])]
    for project in machines:
        assert versions.champion(project, "toy").version == promoted[-1].version
        assert decisions.read(project, "toy").is_settled
    client = tracking.client(machines[0])
    verdicts = {
        int(version.version): version.tags["retrain.verdict"]
        for version in client.search_model_versions("name = 'toy'")
    }
    assert verdicts == {entry.version: entry.mark for entry in entries}
