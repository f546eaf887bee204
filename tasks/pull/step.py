"""Fetches one version of the data, completely or not at all."""

import os
import shutil
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from retrain.errors import UsageError
from retrain.project import Project
from retrain.step import Chosen, DataVersion, Facts, Workspace, step
from retrain.workload import Data, Workload
from tasks.data.formats import recognise
from tasks.data.listing import list_files
from tasks.pull.archives import unpack

# The module of each kind of source. One is imported, by its name, so that the code of the others
# does not belong to the step's.
SOURCES = {
    "dvc": "tasks.pull.dvc_source",
    "hub": "tasks.pull.hub_source",
    "local": "tasks.pull.local_source",
    "url": "tasks.pull.url_source",
}


class DataSource(Protocol):
    """Where data comes from."""

    def digest(self) -> str:
        """The version that the source has now.

        Raises:
            UsageError: There is no such source or version.
            OSError: The source cannot be reached.
        """

    def fetch(self, digest: str, folder: Path, scratch: Path) -> None:
        """Copies a version.

        Args:
            digest: The version, as `digest` returned it.
            folder: The target, an empty folder.
            scratch: Remains after a kill, for partial downloads.

        Raises:
            ValueError: The source does not have that version, or not the part that is wanted.
            OSError: The source cannot be reached, or its data is damaged.
        """


def data_version(data: Data, project: Project, revision: str | None = None) -> DataVersion:
    """The version of the data that a run uses.

    For data under DVC it reads one line of `data.dvc`; the modules of the other sources describe
    their cost.

    Args:
        data: The settings that say where the data is.
        project: The clone that a relative path starts from.
        revision: A git revision whose `data.dvc` is used; None is the working tree.

    Raises:
        UsageError: There is no such data, revision or `data.dvc`.
        OSError: The data is elsewhere and cannot be reached.
    """
    source: Any = find_source(data, project, revision)
    tracked = _is_under_dvc(data, project)
    warning = source.warning() if tracked else None
    return DataVersion(source.digest(), tracked, revision, warning)


@step(
    inputs=("data",),
    reads=("data.path", "data.format"),
    hours=12,
    imports=("dvc.repo",),
)
def pull(data: Data, version: DataVersion, workspace: Workspace) -> Facts:
    """Fetches a version of the data into `data/` of the workspace.

    A single archive (zip, or tar in any compression) is unpacked, and folders that only wrap all
    of it are removed.

    Returns:
        `{"format": …}`, a key of `tasks.data.raw_dataset.READERS`.

    Raises:
        ValueError: There is no such data in that version, or its format is not recognised.
        OSError: The source that holds it cannot be reached; another try may help.
    """
    folder = workspace.folder / "data"
    folder.mkdir()
    source: Any = find_source(data, workspace.project, version.revision)
    try:
        source.fetch(version.digest, folder, workspace.scratch)
        unpack(folder, workspace.scratch)
        names = [name for name, _ in list_files(folder)]
        form = recognise(folder, names) if data.format in ("auto", "hub") else data.format
    except ValueError:  # a verdict: the same data is not pulled again
        shutil.rmtree(workspace.scratch)
        raise
    return {"format": form}


def find_source(data: Data, project: Project, revision: str | None) -> DataSource:
    """The source that `data.path` names.

    Args:
        data: The settings that say where the data is.
        project: The clone that a relative path starts from.
        revision: A git revision whose `data.dvc` is used; None is the working tree.

    Raises:
        UsageError: A revision is asked of data that is not under DVC.
    """
    kind = _kind(data, _is_under_dvc(data, project))
    if revision is not None and kind != "dvc":
        raise UsageError(
            f"data.path {data.path} is not under DVC, so git knows no version {revision!r} of it."
        )
    module, place = import_module(SOURCES[kind]), _place(data, project)
    source: DataSource
    if kind == "hub":
        name, _, commit = data.path.partition("@")
        source = module.HubSource(name, commit or "main")
    elif kind == "url":
        source = module.UrlSource(data.path)
    elif kind == "dvc":
        source = module.DvcSource(project, place.relative_to(project.root / "data"), revision)
    else:
        source = module.LocalSource(place)
    return source


def _kind(data: Data, is_under_dvc: bool) -> str:
    """Which of `SOURCES` data comes from."""
    if data.format == "hub":
        return "hub"
    if "://" in data.path:
        return "url"
    return "dvc" if is_under_dvc else "local"


def _is_under_dvc(data: Data, project: Project) -> bool:
    is_path = data.format != "hub" and "://" not in data.path
    return is_path and _place(data, project).is_relative_to(project.root / "data")


def _place(data: Data, project: Project) -> Path:
    # Leaves the name of an unknown user as it is.
    path = os.path.expanduser(data.path)  # noqa: PTH111
    return Path(os.path.normpath(project.root / path))


@pull.chooses
def _dependencies(workload: Workload, version: DataVersion) -> Chosen:
    return Chosen(modules=(SOURCES[_kind(workload.data, version.tracked)],))


@pull.warns
def _warnings(workload: Workload, project: Project, version: DataVersion) -> Iterable[str]:
    """Finds why others could not have this version of the data."""
    if not version.tracked:
        return ()
    source: Any = find_source(workload.data, project, version.revision)
    sentences: Iterable[str] = source.warnings()
    return sentences


@pull.checks
def check(workload: Workload, project: Project) -> Iterator[str]:
    """Finds a `data.path` that contains the project itself."""
    data = workload.data
    url = urlsplit(data.path)
    if data.format == "hub" or url.scheme not in ("", "file", "local"):
        return
    path = Path(url.path) if url.scheme else _place(data, project)
    root = project.root
    if any(
        clone.is_relative_to(place) for clone in (root, root.resolve())
        for place in (path, path.resolve())
    ):  # fmt: skip
        yield f"data.path: {data.path} holds this project itself; name the folder of the data."
