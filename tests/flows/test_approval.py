"""A deployment whose model waits: on a real server, with a worker and one slot."""

import json
import sys
import urllib.request

import pytest

from tests import templates
from tests.flows.conftest import free_port, until

# Any model passes the gate, and waits then.
MANUAL = "metric: accuracy\n      margin: 0.9\n      approval: manual"


def ask(url, body=None):
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, content, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


@pytest.fixture
def servers(clone, first):
    """Those of `make up`, for a project with manual approval; the variables that name them."""
    clone.edit("params.yaml", "metric: accuracy", MANUAL)
    clone.edit("params.yaml", "epochs: 2", "epochs: 8")
    ports = {
        "PREFECT_API_URL": f"http://127.0.0.1:{free_port()}/api",
        "MLFLOW_PORT": str(free_port()),
    }
    cli = (sys.executable, "-m", "retrain.cli.main")
    templates.place_prefect_database(clone.root)
    try:
        clone.run(*cli, "up", **ports)
        yield ports
    finally:
        clone.run(*cli, "down", **ports)


def test_a_run_waits_without_its_slot_and_compares_again_if_the_champion_has_changed(
    clone, servers
):
    api = servers["PREFECT_API_URL"]
    deployment = ask(f"{api}/deployments/name/train/vit")["id"]

    def begin():
        return ask(f"{api}/deployments/{deployment}/create_flow_run", {})["id"]

    def state(run):
        return ask(f"{api}/flow_runs/{run}")["state"]

    def asked():
        now = state(run)
        return now["name"] == "Suspended" and now["state_details"]["pause_key"]

    def resume(**form):
        assert ask(f"{api}/flow_runs/{run}/resume", {"run_input": form})["status"] == "ACCEPT"

    run = begin()
    until(asked, 240)
    key = asked()
    [told, *_] = json.loads(clone.retrain("status", "--json").stdout)
    assert (told["champion"]["version"], told["waiting"]["version"]) == (1, 2)
    assert told["waiting"]["run"] == told["last_run"]["run"] == run

    # The deployment has one slot, and another run has it meanwhile.
    other = begin()
    until(lambda: state(other)["type"] == "COMPLETED", 120)
    assert state(other)["name"] == "Skipped"
    assert "; version 2 passes and waits for approval: " in state(other)["message"]
    assert state(run)["name"] == "Suspended"

    changed = ("--set", "train.epochs=6", "--set", "gate.approval=automatic", "--promote")
    assert clone.train(*changed)["model"]["aliases"][0] == "champion"
    resume(decision="approve", reason="looks right")
    until(lambda: asked() not in (False, key), 120)
    [told, *_] = json.loads(clone.retrain("status", "--json").stdout)
    assert (told["champion"]["version"], told["waiting"]["version"]) == (3, 2)
    assert told["waiting"]["previous"] == 3

    resume(decision="approve", reason="still looks right", name="ada")
    until(lambda: state(run)["type"] == "COMPLETED", 120)
    assert state(run)["name"] == "Approved"
    said = "vit version 2 is approved and the champion now, over version 3"
    assert state(run)["message"].startswith(said)
    history = json.loads(clone.retrain("history", "vit", "--json").stdout)
    said = [(entry["action"], entry["version"], entry["previous"]) for entry in history]
    assert said == [
        ("promoted", 1, None),
        ("waiting", 2, 1),
        ("promoted", 3, 1),
        ("waiting", 2, 3),
        ("promoted", 2, 3),
    ]
    assert (history[-1]["who"], history[-1]["reason"]) == ("ada (train/vit)", "still looks right")
