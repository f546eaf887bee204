"""Does the same work on many units: in threads of this process, or with Ray Data if it is large.

Ray Data streams units of the data, which are names of files, to workers that write finished files.
Only the names and a small row for each result go through Ray's object store.
"""

import logging
import pickle
import traceback
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, TypeVar

from retrain.runs import console
from retrain.servers import ray_cluster

T = TypeVar("T")
R = TypeVar("R")
# Takes a device, `cpu`, `cuda` or one GPU (`cuda:1`), loads what the work needs, and returns the
# function that does the work on a unit. What it raises counts as raised by a unit.
Make = Callable[[str], Callable[[T], R]]

# PyTorch divides some sums among threads, so that results would depend on the machine's cores.
# Several forward passes at once use all cores, which is also faster.
THREADS = 1

# What Ray costs before any work, in seconds, on two cores: a local Ray starts (3 to 8), then Ray
# Data is imported and its workers start (3).
START = 8.0
# What a network takes for an image on a core, very roughly; it only decides where the work is done.
SECONDS_PER_IMAGE = 0.02
# Tasks of Ray at most. Many of them wait, which makes an autoscaling cluster grow. More would only
# slow Ray Data down.
TASKS = 1000


def each(
    make: Make[T, R], units: Sequence[T], *, seconds: float, on_gpus: bool = False
) -> Generator[R]:
    """Does the work on every unit: in threads of this process, or in workers of Ray Data.

    Ray is for work so large that it saves more than its start takes: on a cluster, or, without a
    network, in processes of this machine. The results do not depend on the choice.

    Args:
        make: Makes the function that does the work on one unit, in several threads at once. It
            should return little, and may be called again for a unit whose worker was lost.
        units: The arguments of the calls.
        seconds: How long one core would be busy with all of them, roughly.
        on_gpus: Whether the work is that of a network, and done on the GPUs if there are any.

    Yields:
        What the function returned, in the order of the units.

    Raises:
        UsageError: A machine of the cluster does not see the store.
        Exception: The error of the first unit that fails; units that have not begun are not
            started.
    """
    from joblib import cpu_count

    if ray_cluster.is_remote():
        is_worth_ray = seconds > START
    else:
        is_worth_ray = not on_gpus and seconds - seconds / cpu_count() > START
    run = _with_ray if is_worth_ray else _in_threads
    yield from run(make, units, on_gpus)


def each_counted(
    name: str,
    make: Make[T, R],
    units: Sequence[T],
    images: Sequence[int],
    *,
    seconds: float,
    on_gpus: bool = False,
) -> list[R]:
    """Does the work on every unit as `each` does, and shows how many images are done.

    Args:
        name: The name of the step.
        make: As `each` takes it.
        units: As `each` takes them.
        images: How many images each unit has.
        seconds: As `each` takes them.
        on_gpus: As `each` takes it.
    """
    results = []
    with console.counted(name, sum(images)) as show:
        done = each(make, units, seconds=seconds, on_gpus=on_gpus)
        for count, result in zip(images, done, strict=True):
            show(count)
            results.append(result)
    return results


def _in_threads(make: Make[T, R], units: Sequence[T], on_gpus: bool) -> Generator[R]:
    """Runs as many calls at once as there are cores, or one on each GPU."""
    from joblib import cpu_count

    gpus = 0
    if on_gpus:
        import torch

        gpus = torch.cuda.device_count()
    workers = [make(f"cuda:{gpu}") for gpu in range(gpus)] or [make("cpu")] * cpu_count()

    def call(numbered: tuple[int, T]) -> R:
        number, unit = numbered
        return workers[number % len(workers)](unit)

    with ThreadPoolExecutor(len(workers)) as pool:
        yield from pool.map(call, enumerate(units))


def _with_ray(make: Make[T, R], units: Sequence[T], on_gpus: bool) -> Generator[R]:
    """Runs the units as tasks of Ray; on GPUs as calls of actors, which load a network once."""
    connect()
    ray_cluster.check_store()
    import ray
    from ray.data import ActorPoolStrategy, TaskPoolStrategy, from_items

    gpus = int(ray.cluster_resources().get("GPU", 0)) if on_gpus else 0
    tasks = min(TASKS, len(units))
    rows = [{"unit": pickle.dumps(unit)} for unit in units]
    source = from_items(rows, override_num_blocks=tasks)
    # Ray Data would reserve a share of the cluster's CPUs and object store, which it learns only
    # after a second: until then it runs one task at a time. The plan needs almost no memory, and
    # `compute` limits its tasks. A task waits in Ray for a free CPU and, once it runs, for nothing
    # else: beside training workers the tasks end later, but they end.
    source.context.op_resource_reservation_enabled = False
    arguments = ray.cloudpickle.dumps(make), "cuda" if gpus else "cpu"
    if gpus:
        pool = ActorPoolStrategy(size=min(gpus, tasks))
        plan = source.map(_Worker, fn_constructor_args=arguments, compute=pool, num_gpus=1)
    else:
        pool = TaskPoolStrategy(size=tasks)
        plan = source.map(_Worker(*arguments).__call__, compute=pool)
    for row in plan.iter_rows():
        result, error = pickle.loads(row["outcome"])
        if error is not None:
            raise error
        yield result


class _Worker:
    """Makes a function in its process, if there is none yet, and calls it with each unit."""

    def __init__(self, make: bytes, device: str) -> None:
        self._make, self._device = make, device

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """A row with a call's result, or with its error, whose class Ray Data would replace."""
        outcome: tuple[Any, Exception | None]
        try:
            outcome = _made(self._make, self._device)(pickle.loads(row["unit"])), None
        except Exception as error:
            error.add_note(f"In a worker of Ray:\n{''.join(traceback.format_exception(error))}")
            outcome = None, error
        return {"outcome": pickle.dumps(outcome)}


@lru_cache(maxsize=1)
def _made(make: bytes, device: str) -> Callable[[Any], Any]:
    """The function that does the work; kept for a process's next unit."""
    function: Callable[[Any], Any] = pickle.loads(make)(device)
    return function


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
