"""Where in a cluster the workers of a training find a place, and what is said while they wait."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from time import monotonic

from retrain.runs import console

SECONDS = 60.0  # between two lines about workers that wait
TICK_SECONDS = 0.5


def cpus_of_worker(nodes: Sequence[Mapping[str, float]], workers: int, on_gpus: bool) -> float:
    """The CPUs of each worker: the most with which all workers fit into half of each machine.

    Args:
        nodes: The resources of each machine, as Ray names them.
        workers: How many there are.
        on_gpus: Whether each has a GPU too.

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


@contextmanager
def telling_that_it_waits(asked: Path, workers: int, each: Mapping[str, float]) -> Iterator[None]:
    """Says every minute that a training has no place yet, what it asks for and what there is.

    Args:
        asked: A file that exists while workers have been asked for and have not started.
        workers: How many.
        each: The resources of each.
    """
    with console.telling_meanwhile(_tell, asked, workers, each):
        yield


def _tell(asked: Path, workers: int, each: Mapping[str, float], over: Event) -> None:
    began = monotonic()
    while not over.wait(TICK_SECONDS):
        if not asked.exists():
            began = monotonic()
        elif monotonic() - began > SECONDS:
            began = monotonic()
            console.say(_line(workers, each))


def _line(workers: int, each: Mapping[str, float]) -> str:
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    free = ray.available_resources()
    there = (
        f"{free.get(name, 0):g} of {sum(node.get(name, 0) for node in nodes):g} {name}s"
        for name in ("CPU", "GPU")
    )
    return (
        f"train waits for Ray to start its workers: {workers} with {each['CPU']:g} CPUs "
        f"{'and a GPU ' if each['GPU'] else ''}each. Free are {' and '.join(there)}, in "
        f"{len(nodes)} machines."
    )
