"""Exports a version for those who do not have this project.

retrain export vit@champion --to DIR [--format onnx]

It is no Prefect flow: a person runs it, and nobody deploys it.
"""

from pathlib import Path

from flows import predict
from retrain.project import Project
from tasks.promote.export import Exported, export as write


def export(project: Project, model: str, to: str, form: str) -> Exported:
    """Writes a version; see `tasks.promote.export.export`.

    Args:
        project: The clone.
        model: `NAME`, which means its champion, `NAME@ALIAS` or `NAME@NUMBER`.
        to: A folder that is new or empty.
        form: `huggingface` or `onnx`.
    """
    return write(project, predict.find_model(project, model), Path(to), form)
