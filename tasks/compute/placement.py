"""Chooses the CPUs of each training worker in a cluster, and says what the workers wait for."""

from collections.abc import Mapping, Sequence


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


def waits(workers: int, resources: Mapping[str, float]) -> str:
    """The line about a training whose workers find no place.

    Args:
        workers: How many workers were asked for.
        resources: The resources of each worker, as Ray names them.
    """
    import ray

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
