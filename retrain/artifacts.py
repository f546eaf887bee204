"""Measures and deletes artifacts of MLflow runs, wherever MLflow keeps them."""

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from retrain import tracking
from retrain.project import Project

if TYPE_CHECKING:
    from mlflow.entities import FileInfo


def size_of(project: Project, run_id: str, path: str = "") -> int:
    """Bytes of the artifacts of a run at a path, or below it; 0 if there are none.

    Args:
        project: The clone that uses this MLflow.
        run_id: The run.
        path: The path of a file or a folder; empty for all.
    """
    mlflow = tracking.client(project)

    def below(folder: str) -> Iterator["FileInfo"]:
        for found in mlflow.list_artifacts(run_id, folder or None):
            yield from below(found.path) if found.is_dir else [found]

    parent = path.rpartition("/")[0]  # what is no folder is not listed by itself
    found = [file for file in below(parent) if PurePosixPath(file.path).is_relative_to(path)]
    return sum(file.file_size or 0 for file in found)


def delete(project: Project, run_id: str, path: str = "") -> None:
    """Deletes a file or a folder of a run's artifacts; all of them without a path."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    uri = tracking.client(project).get_run(run_id).info.artifact_uri
    place = project.tracking_uri
    get_artifact_repository(uri, place, place).delete_artifacts(path or None)
