"""Lists the families, for the code that reads a workload.

No step imports this module, so a new family does not change the steps of the others.
"""

from importlib import import_module
from typing import Any

from pydantic import BaseModel

FAMILIES = ("auto", "custom", "embedding_head", "vit")


def module_of(family: str) -> Any:
    """The module of a family, one of `FAMILIES`; the docstring of `models` says what it has."""
    assert family in FAMILIES, family
    return import_module(f"models.{family}")


def flops(module: Any, settings: BaseModel, shape: tuple[int, int, int]) -> tuple[float, float]:
    """Floating-point operations of a forward pass over one image.

    Args:
        module: The module of the family.
        settings: The settings of the network, as the family declares them.
        shape: Height, width and channels of the images.

    Returns:
        The operations of the part that is trained, over what it takes; and those of the whole
        network, which are infinite if the family does not say.
    """
    total = module.flops(settings, shape) if hasattr(module, "flops") else float("inf")
    if hasattr(module, "training_flops"):
        return module.training_flops(settings, shape), total
    return total, total


def faults(module: Any, settings: BaseModel, shape: tuple[int, int, int]) -> list[str]:
    """A sentence for each setting that does not fit the images, without importing torch."""
    return [*module.faults(settings, shape)] if hasattr(module, "faults") else []
