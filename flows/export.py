"""The flow `export`: writes a version for those who do not have this project.

retrain export vit@champion --to DIR [--format onnx]

It has no steps, and the command runs it without Prefect, like `rollback`.
"""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from flows import predict
from retrain.project import Project, find_project
from tasks.promote.export import FORMATS, Exported, export as write

if TYPE_CHECKING:
    from prefect import Flow

NAME = "export"
HELP = "Writes a model for the Auto classes of transformers, or as an ONNX file."
DEFAULT_FORMAT = next(iter(FORMATS))


def export_version(project: Project, model: str, to: str, form: str = DEFAULT_FORMAT) -> Exported:
    """Writes a version; see `tasks.promote.export.export`.

    Args:
        project: The clone.
        model: `NAME`, which means its champion, `NAME@ALIAS` or `NAME@NUMBER`.
        to: A folder that is new or empty; a relative path starts at the project's folder.
        form: `huggingface` or `onnx`.
    """
    return write(project, predict.find_named(project, model), project.root / to, form)


def run(model: str, to: str, form: str = DEFAULT_FORMAT) -> dict[str, Any]:
    """Writes a version, inside a Prefect flow run; see `export_version`.

    Returns:
        What was written, as `retrain export --json` prints it.
    """
    return asdict(export_version(find_project(), model, to, form))


def __getattr__(name: str) -> "Flow[..., dict[str, Any]]":
    """Gives Prefect its flow when it is asked for: importing Prefect takes a second.

    Raises:
        AttributeError: The name is another one.
    """
    if name != NAME:
        raise AttributeError(name)
    from prefect import Flow

    return Flow(run, NAME, description=HELP, flow_run_name=f"{NAME}-{{model}}")
