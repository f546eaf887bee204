"""Finds the version of pretrained weights: of a folder, or of a model on the Hugging Face hub.

A name is a folder, or else `owner/name` on the hub, with `@revision` for a branch, tag or commit.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

# The files that `transformers` may read: the configuration and the weights.
READ = ("*.json", "*.safetensors", "*.bin")
CONFIG = "config.json"
SECONDS = 10.0  # to wait for the hub

HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?(@[^@]+)?")
COMMIT = re.compile("[0-9a-f]{40}")

Name = Annotated[str, Field(min_length=1, max_length=4096)]


class Pretrained(BaseModel):
    """The settings of a network that may start from pretrained weights."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

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
            "The commit on the hub, or the digest of the folder's files. It is found when a "
            "workload is read; if it is given, no other version is used."
        ),
    )

    @model_validator(mode="after")
    def _has_a_version_of_something(self) -> "Pretrained":
        if self.pretrained is None and self.pretrained_version is not None:
            raise ValueError("pretrained_version: is of no use without model.pretrained")
        return self


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
        FileNotFoundError: There is no such folder or model.
        ConnectionError: The hub cannot be reached, and the cache does not have the model.
    """
    if folder := find_folder(name, root):
        files = {path.name: path for pattern in READ for path in folder.glob(pattern)}
        return digest_of({name: path for name, path in files.items() if path.is_file()})
    if not HUB_NAME.fullmatch(name):
        raise FileNotFoundError(f"there is no folder {name}")
    model, revision = split_name(name)
    return revision if COMMIT.fullmatch(revision) else _commit(model, revision)


def pretrained_version(settings: Pretrained, root: Path) -> str | None:
    """The version of the pretrained weights of a network; None without any, or if it is not known.

    Args:
        settings: The settings of the network; a version in them is taken as it is.
        root: Where a relative path starts.
    """
    name = settings.pretrained
    if name is None or settings.pretrained_version is not None:
        return settings.pretrained_version
    try:
        return find_version(name, root)
    except (FileNotFoundError, ConnectionError):
        return None  # `pretrained_faults` says why


def pretrained_faults(
    settings: Pretrained, shape: tuple[int, int, int], root: Path
) -> Iterator[str]:
    """Finds faults of pretrained weights, as far as they are known without `transformers`.

    Args:
        settings: The settings of the network, with the version of the weights.
        shape: Height, width and channels of the images.
        root: Where a relative path starts.

    Yields:
        A sentence for each fault.
    """
    name, set_version = settings.pretrained, settings.pretrained_version
    if name is None:
        return
    try:
        version = set_version or find_version(name, root)
        if find_folder(name, root) and version != find_version(name, root):
            yield f"model.pretrained: {name} does not hold model.pretrained_version {set_version}."
        if config := read_config(name, version, root):
            check_config(name, config, shape[2])
    except (ValueError, FileNotFoundError, ConnectionError) as error:
        text = str(error).removeprefix("model.pretrained: ").removesuffix(".")
        yield f"model.pretrained: {text}."


def check_config(name: str, config: Mapping[str, Any], channels: int) -> None:
    """Checks that a published configuration has a type, and is for images of some channels.

    Args:
        name: The name of the model in the settings.
        config: The configuration of the model, as it was published.
        channels: The number of channels of the images.

    Raises:
        ValueError: The configuration has no type, or is for other images.
    """
    if not isinstance(config.get("model_type"), str):
        raise ValueError(f"model.pretrained: {name} is a model without a type.")
    vision = config.get("vision_config")
    own_channels = (vision if isinstance(vision, Mapping) else config).get("num_channels", 3)
    if own_channels != channels:
        raise ValueError(
            f"model.pretrained: {name} takes images of {own_channels} channels, but "
            f"images.channels is {channels}."
        )


def read_config(name: str, version: str, root: Path) -> dict[str, Any] | None:
    """The configuration of a pretrained network; None if it has to be downloaded first.

    Args:
        name: The name of the model in the settings.
        version: The version of the weights, as `find_version` returns it.
        root: Where a relative path starts.

    Raises:
        ValueError: The configuration is missing, or is not JSON.
    """
    folder = find_folder(name, root)
    path = folder / CONFIG if folder else _cached(split_name(name)[0], version)
    if path is None:
        return None
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{name} has no {CONFIG}") from None
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise ValueError(f"{CONFIG} of {name} cannot be read")
    return config


def digest_of(files: Mapping[str, Path]) -> str:
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
def _commit(model: str, revision: str) -> str:
    """The commit of a revision on the hub.

    Raises:
        FileNotFoundError: The hub has no such model or revision, or does not show it.
        ConnectionError: The hub cannot be reached, and the cache does not have the revision.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        return str(HfApi().model_info(model, revision=revision, timeout=SECONDS).sha)
    except (HFValidationError, RepositoryNotFoundError, RevisionNotFoundError):
        raise FileNotFoundError(
            f"there is no folder {model}, and the Hugging Face hub gives no such model at revision "
            f"{revision}; if it is private or gated, log in first: hf auth login"
        ) from None
    except Exception as error:  # its library for HTTP has its own kinds
        if cached := _cached(model, revision):
            return cached.parent.name
        raise ConnectionError(
            f"there is no folder {model}, and the Hugging Face hub cannot be reached"
        ) from error


def _cached(model: str, revision: str) -> Path | None:
    """The configuration of a model in the hub's cache; its folder is named by the commit."""
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(model, CONFIG, revision=revision)
    return Path(path) if isinstance(path, str) else None
