"""Finds registered packages that have changed, and makes them again from what the store has."""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from retrain import atomic, tracking
from retrain.errors import DamagedArtifactError
from retrain.project import Project
from retrain.registry import packages, versions
from retrain.registry.versions import ModelVersion
from retrain.store import Artifact, Store
from retrain.verify import Verifier
from tasks.data import package
from tasks.promote.check import (
    MLMODEL,
    Example,
    check_files,
    damaged_files,
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
        version: Its number.
        what: What is wrong with it.
        repaired: Whether it was made again.
        why: Why it could not be made again; None if it was, or nobody asked for it.
    """

    model: str
    version: int
    what: str
    repaired: bool = False
    why: str | None = None


def damaged_packages(project: Project, repair: bool) -> list[DamagedPackage]:
    """Reads the packages of all versions of the registry.

    Args:
        project: The clone that the registry belongs to.
        repair: Make those again that have changed.

    Returns:
        Those that had changed.
    """
    found = []
    for version in versions.every(project):
        with TemporaryDirectory() as place:
            example = example_for(project, version, Path(place))
            what = _fault(project, version, example, Path(place))
            if what is None:
                continue
            why = _repair(project, version, example) if repair else None
        done = repair and why is None
        found.append(DamagedPackage(version.name, version.version, what, done, why))
    return found


def _fault(
    project: Project, version: ModelVersion, example: Example | None, place: Path
) -> str | None:
    try:
        check_files(packages.fetch(project, version, place), version, example)
    except (OSError, ValueError) as error:
        return str(error).rstrip(".")
    return None


def _repair(project: Project, version: ModelVersion, example: Example | None) -> str | None:
    """Makes the files of a package again; returns why that cannot be, or None.

    They are taken from the output of the training, or written anew, where these are the same bytes
    as were registered. Each is replaced as a whole.
    """
    folder = tracking.local_path(packages.uri_of(project, version))
    if folder is None:
        return "its files are not on this machine"
    store = Store(project.store)
    trained = store.find("train", version.train_key) if version.train_key else None
    try:
        if trained is None or trained.digest != version.train_digest:
            return "the store does not have its training any more"
        Verifier(store).check([trained])
    except DamagedArtifactError as error:
        return str(error).rstrip(".")
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent) as place:
        sources = [*_written(trained, folder, Path(place))]
        files = known_files(version, example)
        for name in damaged_files(folder, version, example):
            made = (source / name for source in sources)
            found = next((path for path in made if is_file_with(path, files[name])), None)
            if found is None:
                return f"nothing has {name} as it was registered"
            _replace(folder / name, found)
        if not (folder / MLMODEL).is_file():
            _replace(folder / MLMODEL, sources[0] / MLMODEL)
    try:
        check_files(folder, version, example)
    except (OSError, ValueError) as error:
        return str(error).rstrip(".")
    return None


def _written(trained: Artifact, folder: Path, place: Path) -> Iterator[Path]:
    """The package as it is written now, in each precision; its classes are those of the folder."""
    counts: dict[str, int] = {}
    with suppress(OSError, ValueError):
        counts = {name: count or 0 for name, count in package.classes_of(folder).items()}
    for precision in PRECISIONS:
        write_package(trained.folder / "model", precision, counts, place / precision)
        yield place / precision


def _replace(target: Path, source: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic.replacing(target) as aside:
        shutil.copyfile(source, aside)
