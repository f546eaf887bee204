"""Trains with Ray Train, in this process or on workers, and saves the best network.

A training is a function that reports metrics and checkpoints to Ray Train: the project's own loop
(`loop.py`), or one of the user's (`function.py`).

After an error of one worker Ray Train would restart all of them, and until then the others would
wait for it in the exchange of gradients. An error that a retry cannot fix ends all at once.
"""

import os
from collections.abc import Mapping
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import replace
from importlib import import_module
from threading import Thread
from typing import Any

import torch
from ray.train import (
    CheckpointConfig,
    ControllerError,
    FailureConfig,
    RunConfig,
    ScalingConfig,
    TrainingFailedError,
    UserCallback,
)
from ray.train.torch import TorchConfig, TorchTrainer

from retrain.errors import UsageError, is_verdict
from retrain.project import CODE, Project
from retrain.runs import console
from retrain.servers import patches, ray_cluster
from retrain.workload import Scale
from tasks.compute.placement import cpus_of_worker, waits
from tasks.data.shards import open_prepared
from tasks.train import function, loop
from tasks.train.checks import lacking_gpus
from tasks.train.datasets import SplitDataset
from tasks.train.job import CHECKPOINTS, FUNCTION, RAY, STREAM, TrainingJob
from tasks.train.network import set_threads
from tasks.train.optimization import temperature
from tasks.train.reports import Reports, keep_in_process

# Ray Train's variable: how long a worker waits for the others in `ray.train.report`.
REPORT_SECONDS = "RAY_TRAIN_COLLECTIVE_TIMEOUT_S"
# How often Ray Train's controller takes reports; meanwhile a worker waits with its next one.
POLL_SECONDS = "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"
# A helper of Ray Train watches for nodes of the cluster that are about to be taken away.
WATCHES_NODES = "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"


def launch(job: TrainingJob) -> dict[str, Any]:
    """Trains on all workers, from the last checkpoint if there is one, and saves the network.

    Returns:
        As `finish` does.

    Raises:
        KeyboardInterrupt: At Ctrl-C.
        UsageError: A machine of the cluster does not see the store.
        ValueError: The training raised it.
        ray.train.TrainingFailedError: More workers were lost than `scale.max_failures`, or waited
            too long for another one.
    """
    scale = job.scale
    if scale.workers or job.streams:
        ray_cluster.connect()
        ray_cluster.check_store()
    if scale.workers and ray_cluster.is_remote():
        ray_cluster.forget_others(Project(job.root).state)
    if step := Reports(job).step:
        console.say(f"train continues at step {step}, from its last checkpoint.")
    try:
        numerics = _fit_on_what_is_there(job, _on_gpus(scale))
    except KeyboardInterrupt:
        if step := Reports(job).step:
            console.say(f"train ended at step {step}. The same command goes on from there.")
        raise
    except ControllerError as error:
        failure = error.controller_failure
        if not is_verdict(failure):
            raise
        raise failure from error  # as `StopAtVerdict` has raised it
    return finish(job, numerics)


def finish(job: TrainingJob, numerics: Mapping[str, Any]) -> dict[str, Any]:
    """Saves the network of the best report, as `models.save` does.

    Args:
        job: The training, which is over.
        numerics: How it was calculated.

    Returns:
        `history` (one mapping for each epoch), `best` (the best of them), `parameters` (how many)
        and `numerics`.

    Raises:
        ValueError: A function of the user's did not do what it has to.
    """
    reports = Reports(job)
    if reports.best is None:
        reported = sorted(set().union(*reports.history) - {"epoch", "seconds"})
        raise ValueError(
            f"{FUNCTION}: {job.hyperparameters.function} never called ray.train.report with "
            f"{job.hyperparameters.best.metric}, by which train.best.metric finds the best report, "
            "and a checkpoint that has the network's state_dict in a file. It reported "
            f"{', '.join(reported) or 'no numbers'}, and {reports.checkpoints} checkpoints."
        )
    reports.show_progress()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    set_threads(device, job.scale.threads)
    is_own = job.hyperparameters.function is None
    weights_of = loop.trained if is_own else function.network_of
    network = weights_of(job, reports.best_checkpoint).to(device)
    if not is_own:
        function.check_accuracy(job, network, reports.best)
    split, precision = SplitDataset(job.images, "val"), job.hyperparameters.precision
    found = temperature(network, split, job.at_once, precision)
    job.save(network, open_prepared(job.images), found)
    return {
        "history": reports.history,
        "best": reports.best,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "numerics": numerics,
    }


def _fit_on_what_is_there(job: TrainingJob, on_gpus: bool) -> Any:
    """Trains; starts again on the machines that are left.

    Returns:
        What the first worker returned.
    """
    lost = 0
    while True:
        scaling = _scaling(job.scale, on_gpus)
        try:
            return fit(_trainer(job, scaling)).return_value
        except TrainingFailedError as error:
            failure = getattr(error, "controller_failure", error)
            reason = patches.why_not_started(failure)
            if reason == "no place":
                console.say(waits(scaling.num_workers, scaling.resources_per_worker))
                continue
            lost += 1
            if reason != "lost" or lost > job.scale.max_failures:
                raise


def _trainer(job: TrainingJob, scaling: ScalingConfig) -> TorchTrainer:
    """Ray Train's trainer, which runs the training on each worker."""
    scale = job.scale
    os.environ[REPORT_SECONDS] = str(scale.timeout_seconds)
    os.environ.setdefault(POLL_SECONDS, "0.2")
    return TorchTrainer(
        _work,
        train_loop_config={"job": job},
        torch_config=TorchConfig(timeout_s=scale.timeout_seconds),
        scaling_config=scaling,
        # Started again with the same name and storage, Ray Train goes on where it was.
        run_config=RunConfig(
            name=RAY,
            storage_path=str(job.scratch),
            checkpoint_config=CheckpointConfig(num_to_keep=CHECKPOINTS),
            failure_config=FailureConfig(
                max_failures=scale.max_failures, controller_failure_limit=0
            ),
            callbacks=[StopAtVerdict(), Reports(job)],
        ),
        **(import_module(STREAM).of_trainer(job) if job.streams else {}),
    )


def _work(config: Mapping[str, TrainingJob]) -> dict[str, Any]:
    """Trains, as one of the workers; returns how it was calculated."""
    job = config["job"]
    if not job.root.exists():  # the clone is on another machine, which has sent its code
        job = replace(job, root=CODE.parent)
    if not job.scale.workers:
        keep_in_process(job)
    return function.train(job) if job.hyperparameters.function else loop.train(job)


def fit(trainer: TorchTrainer) -> Any:
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


class StopAtVerdict(UserCallback):  # type: ignore[misc]  # Ray is not typed
    """Fails the training when a worker raises an error that a retry cannot fix.

    Ray Train's controller calls it before it decides about a retry, and ends the training when the
    callback raises.
    """

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Raises the error of the first worker with such an error; else other workers start."""
        for error in worker_exceptions.values():
            if is_verdict(error):
                raise error
