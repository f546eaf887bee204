"""The flows, one module each.

A module has the Prefect flow under its own name, and `PIPELINE` if the flow consists of steps.
"""

from pkgutil import iter_modules


def flow_names() -> list[str]:
    """The names of the flows, which are the names of the modules in this package."""
    return sorted(module.name for module in iter_modules(__path__))
