"""Trains with Ray Train: in this process, or on workers.

After an error of one worker Ray Train would restart all of them, and until then the others would
wait for it in the exchange of gradients. So it ends at the first error, and is started again here,
unless a retry cannot fix the error.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import replace
from importlib import import_module
from threading import Thread
from typing import Any

import ray
import torch
from ray.train import (
    CheckpointConfig,
    ControllerError,
    FailureConfig,
    RunConfig,
    ScalingConfig,
    TrainingFailedError,
    WorkerGroupError,
    get_context,
)
from ray.train.torch import TorchConfig, TorchTrainer, get_device

from retrain.errors import UsageError, is_verdict
from retrain.project import CODE, Project
from retrain.runs import console
from retrain.servers import patches, ray_cluster
from retrain.workload import Scale
from tasks.train import user_function
from tasks.train.job import STREAM, TrainingJob, lacking_gpus
from tasks.train.session import Session
from tasks.train.train import fit

RAY = "ray"  # the name of a training for Ray Train
# Ray Train's variable: how long a worker waits for the others in `ray.train.report`.
REPORT_SECONDS = "RAY_TRAIN_COLLECTIVE_TIMEOUT_S"
# How often Ray Train's controller takes reports; meanwhile a worker waits with its next one.
POLL_SECONDS = "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"
# A helper of Ray Train watches for nodes of the cluster that are about to be taken away.
WATCHES_NODES = "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"


def launch(job: TrainingJob) -> dict[str, Any]:
    """Trains; after an error again, from the last checkpoint, on the machines that are left.

    Returns:
        What the first worker returned: how it was calculated.

    Raises:
        KeyboardInterrupt: At Ctrl-C.
        UsageError: There are not enough GPUs, and they are required.
        ValueError: The training raised it.
        ray.train.TrainingFailedError: More workers were lost than `scale.max_failures`.
    """
    if job.scale.workers and ray_cluster.is_remote():
        ray_cluster.forget_others(Project(job.root).state)
    on_gpus, lost = _on_gpus(job.scale), 0
    while True:
        scaling = _scaling(job.scale, on_gpus)
        try:
            result: dict[str, Any] = run_trainer(_trainer(job, scaling)).return_value
            return result
        except TrainingFailedError as error:
            causes = _causes(error)
            if verdict := next(filter(is_verdict, causes), None):
                raise verdict from error
            if any(map(patches.found_no_place, causes)):
                console.say(waiting_line(scaling.num_workers, scaling.resources_per_worker))
                continue
            lost += 1
            if lost > job.scale.max_failures:
                raise


def _causes(error: TrainingFailedError) -> list[Exception]:
    """The errors of the workers, or that of Ray Train's controller."""
    if isinstance(error, WorkerGroupError):
        return [*error.worker_failures.values()]
    return [error.controller_failure] if isinstance(error, ControllerError) else []


def _trainer(job: TrainingJob, scaling: ScalingConfig) -> TorchTrainer:
    """Ray Train's trainer, which runs the training on each worker."""
    scale = job.scale
    os.environ[REPORT_SECONDS] = str(scale.timeout_seconds)
    os.environ.setdefault(POLL_SECONDS, "0.2")
    # Started again with the same name and storage, Ray Train would go on where it was by itself.
    shutil.rmtree(job.scratch / RAY, ignore_errors=True)
    return TorchTrainer(
        _work,
        train_loop_config={"job": job},
        torch_config=TorchConfig(timeout_s=scale.timeout_seconds),
        scaling_config=scaling,
        run_config=RunConfig(
            name=RAY,
            storage_path=str(job.scratch),
            checkpoint_config=CheckpointConfig(num_to_keep=1),
            failure_config=FailureConfig(max_failures=0, controller_failure_limit=0),
            callbacks=[user_function.Reports(job)] if job.hyperparameters.function else [],
        ),
        **(import_module(STREAM).of_trainer(job) if job.streams else {}),
    )


def _work(config: Mapping[str, TrainingJob]) -> dict[str, Any]:
    """Trains, as one of the workers; returns how it was calculated."""
    job, device = config["job"], get_device()
    if not job.root.exists():  # the clone is on another machine, which has sent its code
        job = replace(job, root=CODE.parent)
    if job.hyperparameters.function:
        return user_function.run(job, device)
    context = get_context()
    return fit(Session(job, context.get_world_rank(), context.get_world_size(), device))


def run_trainer(trainer: TorchTrainer) -> Any:
    """Trains as `trainer.fit` does, and leaves Ctrl-C to the step.

    With workers it waits in another thread: in the main one, Ray Train sets its own handler of
    Ctrl-C, which ends the process with code 0.
    """
    if not ray_cluster.is_remote():
        os.environ.setdefault(WATCHES_NODES, "0")
        patches.leave_out_what_needs_a_dashboard(trainer)
    if not trainer.scaling_config.num_workers:
        return trainer.fit()
    outcome: Future[Any] = Future()

    def work() -> None:
        try:
            outcome.set_result(trainer.fit())
        except BaseException as error:
            outcome.set_exception(error)

    Thread(target=copy_context().run, args=(work,), daemon=True).start()
    return outcome.result()


def _on_gpus(scale: Scale) -> bool:
    """Whether each worker gets a GPU, because there are enough.

    Raises:
        UsageError: There are not enough, and they are required.
    """
    workers = scale.workers
    if workers:
        gpus = int(sum(node["Resources"].get("GPU", 0) for node in ray_cluster.training_nodes()))
    else:
        gpus = torch.cuda.device_count()
    is_lacking, fault = lacking_gpus(scale, gpus)
    if is_lacking:
        raise UsageError(fault)
    if 0 < gpus < workers:
        console.say(f"Trains on CPUs: there are {gpus} GPUs for {workers} workers.")
    return 0 < workers <= gpus


def _scaling(scale: Scale, on_gpus: bool) -> ScalingConfig:
    """The resources of each worker: a GPU if it has one, and a share of half of the CPUs."""
    if not scale.workers:
        return ScalingConfig(num_workers=0)
    nodes = [node["Resources"] for node in ray_cluster.training_nodes()]
    return ScalingConfig(
        num_workers=scale.workers,
        use_gpu=on_gpus,
        resources_per_worker={
            "CPU": cpus_of_worker(nodes, scale.workers, on_gpus),
            "GPU": int(on_gpus),
        },
        # GPUs on one node communicate faster; workers on CPUs are faster on separate nodes.
        placement_strategy="PACK" if on_gpus else "SPREAD",
    )


def cpus_of_worker(nodes: Sequence[Mapping[str, float]], workers: int, on_gpus: bool) -> float:
    """The CPUs of each worker: the most with which all workers fit into half of each machine.

    Args:
        nodes: The resources of each machine, as Ray names them.
        workers: The number of workers.
        on_gpus: Whether each worker has a GPU too.

    Returns:
        Whole CPUs if there are enough, else a fraction of one: a worker must not wait forever. 1 in
        a cluster that has still to grow.
    """
    halves = [
        (node.get("CPU", 0) / 2, node.get("GPU", 0) if on_gpus else workers) for node in nodes
    ]

    def fit(cpus: float) -> bool:
        # A little more, because a third of a CPU is not a third of it in floating point.
        places = (min(gpus, (half + 1e-9) // cpus) for half, gpus in halves)
        return sum(places) >= workers

    sizes = {half / count for half, _ in halves for count in range(1, workers + 1) if half}
    most = max(filter(fit, sizes), default=1)
    return int(most) if most >= 1 else most


def waiting_line(workers: int, resources: Mapping[str, float]) -> str:
    """The line about a training whose workers find no place.

    Args:
        workers: How many workers were asked for.
        resources: The resources of each worker, as Ray names them.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    free = ray.available_resources()
    free_resources = (
        f"{free.get(name, 0):g} of {sum(node.get(name, 0) for node in nodes):g} {name}s"
        for name in ("CPU", "GPU")
    )
    return (
        f"train waits for Ray to start its workers: {workers} with {resources['CPU']:g} CPUs "
        f"{'and a GPU ' if resources['GPU'] else ''}each. Free are "
        f"{' and '.join(free_resources)}, in {len(nodes)} machines."
    )
