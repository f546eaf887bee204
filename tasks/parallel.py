"""Spreading a step's work on the images over Ray, where there is enough of it."""

import os
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from retrain import cluster

T = TypeVar("T")
R = TypeVar("R")

# What Ray costs before it does anything, in seconds, measured on two cores: a Ray of our own has to
# start (4 to 8), and then the workers of this process's first plan (1 to 2). Any plan takes 0.2.
RAY_START = 5.0
RAY_WORKERS = 1.5
RAY_PLAN = 0.25

_workers_started = False


def run_tasks(function: Callable[[T], R], items: Sequence[T], *, seconds: float) -> list[R]:
    """Runs a function on every item: one after the other, or spread over Ray by Ray Data.

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
    if os.environ.get("RAY_ADDRESS"):  # a cluster has cores that are not counted here
        return seconds > RAY_START
    from joblib import cpu_count

    overhead = RAY_PLAN
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
    cluster.connect()
    import pyarrow as pa
    import ray

    def run(batch: pa.Table) -> pa.Table:
        [number], [item] = batch["number"].to_pylist(), batch["item"].to_pylist()
        result: R | ValueError
        try:
            result = function(pickle.loads(item))
        except ValueError as error:  # it is the user's to mend; Ray would make it another class
            result = error
        return pa.table({"number": [number], "result": [pickle.dumps(result)]})

    # As bytes, because Ray Data has a warning and a slow path for Python's objects.
    tasks = [{"number": number, "item": pickle.dumps(item)} for number, item in enumerate(items)]
    done = (
        ray.data.from_items(tasks, override_num_blocks=len(tasks))
        .map_batches(run, batch_size=None, batch_format="pyarrow")
        .take_all()
    )
    _workers_started = True
    results = [
        pickle.loads(each["result"]) for each in sorted(done, key=lambda each: each["number"])
    ]
    for result in results:
        if isinstance(result, ValueError):
            raise result
    return results
