"""The flow `verify`: reads the packages of all registered versions.

retrain verify [--repair]

It has no steps, and the command runs it without Prefect, like `rollback`; the command reads the
store, the ledgers and the lineages, too.
"""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from retrain.project import find_project
from tasks.promote.repair import DamagedPackage, damaged_packages

if TYPE_CHECKING:
    from prefect import Flow

NAME = "verify"
HELP = "Reads the packages of all registered versions."

__all__ = ["DamagedPackage", "damaged_packages"]


def run(repair: bool = False) -> list[dict[str, Any]]:
    """Reads the packages, inside a Prefect flow run.

    Args:
        repair: Make those again that have changed, where the store has the bytes.

    Returns:
        Those that had changed.
    """
    return [asdict(each) for each in damaged_packages(find_project(), repair)]


def __getattr__(name: str) -> "Flow[..., list[dict[str, Any]]]":
    """Gives Prefect its flow when it is asked for: importing Prefect takes a second.

    Raises:
        AttributeError: The name is another one.
    """
    if name != NAME:
        raise AttributeError(name)
    from prefect import Flow

    return Flow(run, NAME, description=HELP)
