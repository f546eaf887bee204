"""Tries the network of a function of the user's before a run: makes it, saves it and loads it.

It is loaded as on another machine, which has the saved files and the libraries, but neither the
project's other files nor what was downloaded here. So what would fail after the training, or where
the model is served, fails before the first step.
"""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import models
from models import custom, user_code
from models.custom import KEY
from retrain.workload import Model

if TYPE_CHECKING:
    from torch import Tensor

    from models.network import Network

CLASSES = 2
CODE = {".py", ".pyc", ".so"}
INSTALLED = ("site-packages", "dist-packages")
# Of the system and of Python, which other machines have, too.
SYSTEM = tuple(
    map(os.path.realpath, ("/dev", "/etc", "/proc", "/sys", "/usr", sys.prefix, sys.base_prefix))
)
TOLERANCE = 1e-4  # of a logit

_watched = threading.local()


def faults(model: Model, shape: tuple[int, int, int], root: Path) -> Iterator[str]:
    """What is wrong with the function, or with the network that it makes; nothing without one.

    Args:
        model: Which network.
        shape: Height, width and channels of the images.
        root: The project's folder.
    """
    if model.family != "custom":
        return
    settings = custom.Settings.model_validate(model.model_dump(exclude={"family"}))
    try:
        user_code.find(settings.factory, KEY, root)
        with chdir(root):
            network = custom.build(settings, shape, CLASSES)
        logits = _logits(settings, network, shape)
        with TemporaryDirectory() as folder:
            _save(settings, network, Path(folder))
            loaded = _load(settings, Path(folder))
        difference = (_logits(settings, loaded, shape) - logits).abs().max().item()
        if difference > TOLERANCE:
            raise ValueError(
                f"{KEY}: the network of {settings.factory} gives other answers after it was saved "
                f"and loaded, by up to {difference:.2g}: its state_dict lacks something that they "
                "depend on."
            )
    except ValueError as error:
        yield str(error)


def _logits(settings: custom.Settings, network: "Network", shape: tuple[int, int, int]) -> "Tensor":
    """What a network says of an image."""
    import torch

    image = torch.arange(shape[0] * shape[1] * shape[2]).remainder(256).to(torch.uint8)
    try:
        with torch.inference_mode():
            logits: Tensor = network.eval()(image.reshape(1, *shape))
    except Exception as error:
        raise ValueError(
            f"{KEY}: the network of {settings.factory} failed on an image of "
            f"{shape[0]} x {shape[1]} pixels and {shape[2]} channels: {user_code.said_by(error)}."
        ) from error
    if logits.shape != (1, CLASSES):
        raise ValueError(
            f"{KEY}: the network of {settings.factory} returns {tuple(logits.shape)} for one image "
            f"and {CLASSES} classes, not (1, {CLASSES})."
        )
    return logits


def _save(settings: custom.Settings, network: "Network", folder: Path) -> None:
    try:
        models.save(
            network,
            folder,
            family="custom",
            settings=settings.model_dump(),
            labels=[str(number) for number in range(CLASSES)],
            images={},
        )
    except Exception as error:
        raise ValueError(
            f"{KEY}: the network of {settings.factory} cannot be saved: {user_code.said_by(error)}."
        ) from error


def _load(settings: custom.Settings, folder: Path) -> "Network":
    with chdir(folder), _elsewhere(folder) as asked:
        try:
            return models.load(folder).module
        except Exception as error:
            said = str(error) if isinstance(error, ValueError) else user_code.said_by(error)
            why = f"the function {asked[0]}" if asked else said.removeprefix(f"{KEY}: ")
            how = ""
            if asked or isinstance(error.__cause__, OSError):
                how = (
                    " All weights are in what is saved: give the function a parameter "
                    "`pretrained`, which is False then, and name in model.files what else it reads."
                )
            raise ValueError(
                f"{KEY}: a saved network of {settings.factory} cannot be loaded on another "
                f"machine: {why.removesuffix('.')}.{how}"
            ) from error


@contextmanager
def _elsewhere(folder: Path) -> Iterator[list[str]]:
    """Lets this thread find no server, and no file that another machine may not have.

    Files that Python does not open itself are not noticed.

    Args:
        folder: What the other machine has.

    Yields:
        A list; gets what was asked for.
    """
    _install()
    _watched.asked, _watched.places = [], (*SYSTEM, str(folder.resolve()))
    try:
        yield _watched.asked
    finally:
        del _watched.asked


@cache
def _install() -> None:
    # It stays until the process ends, and does nothing outside `_elsewhere`.
    sys.addaudithook(_hook)


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    """Raises an error where something is asked for that is not there."""
    asked: list[str] | None = getattr(_watched, "asked", None)
    if asked is None:
        return
    if event == "socket.getaddrinfo":
        asked.append(f"looks for the server {arguments[0]}")
        raise ConnectionError("there is no network")
    if event == "socket.connect":
        asked.append(f"connects to {arguments[1]}")
        raise ConnectionError("there is no network")
    if event == "open" and isinstance(arguments[0], str | bytes):
        path = os.path.realpath(os.fsdecode(arguments[0]))
        reads = not arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if reads and not _is_everywhere(Path(path)) and Path(path).is_file():
            asked.append(f"reads {path}")
            raise FileNotFoundError(path)


def _is_everywhere(path: Path) -> bool:
    return (
        path.suffix in CODE
        or any(part in path.parts for part in INSTALLED)
        or any(path.is_relative_to(place) for place in _watched.places)
    )
