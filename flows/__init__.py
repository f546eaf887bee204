"""The flows, one module each.

A module has the Prefect flow under its own name, and `PIPELINE` if the flow consists of steps.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from retrain.runs.pipeline import Pipeline


def flow_names() -> list[str]:
    """The names of the flows, which are the names of the modules in this package."""
    return sorted(module.name for module in iter_modules(__path__))


def pipelines() -> "dict[str, Pipeline]":
    """The flows that consist of steps, by name."""
    modules = {name: import_module(f"flows.{name}") for name in flow_names()}
    return {
        name: module.PIPELINE for name, module in modules.items() if hasattr(module, "PIPELINE")
    }
