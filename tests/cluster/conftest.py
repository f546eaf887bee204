"""A cluster of two machines with the servers that it needs on a third, and clones that use it."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.cluster import hosts, servers
from tests.cluster.hosts import SHARED, Host, Network
from tests.cluster.servers import BUCKET, RAY, RAY_PORT, Servers
from tests.flows.conftest import make_clone, until

EPOCHS, BATCH = 12, 16  # half a minute of training
RUN_SECONDS = 900.0  # on a busy machine
START_SECONDS = 120.0  # until Ray has found a machine

# The runs of a workload in MLflow's database.
RUNS = (
    "SELECT run_uuid FROM runs JOIN experiments USING (experiment_id) "
    "WHERE experiments.name = 'NAME'"
)
COUNT = """
import ray
ray.init(address="ADDRESS", log_to_driver=False, logging_level="ERROR")
print(sum(node["Alive"] for node in ray.nodes()))
"""


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

    def run(self, *command: str) -> str:
        """Runs a program in the clone; returns what it printed."""
        return self.host.run(*command, folder=self.folder, **self.environment)

    def retrain(self, *arguments: str) -> Any:
        """Runs a command of the project; returns its document."""
        return json.loads(self.run("python", "-m", "retrain.cli", *arguments, "--json"))

    def start(self, *arguments: str) -> "Run":
        """Starts a command of the project, which says what it does in `said`."""
        log = self.root / "said"
        log.unlink(missing_ok=True)
        command = ("python", "-m", "retrain.cli", *arguments, "--json")
        into_files = ("sh", "-c", 'exec "$@" >document 2>said', "sh")
        process = self.host.start(
            *into_files, *command, log="sh.log", folder=self.folder, **self.environment
        )
        return Run(self, process)

    def set(self, **sections: Any) -> None:
        """Changes parameters of the workload `vit`, or of the whole project."""
        path, yaml = self.root / "params.yaml", YAML()
        tree = yaml.load(path.read_text(encoding="utf-8"))
        for name, values in sections.items():
            above = tree if name == "store" else tree["workloads"]["vit"]
            above.setdefault(name, {}).update(values)
        with path.open("w", encoding="utf-8") as file:
            yaml.dump(tree, file)


@dataclass(frozen=True)
class Run:
    """A command of the project that runs in a clone."""

    clone: Clone
    process: "subprocess.Popen[bytes]"

    @property
    def said(self) -> str:
        """What it has told so far, one line for each thing."""
        file = self.clone.root / "said"
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
        return json.loads((self.clone.root / "document").read_text(encoding="utf-8"))


class Cluster:
    """Two machines with Ray, and one with the servers."""

    def __init__(self, folder: Path, opened: ExitStack) -> None:
        self.network = Network(folder, opened)
        self.servers = Servers(self.network.add("servers"), opened)
        self.head, self.other = self.network.add("head"), self.network.add("other")
        self.ray = [servers.ray_node(host, self.head) for host in (self.head, self.other)]
        for node in self.ray:
            node.start()
        self.wait_for(2)

    def turn_off_other(self) -> None:
        """Turns the machine off that has no run of its own."""
        self.network.turn_off(self.other)
        self.ray[1].process = None

    def turn_on_other(self) -> None:
        """Turns it on again, with Ray."""
        self.other = self.network.again(self.other)
        self.ray[1].host = self.other
        self.ray[1].start()

    def mend(self) -> None:
        """Undoes all that a test has done to machines and servers."""
        self.servers.mend()
        if self.ray[1].process is None:
            self.turn_on_other()
        self.network.join(self.other)
        self.wait_for(2)

    def nodes(self) -> int:
        """How many machines Ray has."""
        count = COUNT.replace("ADDRESS", f"{self.head.address}:{RAY_PORT}")
        return int(self.head.run("python", "-c", count, **RAY))

    def wait_for(self, nodes: int) -> None:
        """Waits until Ray has so many machines."""
        until(lambda: self.nodes() == nodes, START_SECONDS)

    def clone(self, name: str, *, shared: bool = False, remote: bool = True) -> Clone:
        """Makes a clone for the head's machine, whose trainings have two workers.

        Args:
            name: Of its folder, and of the prefix of its remote store.
            shared: Both machines see the folder; else it is on the disk of the head's machine.
            remote: Whether it has a remote store.
        """
        folder = f"{SHARED if shared else '/tmp'}/{name}"
        root = (self.network.shared if shared else self.head.disk) / name
        make_clone(root, "")
        places = {
            "PYTHONPATH": folder,
            "MLFLOW_TRACKING_URI": self.servers.mlflow_url,
            "PREFECT_API_URL": f"{self.servers.prefect_url}/api",
            "RAY_ADDRESS": f"{self.head.address}:{RAY_PORT}",
        }
        clone = Clone(self.head, folder, root, RAY | places | self.servers.aws)
        clone.set(scale={"workers": 2}, train={"epochs": EPOCHS, "batch_size": BATCH})
        if remote:
            clone.set(store={"remote": f"s3://{BUCKET}/{name}"})
        return clone

    def check(self, clone: Clone, document: Mapping[str, Any], name: str, weights: str) -> None:
        """Checks that a run has trained these weights, and decided once about one version."""
        assert document["training"]["weights"] == document["model"]["digest"] == weights
        assert document["state"] == "Promoted"
        ask = self.servers.ask
        assert ask("mlflow", f"SELECT version FROM model_versions WHERE name = '{name}'") == ["1"]
        tags = f"SELECT count(*) FROM tags WHERE key = 'retrain.key' AND run_uuid IN ({RUNS})"
        assert ask("mlflow", tags.replace("NAME", name)) == ["1"]
        assert len(clone.retrain("history", name)) == 1


@pytest.fixture(scope="session")
def running_cluster(tmp_path_factory) -> Iterator[Cluster]:
    if reason := hosts.why_not():
        pytest.skip(reason)
    if not servers.postgres("initdb"):
        pytest.skip("PostgreSQL is not installed")
    with ExitStack() as opened:
        yield Cluster(tmp_path_factory.mktemp("cluster"), opened)


@pytest.fixture
def cluster(running_cluster) -> Iterator[Cluster]:
    """The cluster, whole."""
    yield running_cluster
    running_cluster.mend()


@pytest.fixture(scope="session")
def weights(running_cluster) -> str:
    """The digest of what two workers train on one machine that has no servers."""
    clone = running_cluster.clone("alone", remote=False)
    servers = ("RAY_ADDRESS", "PREFECT_API_URL", "MLFLOW_TRACKING_URI")
    alone = replace(clone, environment={"PYTHONPATH": clone.folder} | dict.fromkeys(servers, ""))
    return str(alone.retrain("train", "vit")["training"]["weights"])
