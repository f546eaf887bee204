"""Connects to Ray, the cluster of `RAY_ADDRESS` or one of this process, and asks its machines."""

import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from retrain import hardware
from retrain.errors import UsageError
from retrain.file_io import write_text
from retrain.hardware import Node
from retrain.project import find_project
from retrain.servers import reachable

# Training workers and Ray's other tasks share a small machine: with as many logical CPUs as cores,
# two workers would take all CPUs, and the other tasks would never start.
MIN_LOGICAL_CPUS = 4

SESSION = "session_2026-01-01_00-00-00_000000"  # how Ray names a folder, by time and process

NODES = "cluster.json"
# Of the project's packages, these are not sent to a cluster's workers.
NOT_SENT = ("benchmarks", "tests")
# What is passed to the workers of a cluster whose machines do not have it.
PASSED_TO_A_CLUSTER = ("AWS_", "HF_TOKEN", "MLFLOW_TRACKING_")


def connect() -> None:
    """Makes Ray ready to use, once per process.

    Raises:
        ConnectionError: The cluster of `RAY_ADDRESS` does not answer.
        UsageError: The folder for temporary files has too long a path.
    """
    import ray

    if ray.is_initialized():
        return
    if is_remote():
        _connect_to_cluster()
    else:
        if fault := socket_path_fault():
            raise UsageError(fault)
        ray.init(
            address="local",  # not the Ray of another user on this machine
            num_cpus=logical_cpus(),
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )


def _connect_to_cluster() -> None:
    """Connects to the cluster of `RAY_ADDRESS`.

    Raises:
        ConnectionError: It does not answer, or does not take this machine as one of its own.
    """
    import ray

    check()
    variables = os.environ.items()
    passed = {name: value for name, value in variables if name.startswith(PASSED_TO_A_CLUSTER)}
    try:
        ray.init(
            runtime_env=_project_code() | _passing_on(passed),
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, RuntimeError) as error:
        reason = str(error).partition("\n")[0].removesuffix(".")
        raise ConnectionError(
            f"RAY_ADDRESS: {reason}. It is the address of a cluster's head, such as head:6379, of "
            "which this machine is a node (ray start --address=…); where the cluster wants a "
            "token, RAY_AUTH_MODE=token has to be set too."
        ) from error


def is_remote() -> bool:
    """Whether the work runs on the cluster of `RAY_ADDRESS`, not only on this machine."""
    return bool(os.environ.get("RAY_ADDRESS"))


def nodes(state: Path) -> tuple[Node, ...]:
    """The machines of the cluster of `RAY_ADDRESS` that may train.

    The machines are asked once. A training that finds other machines asks again; see
    `forget_others`.

    Args:
        state: The project's folder for the files of runs, where the answer is kept.

    Returns:
        The machines; none for a cluster that has still to grow.

    Raises:
        ConnectionError: The cluster does not answer within seconds.
    """
    file, address = state / NODES, os.environ["RAY_ADDRESS"]
    cached = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if cached.get("address") != address:
        connect()
        found = training_nodes()
        answers = zip(found, on_each(found, hardware.this_node), strict=True)
        # Ray may have been given fewer GPUs than the machine has.
        by_identity = {
            node["NodeID"]: asdict(answer)
            | {"gpus": answer.gpus[: int(node["Resources"].get("GPU", 0))]}
            for node, answer in answers
        }
        cached = {"address": address, "nodes": by_identity}
        state.mkdir(exist_ok=True)
        write_text(file, json.dumps(cached))
    return tuple(
        Node(node["cores"], tuple(node["gpus"]), node["has_bf16"])
        for node in cached["nodes"].values()
    )


def forget_others(state: Path) -> None:
    """Lets the next run ask the machines of the cluster anew, if they are no longer the same."""
    file = state / NODES
    if file.exists():
        cached = json.loads(file.read_text(encoding="utf-8"))
        if cached["nodes"].keys() != {node["NodeID"] for node in training_nodes()}:
            file.unlink(missing_ok=True)


def training_nodes() -> list[dict[str, Any]]:
    """The machines on which Ray may start workers, as Ray describes them."""
    import ray

    return [
        node
        for node in ray.nodes()
        if node["Alive"] and (node["Resources"].get("CPU") or node["Resources"].get("GPU"))
    ]


@cache
def check_store() -> None:
    """Checks that all machines of the cluster of `RAY_ADDRESS` see the store, once per process.

    Raises:
        UsageError: Some do not.
    """
    if not is_remote():
        return
    store = find_project().store
    if blind := machines_without(store):
        raise UsageError(
            f"The machine {' and '.join(blind)} of the cluster of RAY_ADDRESS does not see the "
            f"store in {store}. Set RETRAIN_STORE to a folder that all machines see."
        )


def machines_without(folder: Path) -> list[str]:
    """The machines of the cluster that do not see a folder of this one: their names.

    Only machines count on which workers may start.
    """
    nodes = training_nodes()
    folder.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=folder) as file:
        place = Path(file.name)
        answers = on_each(nodes, lambda: place.exists())
    return [
        f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
        for node, is_seen in zip(nodes, answers, strict=True)
        if not is_seen
    ]


def on_each(nodes: Sequence[Mapping[str, Any]], function: Callable[[], Any]) -> list[Any]:
    """Calls a function on each of some machines, in a task that takes no CPU."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(num_cpus=0)(function)
    places = (NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in nodes)
    return list(ray.get([task.options(scheduling_strategy=place).remote() for place in places]))


def logical_cpus() -> int:
    """The number of CPUs that a Ray started here may use."""
    from joblib import cpu_count

    return max(int(cpu_count()), MIN_LOGICAL_CPUS)  # respects the limits of a container


def socket_path_fault() -> str | None:
    """Why a Ray of this process cannot have its sockets; None if it can, or is not needed."""
    if is_remote():
        return None
    name = "RAY_TMPDIR" if "RAY_TMPDIR" in os.environ else "TMPDIR"
    path = f"{os.environ.get(name, '/tmp')}/ray/{SESSION}_{os.getpid()}/sockets/plasma_store"
    return reachable.socket_path_fault(path, f"export {name} as a shorter path")


def check() -> None:
    """Checks that the cluster of `RAY_ADDRESS` answers, if one is named.

    Raises:
        ConnectionError: The cluster does not answer within seconds.
    """
    address = os.environ.get("RAY_ADDRESS", "")
    if address not in ("", "auto", "local"):
        reachable.check("RAY_ADDRESS", address)


def _project_code() -> dict[str, Any]:
    """The `runtime_env` that sends this project's current code to the workers of a cluster.

    It comes before code that is installed there, so workers need only the libraries.
    """
    root = Path(__file__).parents[2]
    return {
        "working_dir": str(root),
        "excludes": ["/*", "!/.", *(f"!/{name}" for name in sent(root))],
    }


def sent(root: Path) -> list[str]:
    """The files and folders that a cluster's workers get: code, with the user's, and parameters.

    No data, no secrets, no outputs of runs.

    Args:
        root: The project's folder.
    """
    packages = (path.parent.name for path in root.glob("*/__init__.py"))
    modules = (path.name for path in root.glob("*.py"))
    return sorted({*packages, *modules, "params.yaml"} - {*NOT_SENT})


def _passing_on(variables: Mapping[str, str]) -> dict[str, Any]:
    """The `runtime_env` that gives variables to workers that lack them; empty without variables.

    Ray's own `env_vars` are not used, because Ray writes their values to its logs, passwords too.
    An empty `runtime_env` reuses workers that run already.
    """

    def set_variables() -> None:
        import os  # of the worker

        os.environ.update(variables | os.environ)

    return {"worker_process_setup_hook": set_variables} if variables else {}


def disconnect() -> None:
    """Disconnects this process from Ray, and stops a Ray that it has started."""
    if "ray" in sys.modules:
        import ray

        ray.shutdown()
