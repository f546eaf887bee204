"""Loads pretrained networks with `transformers`: where they are, how they see pixels, what fails.

The messages are for the person who wrote `model.pretrained`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from models import pretrained

HALF = (0.5,)  # mean and standard deviation for pixels in [0, 1]


@contextmanager
def loading(name: str, version: str | None) -> Iterator[dict[str, Any]]:
    """Says where a pretrained network is. Nothing is printed while it is loaded.

    Args:
        name: The name of the network in the settings; a relative path starts in the working
            directory.
        version: The version of the weights, as `pretrained.find_version` returned it.

    Yields:
        The arguments that `from_pretrained` takes for it.

    Raises:
        ValueError: The folder does not hold this version any more.
    """
    folder = pretrained.find_folder(name, Path())
    if folder:
        where: dict[str, Any] = {"pretrained_model_name_or_path": str(folder)}
    else:
        model, revision = pretrained.split_name(name)
        where = {"pretrained_model_name_or_path": model, "revision": version or revision}
    with quiet():
        yield where
    if folder and version and pretrained.find_version(name, Path()) != version:
        raise ValueError(f"model.pretrained: {name} has changed since the run started.")


def follow_processor(
    where: Mapping[str, Any], network: Any, channels: int
) -> tuple[Sequence[float], Sequence[float]]:
    """Brings the values of stored pixels to those that a pretrained network was trained with.

    Its image processor rescales and normalises, each channel for itself, which one mean and one
    standard deviation do as well. Where it turns RGB into BGR, the network's first convolution is
    turned instead: from then on the network takes RGB, wherever it is saved or exported.

    Args:
        where: Where the files are, as `loading` gives it.
        network: The network with its pretrained weights; the first convolution may be changed.
        channels: The number of channels of the images.

    Returns:
        The mean and the standard deviation for pixels in [0, 1], a value for each channel; 0.5
        without a processor.
    """
    import torch

    processor = image_processor(where)
    if processor is None:
        return HALF * channels, HALF * channels
    if getattr(processor, "do_flip_channel_order", False):
        convolution = next(
            value for value in network.modules() if isinstance(value, torch.nn.Conv2d)
        )
        with torch.no_grad():
            convolution.weight.copy_(convolution.weight.flip(1))
    white = 255 * processor.rescale_factor if processor.do_rescale else 255.0
    least = 1 if getattr(processor, "rescale_offset", False) else 0
    # EfficientNet's divides by the standard deviation a second time.
    times = bool(processor.do_normalize) + getattr(processor, "include_top", False)
    means = processor.image_mean if processor.do_normalize else (0.0,)
    mean = [(value + least) / white for value in means]
    std = [value**times / white for value in processor.image_std]
    if len(mean) != channels:  # one value for all of them
        mean = mean[:1] * channels
    if len(std) != channels:
        std = std[:1] * channels
    return mean, std


def image_processor(where: Mapping[str, Any]) -> Any:
    """The image processor of a pretrained network; None if it has no file of one.

    Args:
        where: Where the files are, as `loading` gives it.
    """
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    from transformers import AutoImageProcessor

    try:
        return AutoImageProcessor.from_pretrained(**where, backend="pil")  # with its defaults
    except OSError as error:
        # The hub cannot be reached. What came from a cache, or a folder, may have no such file.
        if isinstance(error.__cause__, LocalEntryNotFoundError | HfHubHTTPError):
            raise
        return None


def first_line(error: Exception) -> str:
    """The beginning of an error's message; the name of its class if there is none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2]).removesuffix(".")[:200] or type(error).__name__


def try_without_memory(make: Callable[[], Any], shape: tuple[int, int, int], beginning: str) -> Any:
    """Has a new network take two images, and go back, with tensors that have shapes but no values.

    Args:
        make: Makes the network.
        shape: Height, width and channels of the images.
        beginning: The beginning of the message for images that the network does not take.

    Returns:
        The network, with a gradient for each parameter that its output depends on.

    Raises:
        ValueError: The network does not take such images.
    """
    import torch

    height, width, channels = shape
    try:
        with torch.device("meta"):
            network = make()
        output = network(torch.zeros(2, channels, height, width, device="meta"))
        getattr(output, "logits", output).sum().backward()
    # Whatever the code of an architecture stumbles over.
    except Exception as error:
        raise ValueError(
            f"{beginning} images of {height} x {width} pixels and {channels} channels "
            f"({first_line(error)})."
        ) from error
    return network


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps progress bars and reports of `transformers` off the console."""
    from transformers.utils import logging

    verbosity, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bar:
            logging.enable_progress_bar()
