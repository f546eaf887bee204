"""The flows, one module each; in each, the flow has the name of its module."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from retrain.flow import StepsFlow


def flow_with_steps(name: str) -> "StepsFlow":
    """The flow of a name, which consists of steps."""
    flow: StepsFlow = getattr(import_module(f"flows.{name}"), name)
    return flow
