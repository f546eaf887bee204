"""Fetches one version of the data, whole or not at all."""

import os
import shutil
import tarfile
import zipfile
import zlib
from collections import Counter
from importlib import import_module
from lzma import LZMAError
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from retrain.errors import UsageError
from retrain.project import Project
from retrain.step import Chosen, DataVersion, Facts, Step, Workspace
from tasks.pull.transfer import inside

if TYPE_CHECKING:
    from retrain.workload import Data, Workload

# The module of each kind of source. One is imported, by its name, so that the code of the others is
# no part of the step's.
SOURCES = {
    "dvc": "tasks.pull.dvc_source",
    "hub": "tasks.pull.hub_source",
    "local": "tasks.pull.local_source",
    "url": "tasks.pull.url_source",
}

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

    For data under DVC it reads one line of `data.dvc`; the modules of the other sources say what it
    takes for them.

    Args:
        data: Where the data is.
        project: The clone that a relative path starts from.
        revision: A git revision whose `data.dvc` counts; None is the working tree.

    Raises:
        UsageError: There is no such data, revision or `data.dvc`.
        OSError: The data is elsewhere and cannot be reached.
    """
    source = find_source(data, project, revision)
    tracked = _kind(data, _is_tracked(data, project)) == "dvc"
    return DataVersion(source.digest(), tracked, revision)


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
    kind = _kind(data, _is_tracked(data, project))
    if revision is not None and kind != "dvc":
        raise UsageError(
            f"data.path {data.path} is not under DVC, so git knows no version {revision!r} of it."
        )
    module = import_module(SOURCES[kind])
    source: DataSource
    if kind == "hub":
        name, _, hub_revision = data.path.partition("@")
        source = module.HubSource(name, hub_revision or "main")
    elif kind == "url":
        source = module.UrlSource(data.path)
    elif kind == "dvc":
        part = _place(data, project).relative_to(project.root / "data").as_posix()
        source = module.DvcSource(project, "" if part == "." else part, revision)
    else:
        source = module.LocalSource(_place(data, project))
    return source


def _kind(data: "Data", tracked: bool) -> str:
    """Which of `SOURCES` data comes from.

    Args:
        data: Where the data is.
        tracked: Whether its path, if it is one, leads to the folder that is under DVC.
    """
    if data.format == "hub":
        return "hub"
    if "://" in data.path:
        return "url"
    return "dvc" if tracked else "local"


def _place(data: "Data", project: Project) -> Path:
    return Path(os.path.normpath(project.root / Path(data.path).expanduser()))


def _is_tracked(data: "Data", project: Project) -> bool:
    return _place(data, project).is_relative_to(project.root / "data")


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


def _chosen(workload: "Workload", version: DataVersion) -> Chosen:
    return Chosen(modules=(SOURCES[_kind(workload.data, version.tracked)],))


STEP = Step("pull", pull, reads=("data.path", "data.format"), inputs=("data",), chosen=_chosen)
