"""Finds registered packages that have changed, and makes them again from what the store has."""

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from retrain import tracking
from retrain.errors import DamagedArtifactError
from retrain.project import Project
from retrain.registry import packages, versions
from retrain.registry.versions import ModelVersion
from retrain.store import Store
from retrain.verify import Verifier
from tasks.data import package
from tasks.promote.check import (
    MLMODEL,
    Example,
    check_files,
    example_for,
    is_file_with,
    known_files,
)
from tasks.promote.package import write_package

PRECISIONS = ("fp32", "bf16")


@dataclass(frozen=True)
class DamagedPackage:
    """A package that is not what was registered.

    Attributes:
        model: The name of the model.
        version: The number of the version.
        what: What is wrong with the package.
        repaired: Whether it was made again.
        why: Why it could not be made again; None if it was, or nobody asked for it.
    """

    model: str
    version: int
    what: str
    repaired: bool = False
    why: str | None = None


def damaged_packages(project: Project, repair: bool) -> list[DamagedPackage]:
    """Reads the packages of all versions of the registry, but for those that were removed.

    Args:
        project: The clone that the registry belongs to.
        repair: Make those again that have changed.

    Returns:
        Those that had changed.
    """
    damaged = []
    for version in versions.every(project):
        if version.removed:
            continue
        with TemporaryDirectory() as place:
            example = example_for(project, version)
            try:
                check_files(packages.fetch(project, version, Path(place)), version, example)
                continue
            except (OSError, ValueError) as error:
                damage = str(error).rstrip(".")
            why = _repair(project, version, example) if repair else None
        repaired = repair and why is None
        damaged.append(DamagedPackage(version.name, version.version, damage, repaired, why))
    return damaged


def _repair(project: Project, version: ModelVersion, example: Example | None) -> str | None:
    """Makes the files of a package again; returns why that cannot be, or None.

    The package is written anew from the output of the training, in each precision. Of what was
    written, each file that is the same bytes as were registered replaces a damaged one.
    """
    folder = tracking.local_path(packages.uri_of(project, version))
    if folder is None:
        return "its files are not on this machine"
    store = Store.of(project)
    trained = store.find("train", version.train_key) if version.train_key else None
    if trained is None or trained.digest != version.train_digest:
        return "the store does not have its training any more"
    folder.mkdir(parents=True, exist_ok=True)
    counts: dict[str, int] = {}
    with suppress(OSError, ValueError):  # of the images of each class; without them if damaged
        counts = json.loads((folder / package.CLASSES).read_text(encoding="utf-8"))
    try:
        Verifier(store).check([trained])
        with TemporaryDirectory(dir=folder.parent) as place:
            for precision in PRECISIONS:
                rebuilt = Path(place, precision)
                model = trained.folder / "model"
                write_package(model, precision, counts, rebuilt, version.min_confidence)
                _replace_damaged(folder, rebuilt, known_files(version, example))
        check_files(folder, version, example)
    except (DamagedArtifactError, OSError, ValueError) as error:
        return str(error).rstrip(".")
    return None


def _replace_damaged(folder: Path, rebuilt: Path, files: Mapping[str, str]) -> None:
    """Replaces each damaged file of a package by one that was written, if that is the right one."""
    if not (folder / MLMODEL).is_file():
        shutil.copyfile(rebuilt / MLMODEL, folder / MLMODEL)
    for name, sha256 in files.items():
        if is_file_with(rebuilt / name, sha256) and not is_file_with(folder / name, sha256):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (rebuilt / name).replace(folder / name)
