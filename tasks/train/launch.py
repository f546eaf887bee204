"""Runs a training loop with Ray Train: in this process, or on workers."""

import os
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from retrain.errors import UsageError
from retrain.project import Project
from retrain.runs import console
from retrain.servers import ray_cluster
from retrain.workload import Scale
from tasks.compute.placement import cpus_of_worker, telling_that_it_waits
from tasks.train.ingest import STREAM
from tasks.train.interrupt import asking_at_ctrl_c
from tasks.train.job import TrainingJob
from tasks.train.loop import loop_of

if TYPE_CHECKING:
    from ray.train import ScalingConfig

# Ray Train's variable: how long a worker waits for the others in `ray.train.report`.
REPORT_SECONDS = "RAY_TRAIN_COLLECTIVE_TIMEOUT_S"


def launch(job: TrainingJob, scale: Scale) -> dict[str, Any]:
    """Runs the loop on all workers.

    Returns:
        What the loop makes of what the first of them returned.

    Raises:
        KeyboardInterrupt: At Ctrl-C.
        ValueError: As the loop does.
        TimeoutError: Workers waited too long for another one.
        ray.train.TrainingFailedError: More workers were lost than `scale.max_failures`.
    """
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, TrainingFailedError
    from ray.train.torch import TorchConfig

    from tasks.train.trainer import Trainer
    from tasks.train.verdict import StopAtVerdict, verdict, waited

    streamed = job.ingest == "stream"
    if scale.workers or streamed:
        ray_cluster.connect()
    if scale.workers and ray_cluster.is_remote():
        ray_cluster.forget_others(Project(job.root).state)
    os.environ[REPORT_SECONDS] = str(scale.timeout_seconds)
    loop, scaling = loop_of(job.hyperparameters), _scaling(scale)
    trainer = Trainer(
        _work,
        train_loop_config={"loop": loop.work, "job": job},
        torch_config=TorchConfig(
            backend=None if scale.backend == "auto" else scale.backend,
            timeout_s=scale.timeout_seconds,
        ),
        scaling_config=scaling,
        # Started again with the same name and storage, Ray Train goes on where it was.
        run_config=RunConfig(
            name="ray",
            storage_path=str(job.scratch),
            checkpoint_config=CheckpointConfig(num_to_keep=job.keep_checkpoints),
            failure_config=FailureConfig(max_failures=scale.max_failures),
            callbacks=[StopAtVerdict(job.waiting), *loop.callbacks(job)],
        ),
        **(import_module(STREAM).of_trainer(job, scaling) if streamed else {}),
    )
    if scale.workers:
        job.waiting.touch()
    waiting = telling_that_it_waits(
        job.waiting, scaling.num_workers, scaling.resources_per_worker or {}
    )
    try:
        with asking_at_ctrl_c(job.scratch, listens=loop.ENDS_WHEN_ASKED), waiting:
            returned = trainer.fit().return_value
    except TrainingFailedError as error:
        if late := waited(error, scale.timeout_seconds):
            raise late from error
        raise verdict(error) or error from None
    result: dict[str, Any] = loop.finish(job, returned)
    return result


def _work(config: Mapping[str, Any]) -> Any:
    """Runs the loop, as one of the workers."""
    config["job"].waiting.unlink(missing_ok=True)
    return config["loop"](config["job"])


def lacking_gpus(scale: Scale, gpus: int) -> Iterator[str]:
    """Finds that there are not enough GPUs for a training that requires them."""
    wanted = max(scale.workers, 1)
    if gpus < wanted:
        yield (
            f"scale.require_gpu: {gpus} GPUs for {wanted} workers. Make scale.workers smaller, or "
            "leave require_gpu out to train on CPUs."
        )


def _scaling(scale: Scale) -> "ScalingConfig":
    """The resources of each worker: a GPU if there are enough, and a share of half of the CPUs.

    Raises:
        UsageError: There are not enough GPUs, and they are required.
    """
    from ray.train import ScalingConfig

    workers = scale.workers
    if workers:
        nodes = [node["Resources"] for node in ray_cluster.training_nodes()]
        gpus = int(sum(node.get("GPU", 0) for node in nodes))
    else:
        import torch

        gpus = torch.cuda.device_count()
    if scale.require_gpu and (lacking := [*lacking_gpus(scale, gpus)]):
        raise UsageError(*lacking)
    if not workers:
        return ScalingConfig(num_workers=0)
    use_gpu = gpus >= workers
    if gpus and not use_gpu:
        console.say(f"Trains on CPUs: there are {gpus} GPUs for {workers} workers.")
    return ScalingConfig(
        num_workers=workers,
        use_gpu=use_gpu,
        resources_per_worker={
            "CPU": cpus_of_worker(nodes, workers, use_gpu),
            "GPU": int(use_gpu),
        },
        # GPUs on one node communicate faster; workers on CPUs are faster on separate nodes.
        placement_strategy="PACK" if use_gpu else "SPREAD",
    )
