"""A cluster of two machines with Ray, and clones that use it."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.cluster import hosts
from tests.cluster.hosts import SHARED, Host, Network
from tests.flows.conftest import make_clone, until

EPOCHS, BATCH = 12, 16  # half a minute of training
RUN_SECONDS = 900.0  # on a busy machine
START_SECONDS = 180.0  # until a server answers
RAY = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4}
RAY_PORT = 6379
COUNT = """
import ray
ray.init(address="ADDRESS", log_to_driver=False, logging_level="ERROR")
print(sum(node["Alive"] for node in ray.nodes()))
"""


@dataclass(frozen=True)
class Run:
    """A command of the project that runs in a clone."""

    root: Path
    process: "subprocess.Popen[bytes]"

    @property
    def said(self) -> str:
        """What it has told so far, one line for each thing."""
        file = self.root / "said"
        return file.read_text(encoding="utf-8") if file.exists() else ""

    def wait_for(self, words: str) -> None:
        """Waits until it has told something."""

        def told() -> bool:
            has_ended = self.process.poll() is not None  # asked first: it may tell more until then
            assert words in self.said or not has_ended, self.said
            return words in self.said

        until(told, RUN_SECONDS)

    def document(self) -> Any:
        """Waits for its end, which must be a good one; returns its document."""
        assert self.process.wait(RUN_SECONDS) == 0, self.said
        return json.loads((self.root / "document").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Clone:
    """A clone of the project on a machine.

    Attributes:
        host: The machine.
        folder: The clone, as the machine sees it.
        root: The clone, seen from outside.
        environment: The variables of its commands.
    """

    host: Host
    folder: str
    root: Path
    environment: Mapping[str, str]

    def train(self) -> Run:
        """Starts a training, which says what it does in `said`."""
        command = ("python", "-m", "retrain.cli", "train", "vit", "--json")
        into_files = ("sh", "-c", 'exec "$@" >document 2>said', "sh")
        process = self.host.start(
            *into_files, *command, log="sh.log", folder=self.folder, **self.environment
        )
        return Run(self.root, process)


class Cluster:
    """Two machines with Ray."""

    def __init__(self, folder: Path, opened: ExitStack) -> None:
        self.network = Network(folder, opened)
        self.head, self.other = self.network.add("head"), self.network.add("other")
        opened.callback(os.killpg, self._start_ray(self.head).pid, signal.SIGKILL)
        self._start_ray(self.other)
        self.wait_for(2)

    def turn_off_other(self) -> None:
        """Turns the machine off that has no run of its own."""
        self.network.turn_off(self.other)

    def turn_on_other(self) -> None:
        """Turns it on again, with Ray."""
        self.other = self.network.again(self.other)
        self._start_ray(self.other)

    def wait_for(self, nodes: int) -> None:
        """Waits until Ray has so many machines."""
        count = COUNT.replace("ADDRESS", f"{self.head.address}:{RAY_PORT}")
        ask = self.head.command(["python", "-c", count])

        def has_them() -> bool:
            done = subprocess.run(
                ask, env=self.head.environment(RAY), capture_output=True, text=True
            )
            return done.stdout.strip() == str(nodes)

        until(has_them, START_SECONDS)

    def clone(self, name: str, *, shared: bool = False, **more: str) -> Clone:
        """Makes a clone for the first machine, whose trainings have two workers.

        Args:
            name: The name of its folder.
            shared: Both machines see the folder; else it is on the disk of the first machine.
            more: More variables of its commands.
        """
        folder = f"{SHARED if shared else '/tmp'}/{name}"
        root = (self.network.shared if shared else self.head.disk) / name
        make_clone(root, "")
        path, yaml = root / "params.yaml", YAML()
        tree = yaml.load(path.read_text(encoding="utf-8"))
        values = {"scale": {"workers": 2}, "train": {"epochs": EPOCHS, "batch_size": BATCH}}
        for section, parameters in values.items():
            tree["workloads"]["vit"].setdefault(section, {}).update(parameters)
        with path.open("w", encoding="utf-8") as file:
            yaml.dump(tree, file)
        places = {"PYTHONPATH": folder, "RAY_ADDRESS": f"{self.head.address}:{RAY_PORT}"}
        return Clone(self.head, folder, root, RAY | places | more)

    def _start_ray(self, host: Host) -> "subprocess.Popen[bytes]":
        """Starts Ray on a machine; it is started again when it ends, as by a service manager."""
        own = ("--head", "--port", str(RAY_PORT), "--include-dashboard", "false")
        other = ("--address", f"{self.head.address}:{RAY_PORT}")
        start = (
            *("ray", "start", *(own if host == self.head else other)),
            *("--node-ip-address", host.address),
            *("--num-cpus", "2", "--object-store-memory", "100000000"),
            *("--block", "--disable-usage-stats"),
        )
        again = ("bash", "-c", 'while true; do "$@"; sleep 2; done', "ray", *start)
        return host.start(*again, log="ray.log", **RAY, GLOO_SOCKET_IFNAME="eth0")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    if reason := hosts.why_not():
        pytest.skip(reason)
    with ExitStack() as opened:
        yield Cluster(tmp_path_factory.mktemp("cluster"), opened)


@pytest.fixture(scope="session")
def weights(cluster) -> str:
    """The digest of what two workers train on one machine."""
    document = cluster.clone("alone", RAY_ADDRESS="").train().document()
    return str(document["training"]["weights"])
