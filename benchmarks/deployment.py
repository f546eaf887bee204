"""How quickly a run of the deployment ends when nothing has changed.

    python -m benchmarks.deployment --rounds 5

In a copy of the project whose servers are up (`retrain up`) and which has been trained once, flow
runs of two deployments are executed in turns, each in a process of its own and as Prefect's process
worker does it (`python -m prefect.engine` with the flow run's id in the environment):

- ours: `flows/train.py:train`, which ends as `Skipped`
- theirs: a flow of seven trivial tasks with fixed cache keys and persisted results, all of which
  hit

Wall time from the start of the process to its end in seconds, medians; the first of each is left
out as warm-up. The flow's own time is the server's: from the state Running to the last one.

Result of 2026-11-21, two cores, 3 rounds: process 2.51 s to 2.36 s, ratio 1.06.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from benchmarks.flow import TRAIN, copy_project
from benchmarks.table import Row, report

TRIVIAL = """
from prefect import flow, task


def step(number):
    @task(name=f"step-{number}", cache_key_fn=lambda *_: f"step-{number}", persist_result=True)
    def run(number):
        return number

    return run


STEPS = [step(number) for number in range(7)]


@flow(name="trivial")
def trivial():
    for number, each in enumerate(STEPS):
        each(number)
"""

DEPLOYMENT = """
  - name: seven
    entrypoint: trivial.py:trivial
    work_pool:
      name: local
"""


def main() -> None:
    """Runs the rounds and prints the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        root = copy_project(Path(folder))
        (root / "trivial.py").write_text(TRIVIAL)
        with (root / "prefect.yaml").open("a") as file:
            file.write(DEPLOYMENT)
        ports = [_free_port(), _free_port()]
        api = f"http://127.0.0.1:{ports[0]}/api"
        environment = _environment(root) | {"PREFECT_API_URL": api, "MLFLOW_PORT": str(ports[1])}
        try:
            _call(root, environment, "-m", "retrain.cli", "up")
            _call(root, environment, *TRAIN)
            seconds: dict[str, list[tuple[float, float]]] = {"train/vit": [], "trivial/seven": []}
            for number in range(rounds + 1):
                for name in sorted(seconds, reverse=number % 2 == 1):
                    seconds[name].append(_run(root, environment, api, name))
        finally:
            _call(root, environment, "-m", "retrain.cli", "down")
    medians = {}
    for name, all_times in seconds.items():
        process, flow = (statistics.median(times) for times in zip(*all_times[1:], strict=True))
        medians[name] = process
        print(f"{name:<14} process {process:5.2f} s, flow {flow:5.2f} s")
    ours, theirs = medians["train/vit"], medians["trivial/seven"]
    report(Row("deployment", "nothing changed", ours, "seven cached tasks", theirs, "s", "≤ 1.2"))


def _run(root: Path, environment: dict[str, str], api: str, deployment: str) -> tuple[float, float]:
    """Executes a new flow run of a deployment; its process's wall time, and the flow's."""
    made = _ask(f"{api}/deployments/name/{deployment}")
    # Asked for in the far future, so that the worker leaves it to us.
    state = {"type": "SCHEDULED", "state_details": {"scheduled_time": "2100-01-01T00:00Z"}}
    run = _ask(f"{api}/deployments/{made['id']}/create_flow_run", {"state": state})["id"]
    _ask(f"{api}/flow_runs/{run}/set_state", {"state": {"type": "PENDING"}, "force": True})
    began = time.monotonic()
    _call(root, environment | {"PREFECT__FLOW_RUN_ID": run}, "-m", "prefect.engine")
    took = time.monotonic() - began
    done = _ask(f"{api}/flow_runs/{run}")
    wanted = "Skipped" if deployment == "train/vit" else "Completed"
    assert done["state"]["name"] == wanted, done["state"]
    return took, done["total_run_time"]


def _environment(root: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    home = str(root / ".retrain" / "prefect")
    return kept | {"PYTHONPATH": str(root), "PATH": path, "PREFECT_HOME": home}


def _call(root: Path, environment: dict[str, str], *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=root, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{arguments}: {done.stdout}\n{done.stderr}"


def _ask(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    main()
