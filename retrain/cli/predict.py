"""The command that classifies images: `predict`."""

import argparse
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from flows import predict
from retrain.cli.command import Commands, print_json
from retrain.cli.flows import run_on_screen
from retrain.project import Project
from retrain.redaction import hide
from retrain.registry.versions import CHAMPION


def add_commands(commands: Commands) -> None:
    """Adds `predict`."""
    parser = commands.add("predict", _predict, predict.HELP, workload=True)
    _add_input(parser)
    parser.add_argument("--output", required=True, metavar="FILE", help="the Parquet file to write")
    parser.add_argument("--force", action="store_true", help="replace the output if it exists")


def _add_input(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--input",
        required=True,
        metavar="PLACE",
        help="a folder of images at any depth, Parquet or WebDataset files, or a URL of either",
    )
    parser.add_argument(
        "--version", default=CHAMPION, metavar="N|ALIAS", help="the version to ask (champion)"
    )
    parser.add_argument(
        "--image-column", metavar="NAME", help="the Parquet column with the images (image or img)"
    )


def _predict(project: Project, options: argparse.Namespace) -> int:
    # Hidden at once, because Prefect stores the parameters.
    place, output = _place(options.input), str(Path.cwd() / options.output)
    # First, so that a mistake is refused at once.
    predict.find_model(project, options.workload, options.version)
    predict.check_input(project, place)
    predict.check_output(project, place, output, options.force)

    def run() -> Any:
        return predict.as_prefect_flow()(
            options.workload, place, output, options.version, options.image_column, options.force
        )

    imports = [partial(import_module, name) for name in ("mlflow", "torch", "pyarrow.parquet")]
    name = f"predict-{options.workload}"
    document = run_on_screen(project, name, run, predict.show, options.json, [*imports])
    if options.json:
        print_json(document)
    return 0


def _place(text: str) -> str:
    """A path as it is meant here: the flow runs in the project's folder."""
    return str(hide(text)) if "://" in text else str(Path.cwd() / text)
