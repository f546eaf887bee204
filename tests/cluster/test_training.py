"""Two machines with addresses and disks of their own train as one, where they see one store."""

import json
import os
import signal
import subprocess
from contextlib import ExitStack

import pytest

from tests.cluster.hosts import ADDRESSES, SHARED, Network
from tests.flows.conftest import make_clone, until

pytestmark = pytest.mark.cluster

VALUES = {"scale.workers": 2, "train.epochs": 12, "train.batch_size": 16}  # half a minute
TRAIN = ("python", "-m", "retrain.cli", "train", "vit", "--json", "--promote")
INTO_FILES = ("sh", "-c", 'exec "$@" >document 2>said', "sh")
RUN_SECONDS = 900.0  # on a busy machine
RAY = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4}
PORT = "6379"
COUNT = """
import ray
ray.init(log_to_driver=False, logging_level="ERROR")
print(sum(node["Alive"] for node in ray.nodes()))
"""


@pytest.fixture
def network(tmp_path):
    with ExitStack() as opened:
        yield Network(tmp_path, opened)


def start_ray(host, head):
    """Starts Ray on a machine; it is started again when it ends, as by a service manager."""
    own = ("--head", "--port", PORT, "--include-dashboard", "false")
    other = ("--address", f"{head.address}:{PORT}")
    start = (
        "ray",
        "start",
        *(own if host == head else other),
        "--node-ip-address",
        host.address,
        "--num-cpus",
        "2",
        "--object-store-memory",
        "100000000",
        "--block",
        "--disable-usage-stats",
    )
    again = ("bash", "-c", 'while true; do "$@"; sleep 2; done', "ray", *start)
    return host.start(*again, log="ray.log", **RAY, GLOO_SOCKET_IFNAME="eth0")


def train(host, name, **variables):
    """Starts a training in a clone on the disk of a machine."""
    make_clone(host.disk / name, "")
    changes = [word for each in VALUES.items() for word in ("--set", "{}={}".format(*each))]
    place = {"folder": f"/tmp/{name}", "PYTHONPATH": f"/tmp/{name}"}
    return host.start(*INTO_FILES, *TRAIN, *changes, log="sh.log", **place, **variables)


def weights(host, name, process):
    """What a training that must end well has given."""
    assert process.wait(RUN_SECONDS) == 0, (host.disk / name / "said").read_text("utf-8")
    document = json.loads((host.disk / name / "document").read_text("utf-8"))
    assert document["state"] == "Promoted"
    return document["training"]["weights"]


def test_two_machines_train_as_one_though_one_is_lost_and_comes_back(network, request):
    """They see the store, and the other one nothing of the clone."""
    head, other = map(network.turn_on, ADDRESSES)
    expected = weights(head, "alone", train(head, "alone", RAY_ADDRESS=""))
    ray = start_ray(head, head)
    request.addfinalizer(lambda: os.killpg(ray.pid, signal.SIGKILL))
    start_ray(other, head)
    variables = RAY | {"RAY_ADDRESS": f"{head.address}:{PORT}"}
    count = head.command(["python", "-c", COUNT])
    until(lambda: subprocess.check_output(count, env=head.environment(variables)) == b"2\n", 180.0)
    run = train(head, "apart", RETRAIN_STORE=f"{SHARED}/store", **variables)
    said = head.disk / "apart" / "said"
    until(lambda: said.exists() and "  train  epoch" in said.read_text("utf-8"), RUN_SECONDS)
    network.turn_off(other)
    start_ray(network.turn_on("other"), head)
    assert weights(head, "apart", run) == expected
