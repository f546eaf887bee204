"""Finds the version of pretrained weights: of a folder, or of a model on the Hugging Face hub.

A name is a folder, or else `owner/name` on the hub, with `@revision` for a branch, tag or commit.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

# The files that `transformers` may read: the configuration and the weights.
READ = ("*.json", "*.safetensors", "*.bin")
CONFIG = "config.json"
SECONDS = 10.0  # to wait for the hub

HUB_NAME = re.compile(r"(?P<model>[\w.-]+(/[\w.-]+)?)(@(?P<revision>[^@]+))?")
COMMIT = re.compile("[0-9a-f]{40}")


def find_folder(name: str, root: Path) -> Path | None:
    """The folder that a name means; None if there is none.

    Args:
        name: As in the settings.
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
        name: As in the settings.
        root: Where a relative path starts.

    Returns:
        SHA-256 (hex) over the files of a folder that can be read by `transformers`; or the commit
        of a model on the hub, which is asked for it, or else its cache on this machine.

    Raises:
        FileNotFoundError: There is no such folder or model.
        ConnectionError: The hub cannot be reached, and the cache does not have the model.
    """
    if folder := find_folder(name, root):
        return _digest(folder)
    if not HUB_NAME.fullmatch(name):
        raise FileNotFoundError(f"there is no folder {name}")
    model, revision = split_name(name)
    return revision if COMMIT.fullmatch(revision) else _commit(model, revision)


def version(name: str | None, given: str | None, root: Path) -> str | None:
    """The version of the weights that a network starts from.

    Args:
        name: As in the settings; None without pretrained weights.
        given: The version in the settings; if there is one, no other is looked for.
        root: Where a relative path starts.

    Returns:
        None without any, or if it is not known; `faults` says why.
    """
    if name is None or given is not None:
        return given
    try:
        return find_version(name, root)
    except (FileNotFoundError, ConnectionError):
        return None


def faults(
    name: str, given: str | None, root: Path, check: Callable[[dict[str, Any]], None]
) -> Iterator[str]:
    """Finds faults of pretrained weights, as far as they are known before a download.

    Args:
        name: As in the settings.
        given: The version in the settings.
        root: Where a relative path starts.
        check: Takes the configuration of the network; a ValueError says what is wrong with it.

    Yields:
        A sentence for each fault.
    """
    try:
        found = given or find_version(name, root)
        if find_folder(name, root) and found != find_version(name, root):
            yield f"model.pretrained: {name} does not hold model.pretrained_version {given}."
        if config := read_config(name, found, root):
            check(config)
    except (ValueError, FileNotFoundError, ConnectionError) as error:
        text = str(error).removeprefix("model.pretrained: ").removesuffix(".")
        yield f"model.pretrained: {text}."


def read_config(name: str, version: str, root: Path) -> dict[str, Any] | None:
    """The configuration of a pretrained network; None if it has to be downloaded first.

    Args:
        name: As in the settings.
        version: As `find_version` returns it.
        root: Where a relative path starts.

    Raises:
        ValueError: It is missing, or is not JSON.
    """
    folder = find_folder(name, root)
    if folder is None:
        path = _cached(split_name(name)[0]) / "snapshots" / version / CONFIG
        if not path.is_file():
            return None
    else:
        path = folder / CONFIG
        if not path.is_file():
            raise ValueError(f"{name} has no {CONFIG}")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise ValueError(f"{CONFIG} of {name} cannot be read")
    return config


def _digest(folder: Path) -> str:
    files = {path for pattern in READ for path in folder.glob(pattern) if path.is_file()}
    return digest_of({path.name: path for path in files})


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
        size: In bytes.
        changed: When it changed, in ns. With the size, it tells whether to read it again.
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
        kept = _cached(model) / "refs" / revision
        if kept.is_file():
            return kept.read_text(encoding="utf-8").strip()
        raise ConnectionError(
            f"there is no folder {model}, and the Hugging Face hub cannot be reached"
        ) from error


def _cached(model: str) -> Path:
    """The folder of a model in the hub's cache on this machine."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE, f"models--{model.replace('/', '--')}")
