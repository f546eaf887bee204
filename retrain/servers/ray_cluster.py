"""Connecting to Ray: the cluster of `RAY_ADDRESS`, that of `make up`, or one of this process's own.

The Ray of `make up` saves a run the 3 to 5 s that starting one takes, and its stopping.
"""

import logging
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retrain.errors import UsageError
from retrain.project import Project, find_project
from retrain.servers import processes
from retrain.servers.processes import Service

# Training workers and Ray's other tasks share a small machine: with as many logical CPUs as cores,
# two workers would take them all and the others would wait for ever.
MIN_LOGICAL_CPUS = 4

SERVICE = "ray"
ANSWER_SECONDS = 2.0
# What a cluster's workers get of the project. All else stays here: data, secrets, what runs leave.
SENT = ("flows", "models", "retrain", "tasks", "params.yaml")
# Variables of a process that are not for its Ray workers: where it came from, and its terminal.
NOT_PASSED_ON = ("PREFECT_", "RAY_", "PWD", "OLDPWD", "SHLVL", "_", "TERM", "COLUMNS", "LINES")

logger = logging.getLogger("retrain")


def connect() -> None:
    """Makes Ray ready to use, once per process."""
    import ray

    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if is_remote():
        ray.init(runtime_env=_our_code(), log_to_driver=False, logging_level=logging.ERROR)
    elif not _connect_to_service():
        ray.init(
            address="local",  # and not one that somebody else runs on this machine
            num_cpus=logical_cpus(),
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )


def is_remote() -> bool:
    """Whether work is for more machines than this one: those of the cluster of `RAY_ADDRESS`."""
    return bool(os.environ.get("RAY_ADDRESS"))


def logical_cpus() -> int:
    """How many CPUs a Ray of ours is told that this machine has."""
    from joblib import cpu_count

    return max(int(cpu_count()), MIN_LOGICAL_CPUS)  # those that a container may use


def token(project: Project) -> dict[str, str]:
    """The variable by which the Ray of a clone's `make up`, and who uses it, know each other."""
    return {"RAY_AUTH_TOKEN_PATH": str(project.state / "ray-token")}


def answers(address: str) -> bool:
    """Whether a Ray answers at an address (`host:port`), and soon.

    Ray itself would wait two minutes for one that does not. What is sent is the opening of HTTP/2,
    which gRPC speaks: a server that is not stuck sends its own.
    """
    host, port = address.split(":")
    try:
        with socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS) as connection:
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
            return bool(connection.recv(1))
    except OSError:
        return False


def _our_code() -> dict[str, Any]:
    """The `runtime_env` that gives the workers of a cluster this process's code, as it is now.

    It comes before what is installed there, so that a worker needs the libraries and nothing else.
    """
    root = Path(__file__).parents[2]
    return {"working_dir": str(root), "excludes": ["/*", "!/.", *(f"!/{name}" for name in SENT)]}


def _connect_to_service() -> bool:
    """Connects to the Ray of `make up`.

    Returns:
        False when there is none, or it is of no use; then the log says so.
    """
    import ray

    try:
        project = find_project()
    except UsageError:
        return False
    service = next(
        (each for each in processes.read_services(project) if each.name == SERVICE), None
    )
    if service is None:
        return False
    assert service.address
    if not (processes.is_alive(service) and answers(service.address)):
        logger.warning("The Ray of `make up` does not answer; this run starts its own.")
        return False
    os.environ.update(token(project))
    try:
        ray.init(
            address=service.address,
            runtime_env=_passing_on(_changed(service)),
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (Exception, SystemExit) as error:  # Ray exits where it finds nobody
        logger.warning("The Ray of `make up` is of no use (%s); this run starts its own.", error)
        ray.shutdown()
        return False
    return True


def _changed(service: Service) -> dict[str, str]:
    """The variables of this process's environment that differ from the service's."""
    theirs = processes.environment(service)
    return {
        name: value
        for name, value in os.environ.items()
        if theirs.get(name) != value
        and name != processes.MARK
        and not name.startswith(NOT_PASSED_ON)
    }


def _passing_on(variables: Mapping[str, str]) -> dict[str, Any]:
    """The `runtime_env` that sets variables in a run's workers, without fresh workers for none.

    Ray has `env_vars` for it, and writes what is in them to its logs: passwords too.
    """

    def set_variables() -> None:
        import os  # of the worker

        os.environ.update(variables)

    return {"worker_process_setup_hook": set_variables} if variables else {}


def disconnect() -> None:
    """Stops our own Ray, or leaves the cluster, if this process uses it."""
    if "ray" in sys.modules:
        import ray

        ray.shutdown()
