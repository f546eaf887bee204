"""Lists the families, for the code that reads a workload.

No step imports this module, so a new family does not change the steps of the others.
"""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import BaseModel

FAMILIES = ("auto", "custom", "embedding_head", "vit")


def settings_class(family: str) -> type[BaseModel]:
    """The pydantic model of a family's settings in `params.yaml`."""
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


def training_flops(family: str, settings: Mapping[str, Any], shape: tuple[int, int, int]) -> float:
    """The same, of the part that is trained, over what it takes; the arguments of `flops`."""
    module = _module(family)
    count = getattr(module, "training_flops", module.flops)
    counted: float = count(module.Settings.model_validate(settings), shape)
    return counted


def faults(family: str, settings: Mapping[str, Any], shape: tuple[int, int, int]) -> list[str]:
    """A sentence for each setting that does not fit the images; the arguments of `flops`."""
    module = _module(family)
    found: list[str] = module.faults(module.Settings.model_validate(settings), shape)
    return found


def pretrained_version(family: str, settings: Mapping[str, Any], root: Path) -> str | None:
    """The version of the weights that a network starts from; None without any.

    Args:
        family: One of `FAMILIES`.
        settings: As the family's class declares them.
        root: The project's folder; relative paths start there.
    """
    module = _module(family)
    found: str | None = module.pretrained_version(module.Settings.model_validate(settings), root)
    return found


def _module(family: str) -> Any:
    assert family in FAMILIES, family
    return import_module(f"models.{family}")
