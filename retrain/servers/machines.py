"""The machines of the cluster of Ray that this process is connected to."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from socket import gethostname
from tempfile import NamedTemporaryFile, gettempdir
from typing import Any

from retrain.errors import UsageError
from retrain.project import find_project


def training_nodes() -> list[dict[str, Any]]:
    """The machines on which Ray may start workers, as Ray describes them."""
    import ray

    return [
        node
        for node in ray.nodes()
        if node["Alive"] and (node["Resources"].get("CPU") or node["Resources"].get("GPU"))
    ]


@cache
def blind_machines() -> tuple[str, ...]:
    """The machines of the cluster that do not see the store of the project: their names.

    Only machines count on which workers may start.
    """
    store, nodes = find_project().store, training_nodes()
    store.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=store) as file:
        place = Path(file.name)
        answers = on_each(nodes, lambda: place.exists())
    return tuple(
        f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
        for node, is_seen in zip(nodes, answers, strict=True)
        if not is_seen
    )


def node_root() -> Path:
    """The store of a machine of the cluster that does not see the one of the run.

    It is the folder that `RETRAIN_STORE` names there, or a temporary one.

    Raises:
        UsageError: Another user of the machine has made the temporary one.
    """
    if named := os.environ.get("RETRAIN_STORE"):
        return Path(named)
    temporary = Path(gettempdir()) / f"retrain-{os.getuid()}"
    temporary.mkdir(mode=0o700, exist_ok=True)
    if temporary.lstat().st_uid != os.getuid():
        raise UsageError(
            f"{temporary} on {gethostname()} belongs to another user. Set RETRAIN_STORE there to a "
            "folder of your own."
        )
    return temporary / "store"


def on_each(nodes: Sequence[Mapping[str, Any]], function: Callable[[], Any]) -> list[Any]:
    """Calls a function on each of some machines, in a task that takes no CPU."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(num_cpus=0)(function)
    places = (NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in nodes)
    answers: list[Any] = ray.get(
        [task.options(scheduling_strategy=place).remote() for place in places]
    )
    return answers
