"""Which families there are, for whoever reads a workload.

No step imports this module: a family more is no change of what the others train.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from pydantic import BaseModel

FAMILIES = ("vit",)


def settings_class(family: str) -> type[BaseModel]:
    """What a family's settings in `params.yaml` have to be like."""
    declared: type[BaseModel] = _module(family).Settings
    return declared


def flops(family: str, settings: Mapping[str, Any], shape: tuple[int, int, int]) -> float:
    """Floating-point operations of a forward pass over one image.

    Args:
        family: One of `FAMILIES`.
        settings: As the family's class declares them.
        shape: Height, width and channels of the images.
    """
    module = _module(family)
    counted: float = module.flops(module.Settings.model_validate(settings), shape)
    return counted


def faults(family: str, settings: Mapping[str, Any], shape: tuple[int, int, int]) -> list[str]:
    """A sentence for each setting that does not go with the images; the arguments are `flops`'s."""
    module = _module(family)
    found: list[str] = module.faults(module.Settings.model_validate(settings), shape)
    return found


def _module(family: str) -> Any:
    assert family in FAMILIES, family
    return import_module(f"models.{family}")
