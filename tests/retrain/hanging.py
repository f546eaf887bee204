"""A flow whose step waits for workers that hang, for a process of its own."""

import os
import time
from pathlib import Path

from prefect import flow, runtime

from retrain.project import Project
from retrain.runs import task
from retrain.runs.run import Run
from retrain.servers import ray_cluster
from retrain.step import DataVersion, Step
from retrain.workload import Workload

WORKLOAD = {"name": "toy", "data": {"path": "x"}, "model": {"family": "vit"}}


def trains(seconds: float) -> None:
    from ray.train import ScalingConfig
    from ray.train.torch import TorchTrainer

    from tasks.train.launch import fit

    here = Path.cwd()

    def work():
        (here / "worker").write_text(str(os.getpid()))
        time.sleep(seconds)

    fit(TorchTrainer(work, scaling_config=ScalingConfig(num_workers=1)))


def waits_for_workers():
    with Path("tries").open("a", encoding="utf-8") as tries:
        tries.write("x")
    Path("worker").unlink()
    trains(seconds=600.0)


@flow
def toy(limit_seconds: float):
    run = str(runtime.flow_run.id)
    Path("run").write_text(run, encoding="utf-8")
    Path("limit").write_text(f"{limit_seconds / 3600:g}", encoding="utf-8")
    workload = Workload.model_validate(WORKLOAD | {"limits": {"first": limit_seconds / 3600}})
    version = DataVersion("abc", tracked=True)
    Run("toy", workload, version, Project(Path.cwd()), run)(
        Step("first", lambda version, workspace: waits_for_workers(), ("data",)), version
    )


def main() -> None:
    """Runs the flow in the working directory."""
    task.GRACE_SECONDS = 3.0
    ray_cluster.connect()
    started = time.monotonic()
    trains(seconds=0.0)  # how long this machine takes to start the workers
    toy(limit_seconds=2 * (time.monotonic() - started) + 5.0)
