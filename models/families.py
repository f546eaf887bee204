"""Lists the families, for the code that reads a workload.

No step imports this module, so a new family does not change the steps of the others.
"""

from importlib import import_module

from models.family import Family

FAMILIES = ("auto", "custom", "embedding_head", "vit")


def settings_class(family: str) -> type[Family]:
    """The class of the settings of a family, one of `FAMILIES`."""
    assert family in FAMILIES, family
    settings: type[Family] = import_module(f"models.{family}").Settings
    return settings
