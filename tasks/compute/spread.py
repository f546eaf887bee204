"""Spreading a step's work on the images over Ray, where there is enough of it.

The work is tasks of Ray's own, rather than a plan of Ray Data: names of files go in and finished
files are left behind, so there are no blocks to stream, and ten tasks take 0.02 s to spread where a
plan takes 0.2 s.
"""

import sys
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TypeVar

from retrain.servers import ray_cluster

T = TypeVar("T")
R = TypeVar("R")

# What Ray costs before it does anything, in seconds, measured on two cores: a Ray of our own has to
# start (4 to 8), and then the workers of this process's first tasks (1 to 2).
RAY_START = 5.0
RAY_WORKERS = 1.5
RAY_TASKS = 0.05
# Tasks that Ray knows of at once; more would only take memory here.
AT_ONCE = 1000

_workers_started = False


def run_tasks(function: Callable[[T], R], items: Sequence[T], *, seconds: float) -> list[R]:
    """Runs a function on every item: one after the other, or spread over Ray.

    It is spread where that is expected to end sooner. The results are the same.

    Args:
        function: Does the work on one item. What it returns should be small: files it writes
            itself.
        items: Each is a task.
        seconds: How long one core would be busy with all of them, roughly.

    Returns:
        What the function returned, in the order of the items.

    Raises:
        ValueError: As the function does; of the first item that fails.
    """
    if not _is_worth_ray(seconds):
        return [function(item) for item in items]
    return _run_on_ray(function, items)


def _is_worth_ray(seconds: float) -> bool:
    if ray_cluster.is_remote():  # it has cores that are not counted here
        return seconds > RAY_START
    from joblib import cpu_count

    overhead = RAY_TASKS
    if not _is_connected():
        overhead += RAY_START + RAY_WORKERS
    elif not _workers_started:
        overhead += RAY_WORKERS
    return bool(seconds - seconds / cpu_count() > overhead)


def _is_connected() -> bool:
    if "ray" not in sys.modules:
        return False
    import ray

    return bool(ray.is_initialized())


def _run_on_ray(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    global _workers_started
    ray_cluster.connect()
    import ray

    def call(item: T) -> tuple[R | None, ValueError | None]:
        try:
            return function(item), None
        except ValueError as error:  # it is the user's to mend; Ray would make it another class
            return None, error

    task = ray.remote(call)
    waiting = iter(items)
    running = deque(task.remote(item) for item in islice(waiting, AT_ONCE))
    results = []
    while running:
        result, error = ray.get(running.popleft())
        _workers_started = True
        if error is not None:
            for other in running:
                ray.cancel(other)
            raise error
        results.append(result)
        running.extend(task.remote(item) for item in islice(waiting, 1))
    return results
