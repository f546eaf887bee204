"""The flows, a module each. A module has `PIPELINE`, and the Prefect flow under its own name."""

from pkgutil import iter_modules


def flow_names() -> list[str]:
    """The names of the flows, which are those of the modules here."""
    return sorted(module.name for module in iter_modules(__path__))
