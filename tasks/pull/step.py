"""Fetches one version of the data, whole or not at all."""

import os
import shutil
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from lzma import LZMAError
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from retrain.errors import UsageError
from retrain.project import Project
from retrain.step import DataVersion, Facts, Step, Workspace
from tasks.pull.dvc_source import DvcSource
from tasks.pull.external import HubSource, LocalSource, UrlSource
from tasks.pull.transfer import inside

if TYPE_CHECKING:
    from retrain.workload import Data, Workload

# Enough to tell folders of images from other folders; whoever reads them judges each file.
IMAGE_SUFFIXES = frozenset(
    {".avif", ".bmp", ".gif", ".jp2", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff"}
    | {".webp"}
)


class DataSource(Protocol):
    """Where data comes from."""

    def digest(self) -> str:
        """Says which version is there.

        Raises:
            UsageError: There is no such source or version.
            OSError: It cannot be reached.
        """

    def fetch(self, digest: str, folder: Path, scratch: Path) -> None:
        """Copies a version.

        Args:
            digest: Which; as `digest` said.
            folder: Where to; empty.
            scratch: Survives a kill, for what is half fetched.

        Raises:
            ValueError: The source does not hold that version, or not what is asked of it.
            OSError: It cannot be reached, or what it gives is damaged.
        """


def data_version(data: "Data", project: Project, revision: str | None = None) -> DataVersion:
    """Says which version of the data a run is to use.

    For data under DVC it reads one line of `data.dvc`; `tasks.pull.external` says what it takes for
    other data.

    Args:
        data: Where the data is.
        project: The clone that a relative path starts from.
        revision: A git revision whose `data.dvc` counts; None is the working tree.

    Raises:
        UsageError: There is no such data, revision or `data.dvc`.
        OSError: The data is elsewhere and cannot be reached.
    """
    source = find_source(data, project, revision)
    return DataVersion(source.digest(), isinstance(source, DvcSource), revision)


def outdated(data: "Data", project: Project, revision: str | None = None) -> str | None:
    """Says that the working tree's data differs from what a run uses, where that is seen.

    Args:
        data: Where the data is.
        project: The clone that a relative path starts from.
        revision: As for `data_version`.

    Returns:
        A sentence, or None.
    """
    source = find_source(data, project, revision)
    if isinstance(source, DvcSource) and source.is_outdated():
        return (
            "data/ differs from data.dvc, and the run uses the version of data.dvc: "
            "dvc add data to use what is there."
        )
    return None


def pull(data: "Data", version: DataVersion, workspace: Workspace) -> Facts:
    """Fetches a version of the data into `data/` of the workspace.

    A single archive (zip, or tar in any compression) is unpacked, and folders that hold all of it
    are taken away.

    Returns:
        `{"format": "parquet" | "folders"}`.

    Raises:
        ValueError: There is no such data in that version, or it is neither Parquet nor folders of
            images.
        OSError: The source that holds it cannot be reached; another try may help.
    """
    folder = workspace.folder / "data"
    folder.mkdir()
    source = find_source(data, workspace.project, version.revision)
    source.fetch(version.digest, folder, workspace.scratch)
    _unpack(folder, workspace.scratch)
    return {"format": _recognise(folder) if data.format in ("auto", "hub") else data.format}


def find_source(data: "Data", project: Project, revision: str | None) -> DataSource:
    """The source that `data.path` names.

    Args:
        data: Where the data is.
        project: The clone that a relative path starts from.
        revision: A git revision whose `data.dvc` counts; None is the working tree.

    Raises:
        UsageError: A revision is asked of data that is not under DVC.
    """
    source: DataSource
    if data.format == "hub":
        name, _, hub_revision = data.path.partition("@")
        source = HubSource(name, hub_revision or "main")
    elif "://" in data.path:
        source = UrlSource(data.path)
    else:
        path = Path(os.path.normpath(project.root / Path(data.path).expanduser()))
        if path.is_relative_to(project.root / "data"):
            part = path.relative_to(project.root / "data").as_posix()
            return DvcSource(project, "" if part == "." else part, revision)
        source = LocalSource(path)
    if revision is not None:
        raise UsageError(
            f"data.path {data.path} is not under DVC, so git knows no version {revision!r} of it."
        )
    return source


def _unpack(folder: Path, scratch: Path) -> None:
    """Puts the content of an archive into its place, if that is all there is in a folder."""
    archive = next(folder.iterdir())
    if len(list(folder.iterdir())) > 1 or not archive.is_file():
        return
    is_zip = zipfile.is_zipfile(archive)
    if not is_zip and not tarfile.is_tarfile(archive):
        return
    unpacked = scratch / "unpacked"
    shutil.rmtree(unpacked, ignore_errors=True)  # of a run that was killed
    unpacked.mkdir()
    try:
        (_unpack_zip if is_zip else _unpack_tar)(archive, unpacked)
    except (
        zipfile.BadZipFile, tarfile.TarError, zlib.error, LZMAError, EOFError, RuntimeError
    ) as error:  # fmt: skip
        raise ValueError(f"The archive {archive.name} cannot be unpacked: {error}") from error
    shutil.rmtree(folder)
    shutil.move(_without_wrapping(unpacked), folder)


def _unpack_zip(archive: Path, target: Path) -> None:
    with zipfile.ZipFile(archive) as file:
        for name in file.namelist():
            inside(target, name)
        file.extractall(target)
    shutil.rmtree(target / "__MACOSX", ignore_errors=True)  # forks of files, named as the files


def _unpack_tar(archive: Path, target: Path) -> None:
    with tarfile.open(archive) as file:
        file.extractall(target, filter="data")  # refuses what leads out, links and devices


def _without_wrapping(folder: Path) -> Path:
    """The innermost folder that holds everything, without taking a class for a wrapping."""
    entries = [path for path in folder.iterdir() if not path.name.startswith(".")]
    if len(entries) == 1 and entries[0].is_dir():
        below = entries[0].iterdir()
        if any(path.is_dir() or path.suffix == ".parquet" for path in below):
            return _without_wrapping(entries[0])
    return folder


def _recognise(folder: Path) -> str:
    """Says in which of the two formats data is, by the names of its files."""
    at_top: Counter[str] = Counter()
    in_folders: Counter[str] = Counter()
    for where, _, names in os.walk(folder):
        suffixes = (Path(name).suffix.lower() or "no suffix" for name in names)
        (at_top if Path(where) == folder else in_folders).update(suffixes)
    if at_top[".parquet"] or in_folders[".parquet"]:
        return "parquet"
    if IMAGE_SUFFIXES & in_folders.keys():
        return "folders"
    kinds = (at_top + in_folders).most_common(5)
    found = ", ".join(f"{count} files with {kind}" for kind, count in kinds) or "no files"
    where = " in no folder" if at_top and not in_folders else ""
    raise ValueError(
        f"data.path holds {found}{where}. It should hold Parquet files, or a folder of images per "
        "class (below train, val and test or not), or be one archive of either."
    )


def check(workload: "Workload", project: Project) -> Iterator[str]:
    """Finds a `data.path` that holds the project itself, with all that it has made."""
    data = workload.data
    if data.format == "hub" or "://" in data.path:
        return
    path = Path(os.path.normpath(project.root / Path(data.path).expanduser()))
    if project.root.is_relative_to(path):
        yield f"data.path: {data.path} holds this project itself; name the folder of the data."


STEP = Step(
    "pull",
    pull,
    reads=("data.path", "data.format"),
    inputs=("data",),
    check=check,
    hours=12,
)
