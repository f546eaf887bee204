"""Spreading a step's work on the images over Ray."""

import pickle
from collections.abc import Callable, Sequence
from typing import TypeVar

from retrain import cluster

T = TypeVar("T")
R = TypeVar("R")


def run_tasks(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Runs a function on every item, spread over Ray by Ray Data.

    Args:
        function: Does the work on one item. What it returns should be small: files it writes
            itself.
        items: Each is a task.

    Returns:
        What the function returned, in the order of the items.

    Raises:
        ValueError: As the function does.
    """
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
    results = [
        pickle.loads(each["result"]) for each in sorted(done, key=lambda each: each["number"])
    ]
    for result in results:
        if isinstance(result, ValueError):
            raise result
    return results
