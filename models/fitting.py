"""Tries a classifier of `transformers` on the images, and gives it pretrained weights."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from math import isqrt
from typing import TYPE_CHECKING, Any

from models import fine_tuned
from models.architecture import Architecture, vision_config

if TYPE_CHECKING:
    from torch import Tensor

# More of its parameters must not be missing from the files of a pretrained network.
MOST_MISSING = 0.1

logger = logging.getLogger(__name__)
logger.setLevel(logging.INFO)


@dataclass(frozen=True)
class Fit:
    """What is special about some of a network's parameters.

    Attributes:
        idle: The names of those that no gradient reaches.
        last: Of those of a pretrained network that depend on the number of classes.
        grids: By name, those of a pretrained network that depend on the size of the images: how
            many position embeddings are not of patches, and the sides of the grid of patches that
            it was trained with and of the grid that the images have.
    """

    idle: frozenset[str]
    last: frozenset[str]
    grids: Mapping[str, tuple[int, int, int]]


def fit(architecture: Architecture, shape: tuple[int, int, int]) -> Fit:
    """Checks that a network takes the images, with random weights or with pretrained ones.

    Raises:
        ValueError: It does not, or a value of its config is wrong.
    """
    config = architecture.config_for(shape, 2)
    if not architecture.is_pretrained:
        what = f"a network of type {architecture.type} with these sizes"
        return Fit(_idle(_try(architecture, config, shape, what)), frozenset(), {})
    own = architecture.config_for(None, 2)
    what, size = f"this {architecture.type}", getattr(vision_config(own), "image_size", None)
    if size is not None:
        height, width = (size, size) if isinstance(size, int) else size
        what += f", made for {height} x {width} pixels,"
    network = _try(architecture, config, shape, what)
    before = _shapes(architecture.without_memory(own))
    more_classes = _shapes(architecture.without_memory(architecture.config_for(None, 3)))
    grids: dict[str, tuple[int, int, int]] = {}
    for name, after in _shapes(network).items():
        if after == before[name]:
            continue
        grid = _grid(name, before[name], after)
        if grid is None:
            raise ValueError(
                f"{architecture.place}: {what} cannot take images of {shape[0]} x {shape[1]} "
                f"pixels: its {name} fits no other size. Set images.size={height}."
            )
        grids[name] = grid
    last = frozenset(name for name in before if before[name] != more_classes[name])
    return Fit(_idle(network), last, grids)


def _idle(network: Any) -> frozenset[str]:
    """The parameters that a backward pass gave no gradient, by name."""
    return frozenset(name for name, each in network.named_parameters() if each.grad is None)


def _try(architecture: Architecture, config: Any, shape: tuple[int, int, int], what: str) -> Any:
    """The network for two classes, in training; `what` names it in the message of an error."""
    return fine_tuned.try_without_memory(
        lambda: architecture.kind(config).train(),
        shape,
        f"{architecture.place}: {what} cannot take",
    )


def _shapes(network: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(each.shape) for name, each in network.named_parameters()}


def _grid(
    name: str, before: tuple[int, ...], after: tuple[int, ...]
) -> tuple[int, int, int] | None:
    """The grids of position embeddings, (…, tokens, width), of two sizes; see `Fit`.

    Returns:
        None for other parameters.
    """
    if "position_embedding" not in name or before[-1] != after[-1]:
        return None
    for extra in range(3):  # none, the token of the class, that of distillation
        old, new = before[-2] - extra, after[-2] - extra
        if isqrt(old) ** 2 == old and isqrt(new) ** 2 == new:
            return extra, isqrt(old), isqrt(new)
    return None


def load(
    architecture: Architecture, where: Mapping[str, Any], last: frozenset[str]
) -> dict[str, "Tensor"]:
    """The weights of a pretrained network, float32 and of its own sizes.

    Args:
        architecture: What it is made from.
        where: As `fine_tuned.loading` gives it.
        last: The parameters whose weights do not matter.

    Raises:
        ValueError: The files hold weights of another network.
    """
    import torch

    network, found = architecture.kind.from_pretrained(
        **where,
        config=architecture.config_for(None, 2),
        dtype=torch.float32,
        ignore_mismatched_sizes=True,  # of the last layer
        output_loading_info=True,
    )
    sizes = {name: each.numel() for name, each in network.named_parameters()}
    missing = {*found["missing_keys"], *(each[0] for each in found["mismatched_keys"])}
    absent = sum(size for name, size in sizes.items() if name in missing - last)
    if absent > MOST_MISSING * sum(sizes.values()):
        raise ValueError(
            f"{architecture.place} is called a {architecture.type}, but its files hold other "
            f"weights: they lack {min(missing - last)}, for example."
        )
    weights: dict[str, Tensor] = network.state_dict()
    return weights


def take_over(weights: Mapping[str, "Tensor"], classifier: Any, fit: Fit, place: str) -> None:
    """Gives a network the pretrained weights, all but those of the last layer.

    Args:
        weights: Of the pretrained network.
        classifier: The network, with random weights.
        fit: Of both.
        place: Of the network in the settings, for the log.
    """
    own = classifier.state_dict()
    taken = {name: weights[name] for name in own.keys() - fit.last}
    for name, grid in fit.grids.items():
        taken[name] = _interpolate(weights[name], *grid)
    if fit.grids:
        _, old, new = next(iter(fit.grids.values()))
        logger.info(
            "%s: the position embeddings are interpolated from %d x %d to %d x %d patches.",
            place, old, old, new, new,
        )  # fmt: skip
    classifier.load_state_dict(own | taken)


def _interpolate(positions: "Tensor", extra: int, old: int, new: int) -> "Tensor":
    """Position embeddings for another number of patches.

    Args:
        positions: (…, extra + old², width).
        extra: Tokens before those of the patches.
        old: Side of the grid of patches.
        new: The same, afterwards.

    Returns:
        (…, extra + new², width).
    """
    import torch

    kept, patches = positions[..., :extra, :], positions[..., extra:, :]
    width = positions.shape[-1]
    image = patches.reshape(1, old, old, width).permute(0, 3, 1, 2)
    image = torch.nn.functional.interpolate(image, (new, new), mode="bicubic", align_corners=False)
    patches = image.permute(0, 2, 3, 1).reshape(*positions.shape[:-2], new * new, width)
    return torch.cat((kept, patches), dim=-2)
