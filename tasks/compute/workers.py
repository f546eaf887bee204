"""Runs work with workers that each load a network once: actors of Ray Data, or threads."""

from collections.abc import Callable, Generator, Iterable, Sequence
from queue import SimpleQueue
from typing import TypeVar

from tasks.compute import ray_data
from tasks.compute.prefetch import prefetch

T = TypeVar("T")
R = TypeVar("R")
# Takes a device, loads a network there, and returns what does the work with it.
Make = Callable[[str], Callable[[T], R]]

# PyTorch divides some sums among threads, so that results would depend on the machine's cores.
# Several forward passes at once use all cores, which is also faster.
THREADS = 1


def map_units(
    make: Make[T, R], units: Sequence[T], *, seconds: float, done: Callable[[T], None]
) -> list[R]:
    """Does the work on every unit with a network, by actors of Ray Data or in this process.

    The results are the same.

    Args:
        make: Loads the network on a device (`cpu`, `cuda` or one GPU, `cuda:1`); the function that
            it returns does the work on a unit, which may be called again if a worker was lost.
        units: The arguments of the calls.
        seconds: How long one core would be busy with all of them, roughly.
        done: Called in this process with each finished unit, in order.

    Returns:
        What the function returned, in the order of the units.

    Raises:
        Exception: The error of the first unit that fails.
    """
    in_order = ray_data.map_by_actors if ray_data.are_actors_worth(seconds) else in_threads
    return ray_data.finish(in_order(make, units), units, done)


def in_threads(make: Make[T, R], units: Iterable[T], most: int | None = None) -> Generator[R]:
    """Runs as many calls at once as there are cores, or one on each GPU.

    Args:
        make: As for `map_units`.
        units: The arguments of the calls.
        most: How many calls are made at once at most.

    Yields:
        The results, in order.
    """
    import torch
    from joblib import cpu_count

    gpus, threads = torch.cuda.device_count(), torch.get_num_threads()
    try:
        if gpus:
            workers = [make(f"cuda:{gpu}") for gpu in range(gpus)][:most]
        else:
            workers = ([make("cpu")] * cpu_count())[:most]
        idle: SimpleQueue[Callable[[T], R]] = SimpleQueue()
        for worker in workers:
            idle.put(worker)

        def call(unit: T) -> R:
            torch.set_num_threads(THREADS)  # applies to the calling thread alone
            worker = idle.get()
            try:
                return worker(unit)
            finally:
                idle.put(worker)

        yield from prefetch(call, units, 2 * len(workers), len(workers))
    finally:
        torch.set_num_threads(threads)
