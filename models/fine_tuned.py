"""Loads pretrained networks with `transformers`: where they are, how they see pixels, what fails.

The messages are for the person who wrote `model.pretrained`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from models import pretrained

HALF = (0.5,)  # mean and standard deviation for pixels in [0, 1]


@contextmanager
def loading(name: str, version: str | None) -> Iterator[dict[str, Any]]:
    """Says where a pretrained network is; explains in one line why it cannot be loaded.

    Nothing is printed meanwhile.

    Args:
        name: As in the settings; a relative path starts in the working directory.
        version: As `pretrained.find_version` returned it.

    Yields:
        The arguments that `from_pretrained` takes for it.

    Raises:
        ValueError: There is no such network, or it is not of this version any more.
        OSError: The hub cannot be reached.
    """
    folder = pretrained.find_folder(name, Path())
    if folder:
        where: dict[str, Any] = {"pretrained_model_name_or_path": str(folder)}
    else:
        model, revision = pretrained.split_name(name)
        where = {"pretrained_model_name_or_path": model, "revision": version or revision}
    with quiet(), _explained(name):
        yield where
    if folder and version and pretrained.find_version(name, Path()) != version:
        raise ValueError(f"model.pretrained: {name} has changed since the run started.")


def normalisation(
    where: Mapping[str, Any], channels: int
) -> tuple[Sequence[float], Sequence[float]]:
    """The mean and the standard deviation that a pretrained network was trained with.

    Nothing else of its image processor counts: the project prepares the images.

    Args:
        where: As `loading` gives it.
        channels: Of the images.

    Returns:
        A value for each channel, for pixels in [0, 1].
    """
    given = processor(where)
    mean, std = given.get("image_mean", HALF), given.get("image_std", HALF)
    if not given.get("do_normalize", True):
        mean, std = (0.0,), (1.0,)
    if len(mean) != channels:  # one value for all of them
        mean, std = [mean[0]] * channels, [std[0]] * channels
    return mean, std


def processor(where: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a pretrained network's image processor; none, if it has no such file.

    Args:
        where: As `loading` gives it.
    """
    from transformers.image_processing_base import ImageProcessingMixin

    try:
        given, _ = ImageProcessingMixin.get_image_processor_dict(**where)
    except OSError as error:
        if _is_out_of_reach(error):
            raise
        return {}
    return dict(given)


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Replaces errors about a pretrained model by a message of one line."""
    try:
        yield
    except OSError as error:
        if _is_out_of_reach(error):
            raise OSError(
                f"model.pretrained: there is no folder {name}, and the Hugging Face hub cannot be "
                "reached. Set HF_ENDPOINT to a mirror, or model.pretrained to a folder with the "
                "network's config.json and model.safetensors."
            ) from error
        raise ValueError(
            f"model.pretrained: {name} is neither a folder with a model nor one on the Hugging "
            f"Face hub: {str(error).splitlines()[0]}"
        ) from error


def _is_out_of_reach(error: OSError) -> bool:
    from huggingface_hub.errors import (
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    cause = error.__cause__
    return isinstance(cause, LocalEntryNotFoundError | HfHubHTTPError) and not isinstance(
        cause, RepositoryNotFoundError | RevisionNotFoundError
    )


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
