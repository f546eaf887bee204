"""A network that a function of the user's makes."""

from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import Any

from torch import nn

from models import user_code
from models.network import Network
from models.user_code import FACTORY


def make(
    config: Mapping[str, Any],
    mean: list[float],
    std: list[float],
    files: Mapping[str, Path],
    *,
    loaded: bool,
) -> Network:
    """Makes a network by a call of the user's function.

    Args:
        config: The name of the function as `factory`, its `arguments`, and those that are `files`,
            each with the name that the file is saved under.
        mean: Of each channel.
        std: Of each channel.
        files: The paths of the files, by these names.
        loaded: Whether the weights are loaded afterwards, so that none have to be pretrained.

    Raises:
        ValueError: The function cannot be imported, fails, or returns no module.
    """
    factory = config["factory"]
    function = user_code.find(factory, FACTORY)
    arguments = config["arguments"] | {
        name: files[stored] for name, stored in config["files"].items()
    }
    if loaded and "pretrained" in {*arguments, *signature(function).parameters}:
        arguments["pretrained"] = False
    try:
        module = function(**arguments)
    except Exception as error:
        raise ValueError(
            f"{FACTORY}: {factory} failed: {user_code.describe_error(error)}."
        ) from error
    if not isinstance(module, nn.Module):
        raise ValueError(
            f"{FACTORY}: {factory} returned a {type(module).__name__}, not a torch.nn.Module."
        )
    return Network(module, config, mean, std, files)


def rebuild(description: Mapping[str, Any], files: Mapping[str, Path]) -> Network:
    """Makes a network as it was saved, its weights still to be loaded."""
    return make(description["config"], description["mean"], description["std"], files, loaded=True)
