"""A flow whose step waits for workers that hang, for a process of its own."""

import os
import time
from importlib import import_module
from pathlib import Path

from prefect import flow, runtime

from retrain.project import Project
from retrain.runs import task
from retrain.runs.run import Run
from retrain.servers import ray_cluster
from retrain.step import DataVersion, Step
from retrain.workload import Workload

LIMIT_SECONDS = 30.0  # the workers have to be started
WORKLOAD = {"name": "toy", "data": {"path": "x"}, "model": {"family": "vit"}}


def waits_for_workers():
    from ray.train import ScalingConfig
    from ray.train.torch import TorchTrainer

    from tasks.train.launch import fit

    here = Path.cwd()
    with Path("tries").open("a", encoding="utf-8") as tries:
        tries.write("x")

    def work():
        (here / "worker").write_text(str(os.getpid()))
        time.sleep(600)

    fit(TorchTrainer(work, scaling_config=ScalingConfig(num_workers=1)))


@flow
def toy():
    run = str(runtime.flow_run.id)
    Path("run").write_text(run, encoding="utf-8")
    workload = Workload.model_validate(WORKLOAD | {"limits": {"first": LIMIT_SECONDS / 3600}})
    version = DataVersion("abc", tracked=True)
    Run("toy", workload, version, Project(Path.cwd()), run)(
        Step("first", lambda version, workspace: waits_for_workers(), ("data",)), version
    )


def main() -> None:
    """Runs the flow in the working directory."""
    task.GRACE_SECONDS = 3.0
    ray_cluster.connect()
    import_module("tasks.train.launch")
    toy()
