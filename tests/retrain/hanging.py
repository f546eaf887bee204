"""A flow with one step that hangs, for a process of its own."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

from prefect import flow, runtime

from retrain import limits
from retrain.project import Project
from retrain.runs.run import Run
from retrain.runs.state import RunState
from retrain.servers import ray_cluster
from retrain.step import DataVersion, Step
from retrain.store import RunContext, Store
from retrain.workload import Data, Model, Workload


def waits_for_a_thread():
    with ThreadPoolExecutor(1) as pool:
        pool.submit(time.sleep, 60)


def waits_for_workers():
    from ray.train import ScalingConfig
    from ray.train.torch import TorchTrainer

    from tasks.train.launch import fit

    here = Path.cwd()

    def work():
        (here / "worker").write_text(str(os.getpid()))
        time.sleep(600)

    fit(TorchTrainer(work, scaling_config=ScalingConfig(num_workers=1)))


def main(how: str, seconds: float) -> None:
    """Runs the flow in the working directory.

    Args:
        how: One of the functions above.
        seconds: The limit of the step.
    """
    here = Path.cwd()
    limits.GRACE_SECONDS = 3.0
    if how == "waits_for_workers":  # it takes long to start
        ray_cluster.connect()
        import_module("tasks.train.launch")

    def step(version, workspace):
        with (here / "tries").open("a") as tries:
            tries.write("x")
        globals()[how]()
        return {}

    @flow
    def toy():
        (here / "run").write_text(str(runtime.flow_run.id))
        workload = Workload(
            name="toy",
            data=Data(path="x"),
            model=Model(family="vit"),
            limits={"first": seconds / 3600},
        )
        version = DataVersion("abc", tracked=True)
        context = RunContext(str(runtime.flow_run.id), Project(here))
        run = Run(RunState("toy", workload, version, Store(here / "store"), context))
        run(Step("first", step, reads=(), inputs=("data",)), version)

    toy()
