"""Fetches one version of the data, completely or not at all."""

import os
import re
import shutil
import sys
import zipfile
import zlib
from collections.abc import Iterator
from lzma import LZMAError
from pathlib import Path

import pyarrow.parquet as pq

from retrain.errors import UsageError
from retrain.project import Project
from retrain.step import DataVersion, Facts, Workspace, step
from retrain.workload import Data, Workload
from tasks.data import index
from tasks.data.listing import is_data, list_files
from tasks.data.raw_images import INDEX
from tasks.pull.dvc_source import DvcSource
from tasks.pull.file_sources import LocalSource, UrlSource
from tasks.pull.hub_source import CARD, HubSource, splits_of_files

if sys.version_info >= (3, 11, 4):
    import tarfile
else:  # Python's own has no filters before that; Debian 12 has 3.11.2
    from backports import tarfile  # type: ignore[no-redef]


def data_version(data: Data, project: Project, revision: str | None = None) -> DataVersion:
    """The version of the data that a run uses.

    For data under DVC it reads `data.dvc` and DVC's listing; the modules of the other sources
    describe their cost.

    Args:
        data: The settings that say where the data is.
        project: The clone that a relative path starts from.
        revision: A git revision whose `data.dvc` is used; None is the working tree.

    Raises:
        UsageError: There is no such data, revision or `data.dvc`.
        OSError: The data is elsewhere and cannot be reached.
    """
    source = find_source(data, project, revision)
    if isinstance(source, DvcSource):
        return DataVersion(source.digest(), True, revision, source.warning(), source.pin())
    return DataVersion(source.digest(), tracked=False)


def notices(workload: Workload, project: Project, version: DataVersion) -> Iterator[str]:
    """Finds why others could not have this version of the data."""
    source = find_source(workload.data, project, version.revision)
    if isinstance(source, DvcSource) and (sentence := source.uncommitted()):
        yield sentence


def check(workload: Workload, project: Project) -> Iterator[str]:
    """Finds a `data.path` that contains the project itself."""
    place, clone = _place(workload.data, project), project.home
    if place is not None and (
        clone.is_relative_to(place) or clone.resolve().is_relative_to(place.resolve())
    ):
        yield (
            f"data.path: {workload.data.path} holds this project itself; name the folder of the "
            "data."
        )


@step(
    inputs=("data",),
    reads=(
        "data.path",
        "data.format",
        "data.configuration",
        "data.image_column",
        "data.label_column",
        "data.label_names",
        "data.group",
    ),
    hours=12,
    check=check,
    notices=notices,
)
def pull(data: Data, version: DataVersion, workspace: Workspace) -> Facts:
    """Fetches a version of the data into `data/` of the workspace, and lists its images.

    A single archive (zip, or tar in any compression) is unpacked, and folders that only wrap all
    of it are removed. The list is `index.parquet`, as `tasks/data/raw_images.py` describes it.

    Returns:
        `format` and `images`, how many there are; and `image_column`, that of its Parquet files.

    Raises:
        ValueError: There is no such data in that version, or it cannot be told which images it has,
            and of which classes.
        OSError: The source that holds it cannot be reached; another try may help.
    """
    folder = workspace.folder / "data"
    folder.mkdir()
    source = find_source(data, workspace.project, version.revision)
    try:
        source.fetch(version.digest, folder, workspace.scratch)
        unpack(folder, workspace.scratch)
        names = [name for name, _ in list_files(folder)]
        splits = splits_of_files(names, folder / CARD, data.configuration)
        found = index.build(folder, data, splits)
        if isinstance(source, LocalSource) and found.format == "folders":
            index.check_classes(source.path, found.images)
    except ValueError:  # a verdict: the same data is not pulled again
        shutil.rmtree(workspace.scratch)
        raise
    pq.write_table(found.images, workspace.folder / INDEX)
    return {
        "format": found.format,
        "images": len(found.images),
        "image_column": found.files.image_column,
    }


def unpack(folder: Path, scratch: Path) -> None:
    """Replaces an archive by its content, if it is the only file in a folder.

    Args:
        folder: The folder, which may hold one archive alone.
        scratch: The folder in which the archive is unpacked; on the same file system.

    Raises:
        ValueError: The archive is damaged, or has a link or a file that leads outside it.
    """
    archive, *others = folder.iterdir()
    if others or not archive.is_file():
        return
    is_zip = zipfile.is_zipfile(archive)
    if not is_zip and not tarfile.is_tarfile(archive):
        return
    unpacked = scratch / "unpacked"
    shutil.rmtree(unpacked, ignore_errors=True)  # of a run that was killed
    unpacked.mkdir()
    try:
        if is_zip:
            with zipfile.ZipFile(archive) as file:
                members = file.infolist()
                for member in members:  # some programs on Windows write `cat\\1.png`
                    member.filename = member.filename.replace("\\", "/")
                file.extractall(unpacked, members)  # never outside, whatever the names are
        else:
            with tarfile.open(archive) as file:
                file.extractall(unpacked, filter=_checked)
    except (
        zipfile.BadZipFile, tarfile.TarError, zlib.error, LZMAError, EOFError, RuntimeError,
        FileExistsError, IsADirectoryError, NotADirectoryError,  # a file that is a folder too
    ) as error:  # fmt: skip
        raise ValueError(f"The archive {archive.name} cannot be unpacked: {error}") from error
    shutil.rmtree(folder)
    shutil.move(_without_wrapping(unpacked), folder)


def _checked(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo:
    if member.issym() or member.islnk():  # it may lead elsewhere, once wrapping is taken away
        raise ValueError(
            f"The data's archive has a link, {member.name!r}. Pack the files themselves: tar "
            "does so with --dereference --hard-dereference."
        )
    return tarfile.data_filter(member, folder)  # refuses what leads outside, devices and pipes


def _without_wrapping(folder: Path) -> Path:
    """The innermost folder that holds everything; a class folder is not unwrapped."""
    entries = [path for path in folder.iterdir() if is_data(path.name)]
    wraps = len(entries) == 1 and entries[0].is_dir()
    if wraps and any(path.is_dir() or path.suffix == ".parquet" for path in entries[0].iterdir()):
        return _without_wrapping(entries[0])
    return folder


def find_source(
    data: Data, project: Project, revision: str | None
) -> DvcSource | HubSource | LocalSource | UrlSource:
    """The source that `data.path` names.

    Each has the version that it has now (`digest`), and copies that into an empty folder (`fetch`)
    by way of a scratch folder, which remains after a kill.

    Args:
        data: The settings that say where the data is.
        project: The clone that a relative path starts from.
        revision: A git revision whose `data.dvc` is used; None is the working tree.

    Raises:
        UsageError: A revision is asked of data that is not under DVC.
    """
    place, under_dvc = _place(data, project), project.home / "data"
    is_under_dvc = place is not None and place.is_relative_to(under_dvc)
    if revision is not None and not is_under_dvc:
        raise UsageError(
            f"data.path {data.path} is not under DVC, so git knows no version {revision!r} of it."
        )
    if data.format == "hub":
        name, _, commit = data.path.partition("@")
        return HubSource(name, commit or "main", data.configuration)
    if place is None:
        return UrlSource(data.path)
    if is_under_dvc:
        return DvcSource(project, place.relative_to(under_dvc), revision)
    return LocalSource(place)


def _place(data: Data, project: Project) -> Path | None:
    """Where the data is on this machine; None for data elsewhere."""
    path = re.sub("^(file|local)://", "", data.path)
    if data.format == "hub" or "://" in path:
        return None
    # Leaves the name of an unknown user as it is.
    path = os.path.expanduser(path)  # noqa: PTH111
    return Path(os.path.normpath(project.home / path))
