"""Connects to Ray: the cluster of `RAY_ADDRESS`, the Ray of `make up`, or one for this process.

The Ray of `make up` saves a run the 3 to 5 s of starting one, and the time of stopping it.
"""

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retrain.errors import UsageError
from retrain.project import Project, find_project
from retrain.servers import processes, reachable
from retrain.servers.processes import Service

# Training workers and Ray's other tasks share a small machine: with as many logical CPUs as cores,
# two workers would take all CPUs, and the other tasks would never start.
MIN_LOGICAL_CPUS = 4

SERVICE = "ray"
ANSWER_SECONDS = 2.0
# The only files that are sent to a cluster's workers: no data, no secrets, no outputs of runs.
SENT = ("flows", "models", "retrain", "tasks", "params.yaml")
# Variables that are not passed to Ray workers: those of Prefect, Ray, the shell and the terminal.
NOT_PASSED_ON = ("PREFECT_", "RAY_", "PWD", "OLDPWD", "SHLVL", "_", "TERM", "COLUMNS", "LINES")

logger = logging.getLogger("retrain")


def connect() -> None:
    """Makes Ray ready to use, once per process."""
    import ray

    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if is_remote():
        check()
        ray.init(runtime_env=_project_code(), log_to_driver=False, logging_level=logging.ERROR)
    elif not _connect_to_service():
        ray.init(
            address="local",  # not the Ray of another user on this machine
            num_cpus=logical_cpus(),
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )


def is_remote() -> bool:
    """Whether the work runs on the cluster of `RAY_ADDRESS`, not only on this machine."""
    return bool(os.environ.get("RAY_ADDRESS"))


def logical_cpus() -> int:
    """The number of CPUs that a Ray started here may use."""
    from joblib import cpu_count

    return max(int(cpu_count()), MIN_LOGICAL_CPUS)  # respects the limits of a container


def token(project: Project) -> dict[str, str]:
    """The environment variable with the token file of the Ray of a clone's `make up`."""
    return {"RAY_AUTH_TOKEN_PATH": str(project.state / "ray-token")}


def answers(address: str) -> bool:
    """Whether a Ray answers at an address (`host:port`) within two seconds."""
    host, port = address.split(":")
    return reachable.answers_grpc(host, int(port), ANSWER_SECONDS)


def check() -> None:
    """Checks that the cluster of `RAY_ADDRESS` answers, if one is named.

    Raises:
        ConnectionError: It does not answer within seconds.
    """
    address = os.environ.get("RAY_ADDRESS", "")
    if address not in ("", "auto", "local"):
        reachable.check("RAY_ADDRESS", address)


def _project_code() -> dict[str, Any]:
    """The `runtime_env` that sends this project's current code to the workers of a cluster.

    It comes before code that is installed there, so workers need only the libraries.
    """
    root = Path(__file__).parents[2]
    return {"working_dir": str(root), "excludes": ["/*", "!/.", *(f"!/{name}" for name in SENT)]}


def _connect_to_service() -> bool:
    """Connects to the Ray of `make up`.

    Returns:
        False when there is none, or it cannot be used; the second case is logged.
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
    except (Exception, SystemExit) as error:  # Ray exits when it finds no server
        logger.warning("The Ray of `make up` cannot be used (%s); this run starts its own.", error)
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
    """The `runtime_env` that sets variables in a run's workers; empty if there are none to set.

    Not with Ray's `env_vars`, because Ray writes their values to its logs, passwords too. An empty
    one reuses workers that run already.
    """

    def set_variables() -> None:
        import os  # of the worker

        os.environ.update(variables)

    return {"worker_process_setup_hook": set_variables} if variables else {}


def disconnect() -> None:
    """Disconnects this process from Ray, and stops a Ray that it has started."""
    if "ray" in sys.modules:
        import ray

        ray.shutdown()
