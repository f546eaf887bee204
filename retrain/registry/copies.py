"""Runs steps in a copy of the clone's code, with a store and an MLflow of its own."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from retrain.project import Project

# Runs steps in one process, each as `retrain step STEP NAME` does. It ends when its standard input
# is closed, which the system does when the process ends that has started it.
PROGRAM = """
import os, runpy, signal, sys
from threading import Thread

def end_with_input():
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)

Thread(target=end_with_input, daemon=True).start()
name, *steps = sys.argv[1:]
for step in steps:
    sys.argv = ["retrain.cli", "step", step, name]
    try:
        runpy.run_module("retrain.cli", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if ended.code:
            raise
"""


@dataclass(frozen=True)
class Copy(Project):
    """A copy of the clone's code with a store and a registry of its own, whatever is set here."""

    @property
    def store(self) -> Path:
        """The store of the copy, which is empty at first."""
        return self.state / "store"

    @property
    def tracking_uri(self) -> str:
        """MLflow's store of the copy: a new SQLite file."""
        return f"sqlite:///{self.root / 'mlflow.db'}"


def run_steps(project: Project, copy: Copy, steps: Sequence[str], name: str) -> None:
    """Runs steps in a copy of the code; they are ended with this process.

    Raises:
        ValueError: A step has failed.
    """
    project.logs.mkdir(parents=True, exist_ok=True)
    copy.state.mkdir(exist_ok=True)
    if not copy.logs.exists():
        copy.logs.symlink_to(project.logs)  # which stay when the copy goes
    read, write = os.pipe()
    with os.fdopen(read), os.fdopen(write, "wb"):
        process = subprocess.run(
            [sys.executable, "-c", PROGRAM, name, *steps],
            cwd=copy.root,
            env=_environment(copy),
            stdin=read,
            stdout=2,  # standard output is for the result
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
        )
    if process.returncode:
        log = project.logs / f"{time.strftime('%Y%m%d-%H%M%S')}-reproduce-{name}.log"
        log.write_text(process.stderr, encoding="utf-8")
        lines = process.stderr.strip().splitlines()
        last_line = lines[-1] if lines else f"its process ended with code {process.returncode}"
        error = ValueError(f"{name} cannot be trained again: {last_line}")
        error.add_note(f"More is in {log}")
        raise error


def _environment(copy: Copy) -> dict[str, str]:
    """This process's environment for the copy: its own code first, its own store and MLflow."""
    own_prefixes = ("MLFLOW_", "PREFECT_", "RETRAIN_")
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith(own_prefixes)
    }
    paths = [str(copy.root), variables.get("PYTHONPATH", "")]
    return variables | {
        "DVC_SITE_CACHE_DIR": str(copy.state / "dvc"),
        "RETRAIN_STORE_REMOTE": "",  # which has what is to be made again
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
