"""Tries the network of a function of the user's before a run: makes it, saves it and loads it.

It is loaded in another folder, where the files of the project are not: what would fail after the
training, or where the model is served, fails before the first step.
"""

from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import models
from models import custom, user_code
from models.custom import KEY
from retrain.workload import Model

if TYPE_CHECKING:
    from torch import Tensor

    from models.network import Network

CLASSES = 2
TOLERANCE = 1e-4  # of a logit


def faults(model: Model, shape: tuple[int, int, int], root: Path) -> Iterator[str]:
    """Finds what is wrong with the function, or with the network that it makes.

    Args:
        model: Which network; only those of the family `custom` are tried.
        shape: Height, width and channels of the images.
        root: The project's folder.

    Yields:
        At most one sentence.
    """
    if model.family != "custom":
        return
    settings = custom.Settings.model_validate(model.model_dump(exclude={"family"}))
    try:
        _rehearse(settings, shape, root)
    except ValueError as error:
        yield str(error)


def _rehearse(settings: custom.Settings, shape: tuple[int, int, int], root: Path) -> None:
    """Has the network answer before it is saved and after it is loaded.

    Raises:
        ValueError: It cannot, or its answers differ.
    """
    named = f"the network of {settings.factory}"
    user_code.find(settings.factory, KEY, root)
    with chdir(root):
        network = custom.build(settings, shape, CLASSES)
    answers = _logits(network, named, shape)
    with TemporaryDirectory() as folder, chdir(folder):
        with _saying(f"{named} cannot be saved"):
            models.save(
                network,
                Path(folder),
                family="custom",
                settings=settings.model_dump(),
                labels=[str(number) for number in range(CLASSES)],
                images={},
            )
        with _saying(
            f"{named} cannot be loaded on another machine, where all weights are in what is saved; "
            "the function gets pretrained=False if it has such a parameter, and the files of "
            "model.files"
        ):
            loaded = models.load(Path(folder)).module
    difference = (_logits(loaded, named, shape) - answers).abs().max().item()
    if difference > TOLERANCE:
        raise ValueError(
            f"{KEY}: {named} gives other answers after it was saved and loaded, by up to "
            f"{difference:.2g}: its state_dict lacks something that they depend on."
        )


def _logits(network: "Network", named: str, shape: tuple[int, int, int]) -> "Tensor":
    """What a network says of an image."""
    import torch

    image = torch.arange(shape[0] * shape[1] * shape[2]).remainder(256).to(torch.uint8)
    size = f"{shape[0]} x {shape[1]} pixels and {shape[2]} channels"
    with _saying(f"{named} failed on an image of {size}"), torch.inference_mode():
        logits: Tensor = network.eval()(image.reshape(1, *shape))
    if logits.shape != (1, CLASSES):
        raise ValueError(
            f"{KEY}: {named} returns {tuple(logits.shape)} for one image and {CLASSES} classes, "
            f"not (1, {CLASSES})."
        )
    return logits


@contextmanager
def _saying(what_failed: str) -> Iterator[None]:
    """Says in one line what failed, and why.

    Raises:
        ValueError: In place of any error.
    """
    try:
        yield
    except Exception as error:
        why = str(error).removeprefix(f"{KEY}: ")
        if not isinstance(error, ValueError) or why == str(error):
            why = user_code.said_by(error)
        raise ValueError(f"{KEY}: {what_failed}: {why.removesuffix('.')}.") from error
