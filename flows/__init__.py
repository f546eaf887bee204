"""The flows, one module each. A module has `PIPELINE`, and the Prefect flow under its own name."""

from pkgutil import iter_modules


def flow_names() -> list[str]:
    """The names of the flows, which are the names of the modules in this package."""
    return sorted(module.name for module in iter_modules(__path__))
