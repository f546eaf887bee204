"""Runs a function on many units of work in parallel; as a plan of Ray Data if the work is large.

A plan streams units of the data, which are names of files, to workers that write finished files.
Only the names and a small row for each result go through Ray's object store. Work without state
runs in Ray Data's pool of tasks. Work with a network runs in a pool of actors on a cluster, else in
threads of this process, which share the network.
"""

import logging
import math
import pickle
import traceback
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from functools import cache, cached_property
from queue import SimpleQueue
from typing import Any, TypeVar

from rich.markup import escape

from retrain.project import find_project
from retrain.runs import console
from retrain.servers import machines, ray_cluster
from tasks.compute.prefetch import prefetch

T = TypeVar("T")
R = TypeVar("R")
# Takes a device, `cpu`, `cuda` or one GPU (`cuda:1`), loads a network there, and returns what does
# the work with it. What it raises counts as raised by a unit.
Make = Callable[[str], Callable[[T], R]]

# PyTorch divides some sums among threads, so that results would depend on the machine's cores.
# Several forward passes at once use all cores, which is also faster.
THREADS = 1

# What Ray costs before any work, in seconds, on two cores: a local Ray starts (3 to 8), then Ray
# Data is imported and its workers start (3).
START = 8.0
# An actor that imports PyTorch and transformers, and loads a network.
ACTOR = 4.0
# A block costs Ray Data about 10 ms of a core, so its work should last longer, but be short enough
# to show progress and to lose little with a lost worker. With little work in all, each CPU still
# gets several blocks, so that the CPUs end at about the same time.
BLOCK_SECONDS = 0.5
BLOCKS_PER_CPU = 4
# Tasks that Ray has at once. Most of them wait, which makes an autoscaling cluster grow. More would
# only slow Ray Data down.
AT_ONCE = 1000
# Enough blocks to spread the work of actors evenly; a block costs Ray about as much as a batch of a
# small network.
BLOCKS_PER_ACTOR = 16

logger = logging.getLogger(__name__)
logger.setLevel(logging.INFO)


def map_units(
    function: Callable[[T], R],
    units: Sequence[T],
    *,
    seconds: float,
    done: Callable[[T], None],
) -> list[R]:
    """Runs a function on every unit: in threads of this process, or as a plan of Ray Data.

    A plan is for work so large that its processes save more than Ray's start takes. The results do
    not depend on the choice.

    Args:
        function: Does the work on one unit, in several threads at once. It writes files itself and
            should return little. It may be called again for a unit whose worker was lost.
        units: The arguments of the calls.
        seconds: How long one core would be busy with all of them, roughly.
        done: Called in this process with each finished unit, in order.

    Returns:
        What the function returned, in the order of the units.

    Raises:
        Exception: The error of the first unit that fails; units that have not begun are not
            started.
    """
    if _is_worth_a_plan(seconds):
        mapped = _in_tasks(function, units, seconds)
    else:
        from joblib import cpu_count

        mapped = prefetch(function, units, 2 * cpu_count(), cpu_count())
    return _finish(mapped, units, done)


def map_with_workers(
    make: Make[T, R],
    units: Sequence[T],
    *,
    seconds: float,
    done: Callable[[T], None],
) -> list[R]:
    """Does the work on every unit with a network: on a cluster if it is long, or in this process.

    The results do not depend on which of the two it chooses.

    Args:
        make: Loads the network; the function that it returns does the work on a unit, which may be
            called again if a worker was lost.
        units: The arguments of the calls.
        seconds: How long one core would be busy with all of them, roughly.
        done: Called in this process with each finished unit, in order.

    Returns:
        What the function returned, in the order of the units.

    Raises:
        Exception: The error of the first unit that fails.
    """
    run = in_actors if is_worth_a_cluster(seconds - ACTOR) else in_threads
    return _finish(run(make, units), units, done)


def _finish(mapped: Generator[R], units: Sequence[T], done: Callable[[T], None]) -> list[R]:
    """Takes the results of units as they come, in order, and calls `done` with each unit."""
    results = []
    with closing(mapped):
        for unit, result in zip(units, mapped, strict=True):
            results.append(result)
            done(unit)
    return results


def in_actors(make: Make[T, R], units: Sequence[T]) -> Generator[R]:
    """Runs units on a cluster, with an actor on each GPU, or on each CPU if there are none.

    Args:
        make: Loads a network, once in each actor.
        units: The arguments of the calls. One may be called again whose worker was lost.

    Yields:
        The results, in order.

    Raises:
        Exception: The error of the first unit that fails.
    """
    gpus = int(_resources().get("GPU", 0))
    actors = min(gpus or cpus(), len(units))
    from ray.data import ActorPoolStrategy

    options = {
        "fn_constructor_args": (make, "cuda" if gpus else "cpu"),
        "num_gpus" if gpus else "num_cpus": 1,
        # Where others have CPUs, it starts with as many actors as it can have.
        "compute": ActorPoolStrategy(min_size=1, initial_size=actors, max_size=actors),
    }
    yield from _results(_Actor, units, BLOCKS_PER_ACTOR * actors, options)


def in_threads(make: Make[T, R], units: Iterable[T]) -> Generator[R]:
    """Runs as many calls at once as there are cores, or one on each GPU.

    Args:
        make: Loads a network.
        units: The arguments of the calls.

    Yields:
        The results, in order.
    """
    import torch
    from joblib import cpu_count

    threads = torch.get_num_threads()
    idle: SimpleQueue[Callable[[T], R]] = SimpleQueue()

    def call(unit: T) -> R:
        torch.set_num_threads(THREADS)  # applies to the calling thread alone
        worker = idle.get()
        try:
            return worker(unit)
        finally:
            idle.put(worker)

    try:
        on_gpus = [make(f"cuda:{gpu}") for gpu in range(torch.cuda.device_count())]
        workers = on_gpus or [make("cpu")] * cpu_count()
        for worker in workers:
            idle.put(worker)
        yield from prefetch(call, units, 2 * len(workers), len(workers))
    finally:
        torch.set_num_threads(threads)


def connect() -> None:
    """Connects to Ray and sets Ray Data up: little output, results in order."""
    ray_cluster.connect()
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    context.execution_options.preserve_order = True
    for handler in logging.getLogger("ray.data").handlers:
        if handler.name == "console":  # the other one writes to the folder of Ray's session
            handler.setLevel(logging.CRITICAL)  # errors of tasks are raised


def is_worth_a_cluster(seconds: float) -> bool:
    """Whether there is a cluster, and work for it that would keep a core busy for so long."""
    return seconds > START and ray_cluster.is_remote() and cpus() > 0


def _is_worth_a_plan(seconds: float) -> bool:
    if ray_cluster.is_remote():  # its cores are not counted here
        return is_worth_a_cluster(seconds)
    from joblib import cpu_count

    return bool(seconds - seconds / cpu_count() > START)


def _in_tasks(function: Callable[[T], R], units: Sequence[T], seconds: float) -> Generator[R]:
    """Runs units as tasks of Ray."""
    blocks = max(BLOCKS_PER_CPU * cpus(), math.ceil(seconds / BLOCK_SECONDS))
    from ray.data import TaskPoolStrategy

    options = {"compute": TaskPoolStrategy(size=min(blocks, len(units), AT_ONCE))}
    call = _Actor(lambda device: function, "cpu").__call__
    yield from _results(call, units, blocks, options)


def _results(
    call: Any, units: Sequence[Any], blocks: int, options: dict[str, Any]
) -> Generator[Any]:
    """Runs a plan that calls something on each unit; raises the first error of a unit."""
    connect()
    from ray.data import from_items

    rows = [{"unit": pickle.dumps(unit)} for unit in units]
    source = from_items(rows, override_num_blocks=min(blocks, len(units)))
    # Ray Data would reserve a share of the cluster's CPUs and object store, which it learns only
    # after a second: until then it runs one task at a time. The plan needs almost no memory, and
    # `compute` limits its tasks. A task waits in Ray for a free CPU and, once it runs, for nothing
    # else: beside training workers the tasks end later, but they end.
    source.context.op_resource_reservation_enabled = False
    plan = source.map(call, **options, **place())
    with closing(_rows(plan)) as outcomes:  # an error ends the plan at once
        for row in outcomes:
            result, error = pickle.loads(row["outcome"])
            if error is not None:
                raise error
            yield result
    logger.info("%s", plan.stats())


def _rows(plan: Any) -> Generator[dict[str, Any]]:
    yield from plan.iter_rows()


def place() -> dict[str, Any]:
    """Where the work of a plan runs: anywhere, or here where others do not see the store."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    if not (ray_cluster.is_remote() and machines.blind_machines()):
        return {}
    _say_that_it_stays()
    here = ray.get_runtime_context().get_node_id()
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=False)}


@cache
def _say_that_it_stays() -> None:
    console.say(
        "Only this machine of the cluster works, but for the workers of a training: the others do "
        f"not see the store in {escape(str(find_project().store))}. Set RETRAIN_STORE to a folder "
        "that all machines see."
    )


def _resources() -> dict[str, float]:
    """The resources of Ray where the work of a plan runs."""
    connect()
    import ray

    resources: dict[str, float] = ray.cluster_resources()
    return machines.this_node()["Resources"] if place() else resources


def cpus() -> int:
    """The CPUs of Ray where the work of a plan runs; it may have still to grow."""
    return math.ceil(_resources().get("CPU", 0 if place() else 1))


class _Actor:
    """Makes a function with its first unit, and calls it with each."""

    def __init__(self, make: Make[Any, Any], device: str) -> None:
        self._make, self._device = make, device

    @cached_property
    def _function(self) -> Callable[[Any], Any]:
        return self._make(self._device)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """A row with a call's result, or with its error, whose class Ray Data would replace."""
        outcome: tuple[Any, Exception | None]
        try:
            outcome = self._function(pickle.loads(row["unit"])), None
        except Exception as error:
            error.add_note(f"In a worker of Ray:\n{''.join(traceback.format_exception(error))}")
            outcome = None, error
        return {"outcome": pickle.dumps(outcome)}
