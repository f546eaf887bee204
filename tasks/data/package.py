"""Identifies a model's package, because the weights alone do not decide its answers.

A package is an MLflow model with the folder `artifacts/model` as `models.save` wrote it, the file
`artifacts/serving.json` with the precision of its answers and the SHA-256 of the model's files, and
below `code/` the modules that it runs. Beside them, and without a part in its identity,
`artifacts/classes.json` has the number of images of each class in the data that it was trained and
evaluated on.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import models
from models.image import RESAMPLING
from retrain.code import code_digests
from retrain.file_io import sha256_of
from retrain.step import json_digest

SERVING = "artifacts/serving.json"
CLASSES = "artifacts/classes.json"
MODEL = "artifacts/model"
CODE = "code"
FILES = (models.WEIGHTS, models.LABELS, models.IMAGES, models.MODEL)


def code_of(model: Path, root: Path | None = None) -> dict[str, str]:
    """The digests of the modules that a model's package runs, by dotted name.

    Args:
        model: A folder that `models.save` wrote.
        root: The folder that holds the package `models`; the project's own if None.
    """
    saved = json.loads((model / models.MODEL).read_text(encoding="utf-8"))
    modules = models.modules_of(saved["family"], saved["settings"])
    return code_digests(["models.serving", *modules], root=root)


def package_digest(model: Path, precision: str, code: Mapping[str, str]) -> str:
    """The identity of a package: SHA-256 (hex) of all that decides its answers.

    Args:
        model: A folder that `models.save` wrote.
        precision: `fp32` or `bf16`.
        code: The digests of its modules, as `code_of` gives them.
    """
    return json_digest(serving_of(model, precision) | {"code": dict(code)})


def serving_of(model: Path, precision: str) -> dict[str, Any]:
    """What the file `SERVING` of a package says; the arguments are those of `package_digest`."""
    files = {name: sha256_of(model / name) for name in _names(model)}
    return {"files": files, "precision": precision}


def _names(model: Path) -> list[str]:
    """The files of a saved model, and those that its network is made with."""
    made_with = sorted(path.name for path in (model / models.FILES).glob("*"))
    return [*FILES, *(f"{models.FILES}/{name}" for name in made_with)]


def size_of(model: Path) -> int:
    """The bytes of a model in its package.

    The code is left out, about 0.1 MB: a comment there changes its size, but not what is served.

    Args:
        model: A folder that `models.save` wrote.
    """
    return sum((model / name).stat().st_size for name in _names(model))


def classes_digest(names: Iterable[str]) -> str:
    """SHA-256 (hex) of the names of classes, in any order."""
    return json_digest(sorted(names))


def classes_of(package: Path) -> dict[str, int]:
    """The classes of a package in the order of its answers, with the images that each had."""
    labels = json.loads((package / MODEL / models.LABELS).read_text(encoding="utf-8"))
    counts = json.loads((package / CLASSES).read_text(encoding="utf-8"))
    return {name: counts[name] for name in labels}


def images_of(model: Path) -> dict[str, Any]:
    """What images a model takes, for people.

    Args:
        model: A folder that `models.save` wrote.

    Returns:
        `size`, `channels`, `resize` and `resampling`; and of each channel `mean` and `std`, for
        pixels in [0, 1].
    """
    images: dict[str, Any] = json.loads((model / models.IMAGES).read_text(encoding="utf-8"))
    network = json.loads((model / models.MODEL).read_text(encoding="utf-8"))["network"]
    return images | {"resampling": RESAMPLING, "mean": network["mean"], "std": network["std"]}


def fault(package: Path, digest: str) -> str | None:
    """What is wrong with a package; None if nothing is.

    Args:
        package: The folder of the package.
        digest: The registered identity.
    """
    try:
        is_whole = digest_of_folder(package) == digest
    except (OSError, ValueError, KeyError, AssertionError) as error:
        return f"is damaged: {error!r}, in {package}"
    return None if is_whole else f"is not what was registered: its files in {package} have changed"


def digest_of_folder(package: Path) -> str:
    """The identity of a package as it was written."""
    model = package / MODEL
    serving = json.loads((package / SERVING).read_text(encoding="utf-8"))
    code = code_of(model, package / CODE)
    return package_digest(model, serving["precision"], code)
