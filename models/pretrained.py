"""Pretrained networks: of a folder, or of a model on the Hugging Face hub.

A name is a folder, or else `owner/name` on the hub, with `@revision` for a branch, tag or commit.
The messages are for the person who wrote `model.pretrained`. Nothing that is served imports this.
"""

import hashlib
import json
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator
from safetensors import SafetensorError, safe_open

from models.family import Family, Name, Shape

# The files that `transformers` may read: the configuration and the weights.
READ = ("*.json", "*.safetensors", "*.bin")
# Of these `transformers` reads the first kind that is there.
WEIGHTS = (
    re.compile(r"model(-\d+-of-\d+)?\.safetensors"),
    re.compile(r"pytorch_model(-\d+-of-\d+)?\.bin"),
)
LFS_POINTER = b"version https://git-lfs"  # what a file begins with that Git LFS has not fetched
CONFIG = "config.json"
SECONDS = 10.0  # to wait for the hub

COMMIT = re.compile("[0-9a-f]{40}")

HALF = (0.5,)  # mean and standard deviation for pixels in [0, 1]


class Pretrained(Family):
    """The settings of a network that may start from pretrained weights."""

    pretrained: Name | None = Field(
        default=None,
        description=(
            "A model on the Hugging Face hub, `owner/name` or `owner/name@revision`, or a folder "
            "that holds one; a relative path is below the project. Its last layer is replaced."
        ),
    )
    pretrained_version: Annotated[str, Field(pattern="^[0-9a-f]{40,64}$")] | None = Field(
        default=None,
        description=(
            "The commit on the hub, or the digest of the folder's files. It is found before a "
            "run; if it is given, no other version is used."
        ),
    )

    @model_validator(mode="after")
    def _has_a_version_of_something(self) -> "Pretrained":
        if self.pretrained is None and self.pretrained_version is not None:
            raise ValueError("pretrained_version: is of no use without model.pretrained")
        return self

    def find_version(self, root: Path) -> str | None:
        """The version of the pretrained weights; one of the hub that is given is not asked for."""
        name, version = self.pretrained, self.pretrained_version
        if name is None or (version and not find_folder(name, root)):
            return version
        try:
            found = find_version(name, root)
        except (FileNotFoundError, ConnectionError) as error:
            raise ValueError(f"model.pretrained: {error}.") from error
        if version not in (None, found):
            raise ValueError(
                f"model.pretrained: {name} does not hold model.pretrained_version {version}."
            )
        return found


def find_folder(name: str, root: Path) -> Path | None:
    """The folder that a name means; None if there is none.

    Args:
        name: The name of the model in the settings.
        root: Where a relative path starts.
    """
    path = root / Path(name).expanduser()
    return path if path.is_dir() else None


def split_name(name: str) -> tuple[str, str]:
    """The model and the revision of a name on the hub."""
    model, _, revision = name.partition("@")
    return model, revision or "main"


def find_version(name: str, root: Path) -> str:
    """The version of pretrained weights.

    Args:
        name: The name of the model in the settings.
        root: Where a relative path starts.

    Returns:
        SHA-256 (hex) over the files of a folder that can be read by `transformers`; or the commit
        of a model on the hub, which is asked for it, or else its cache on this machine.

    Raises:
        FileNotFoundError: There is no such folder or model, or its weights are not there whole.
        ConnectionError: The hub cannot be reached, and the cache does not have the model.
    """
    if folder := find_folder(name, root):
        files = {path.name: path for pattern in READ for path in folder.glob(pattern)}
        files = {name: path for name, path in files.items() if path.is_file()}
        kinds = [[path for name, path in files.items() if kind.fullmatch(name)] for kind in WEIGHTS]
        for path in next(filter(None, kinds), []):
            if damage := _damage(path):
                raise FileNotFoundError(f"{name}: {path.name} {damage}")
        return files_digest(files)
    model, revision = split_name(name)
    return revision if COMMIT.fullmatch(revision) else _download(model, revision).parent.name


def _damage(path: Path) -> str | None:
    """What is wrong with a file of weights, as far as its beginning and its end tell."""
    with path.open("rb") as file:
        beginning = file.read(len(LFS_POINTER))
    if beginning == LFS_POINTER:
        return "is a Git LFS pointer in place of weights: git lfs pull"
    if path.suffix == ".safetensors":
        try:
            with safe_open(path, "np"):
                return None
        except SafetensorError as error:
            return f"is damaged or cut short ({error}): copy or download it again"
    # PyTorch's files are archives, and once were pickled objects.
    is_whole = zipfile.is_zipfile(path) if beginning[:2] == b"PK" else beginning[:1] == b"\x80"
    return None if is_whole else "is damaged or cut short: copy or download it again"


def files_digest(files: Mapping[str, Path]) -> str:
    """SHA-256 (hex) over the names and the content of files.

    Raises:
        OSError: One cannot be read.
    """
    contents = {
        name: _sha256(path, path.stat().st_size, path.stat().st_mtime_ns)
        for name, path in sorted(files.items())
    }
    return hashlib.sha256(json.dumps(contents).encode()).hexdigest()


@cache
def _sha256(path: Path, size: int, changed: int) -> str:
    """The hash of a file; a run asks several times, and a second is a GB or less.

    Args:
        path: The file.
        size: The size of the file, in bytes.
        changed: When the file changed, in ns. With the size, it tells whether to read it again.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@cache
def _download(model: str, revision: str) -> Path:
    """The configuration of a model, in the hub's cache on this machine.

    Returns:
        Its path, in a folder that is named by the commit.

    Raises:
        FileNotFoundError: The hub has no such model or revision, or does not show it.
        ConnectionError: The hub cannot be reached, and the cache does not have the revision.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.errors import (
        EntryNotFoundError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    is_out_of_reach = False
    try:
        # A download would be tried again for half a minute.
        get_hf_file_metadata(hf_hub_url(model, CONFIG, revision=revision), timeout=SECONDS)
    except HFValidationError:  # it is no name of a model
        raise FileNotFoundError(f"there is no folder {model}") from None
    except (EntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError):
        raise FileNotFoundError(
            f"there is no folder {model}, and the Hugging Face hub gives no such model at revision "
            f"{revision}; if it is private or gated, log in first: hf auth login"
        ) from None
    except Exception:  # of the library for HTTP
        is_out_of_reach = True
    options = {"revision": revision, "local_files_only": is_out_of_reach}
    try:
        return Path(hf_hub_download(model, CONFIG, **options))
    except LocalEntryNotFoundError as error:
        raise ConnectionError(
            f"there is no folder {model}, and the Hugging Face hub cannot be reached"
        ) from error


def read_config(name: str, version: str | None, root: Path) -> Any:
    """The config of a pretrained network, as it was published.

    Args:
        name: The name of the model in the settings.
        version: The version of the weights, as `find_version` returns it.
        root: Where a relative path starts.

    Raises:
        ValueError: It cannot be read, or `transformers` has no such network.
        OSError: There is no such model, or the hub cannot be reached.
    """
    from transformers import AutoConfig

    model, revision = split_name(name)
    folder = find_folder(name, root) or _download(model, version or revision).parent
    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # whatever the code of an architecture stumbles over
        raise ValueError(f"model.pretrained: {name}: {first_line(error)}.") from error


def load(
    kind: Any, name: str, version: str | None, **options: Any
) -> tuple[Any, set[str], Sequence[float], Sequence[float]]:
    """Loads a pretrained network in fp32, without a word on the console.

    Args:
        kind: A class of `transformers`.
        name: The name of the model in the settings; a relative path starts in the working
            directory.
        version: The version of the weights, as `find_version` returns it.
        options: What else `from_pretrained` takes.

    Returns:
        The network; the names of its tensors that the files lack, or have in another size; and the
        mean and the standard deviation of its pixels, as `_follow_processor` gives them.

    Raises:
        ValueError: The folder does not hold this version any more.
        OSError: There is no such network, or the hub cannot be reached.
    """
    import torch

    quiet()
    folder, (model, revision) = find_folder(name, Path()), split_name(name)
    place = {"pretrained_model_name_or_path": folder or model, "revision": version or revision}
    network, info = kind.from_pretrained(
        **place,
        **options,
        dtype=torch.float32,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
    )
    if version and folder and find_version(name, Path()) != version:
        raise ValueError(f"model.pretrained: {name} has changed since the run started.")
    lacking = {*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])}
    return network, lacking, *_follow_processor(place, network)


def _follow_processor(
    place: Mapping[str, Any], network: Any
) -> tuple[Sequence[float], Sequence[float]]:
    """Brings the values of stored pixels to those that a pretrained network was trained with.

    Its image processor rescales and normalises, each channel for itself, which one mean and one
    standard deviation do as well. Where it turns RGB into BGR, the network's first convolution is
    turned instead: from then on the network takes RGB, wherever it is saved or exported.

    Args:
        place: Where the files are, as `from_pretrained` takes it.
        network: The network with its pretrained weights; the first convolution may be changed.

    Returns:
        The mean and the standard deviation for pixels in [0, 1], a value for each channel; 0.5
        without a processor.
    """
    import torch

    own_config = getattr(network.config, "vision_config", network.config)
    channels = getattr(own_config, "num_channels", 3)
    processor = _image_processor(place)
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
    # One value is for all channels.
    return (
        mean if len(mean) == channels else mean[:1] * channels,
        std if len(std) == channels else std[:1] * channels,
    )


def _image_processor(place: Mapping[str, Any]) -> Any:
    """The image processor of a pretrained network; None if it has no file of one."""
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    from transformers import AutoImageProcessor

    try:
        return AutoImageProcessor.from_pretrained(**place, backend="pil")  # with its defaults
    except OSError as error:
        # The hub cannot be reached. What came from a cache, or a folder, may have no such file.
        if isinstance(error.__cause__, LocalEntryNotFoundError | HfHubHTTPError):
            raise
        return None


def try_on_meta(make: Callable[[], Any], shape: Shape, beginning: str) -> Any:
    """Has a new network take two images, and go back, on PyTorch's device without memory.

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

    quiet()
    height, width, channels = shape
    try:
        with torch.device("meta"):
            network = make()
        output = network(torch.zeros(2, channels, height, width, device="meta"))
        getattr(output, "logits", output).sum().backward()
    except Exception as error:  # whatever the code of an architecture stumbles over
        raise ValueError(
            f"{beginning} images of {height} x {width} pixels and {channels} channels "
            f"({first_line(error)})."
        ) from error
    return network


def first_line(error: Exception) -> str:
    """The beginning of an error's message; the name of its class if there is none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2]).removesuffix(".")[:200] or type(error).__name__


def quiet() -> None:
    """Keeps progress bars and reports of `transformers` off the console, from now on."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
