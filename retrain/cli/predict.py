"""The commands that classify images: `predict`, `drift`, `compare`."""

import argparse
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from flows import compare, drift, predict
from retrain.cli.command import Commands, print_json
from retrain.cli.flows import run_on_screen
from retrain.project import Project
from retrain.registry.versions import CHAMPION

IMPORTS = [partial(import_module, name) for name in ("mlflow", "torch", "pyarrow.parquet")]


def add_commands(commands: Commands) -> None:
    """Adds `predict`, `drift` and `compare`."""
    parser = commands.add("predict", _predict, predict.HELP, workload=True)
    _add_input(parser)
    parser.add_argument("--output", required=True, metavar="FILE", help="the Parquet file to write")
    parser.add_argument("--force", action="store_true", help="replace the output if it exists")
    parser = commands.add("drift", _drift, drift.HELP, workload=True)
    _add_input(parser)
    parser.add_argument(
        "--reference",
        metavar="PLACE",
        help="compare with these images, instead of the test split of the version",
    )
    parser = commands.add("compare", _compare, compare.HELP)
    for name, help_ in (("a", "a version"), ("b", "the version that is compared with it")):
        parser.add_argument(
            name, metavar="NAME[@VERSION]", help=f"{help_}, by its number or an alias (champion)"
        )
    parser.add_argument(
        "--data",
        metavar="PLACE",
        help="images, with classes or without: a folder, Parquet or WebDataset files, or a URL "
        "(the test split of the newer version)",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="the Parquet file to write, with the images to which they give different labels",
    )
    parser.add_argument("--force", action="store_true", help="replace the output if it exists")
    _add_image_column(parser)
    parser.add_argument(
        "--label-column", metavar="NAME", help="the Parquet column with the classes (label, labels)"
    )


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
    _add_image_column(parser)


def _add_image_column(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--image-column", metavar="NAME", help="the Parquet column with the images (image or img)"
    )


def _predict(project: Project, options: argparse.Namespace) -> int:
    place, output = _place(options.input), str(Path.cwd() / options.output)
    # First, so that a mistake is refused at once.
    predict.find_model(project, options.workload, options.version)
    predict.check_input(project, place)
    predict.check_output(project, place, output, options.force)

    def run() -> Any:
        return predict.as_prefect_flow()(
            options.workload, place, output, options.version, options.image_column, options.force
        )

    name = f"predict-{options.workload}"
    document = run_on_screen(project, name, run, predict.show, options.json, [*IMPORTS])
    if options.json:
        print_json(document)
    return 0


def _drift(project: Project, options: argparse.Namespace) -> int:
    place = _place(options.input)
    reference = _place(options.reference) if options.reference else None
    predict.find_model(project, options.workload, options.version)
    for each in filter(None, (place, reference)):
        predict.check_input(project, each)

    def run() -> Any:
        return drift.as_prefect_flow()(
            options.workload, place, reference, options.version, options.image_column
        )

    name = f"drift-{options.workload}"
    document = run_on_screen(project, name, run, drift.show, options.json, [*IMPORTS])
    if options.json:
        print_json(document)
    return 0


def _compare(project: Project, options: argparse.Namespace) -> int:
    data = _place(options.data) if options.data else None
    output = str(Path.cwd() / options.output) if options.output else None
    compare.find_two(project, options.a, options.b)
    if data is not None:
        predict.check_input(project, data, "--data")
    compare.check_output(project, data, output, options.force)

    def run() -> Any:
        return compare.as_prefect_flow()(
            options.a,
            options.b,
            data,
            output,
            options.image_column,
            options.label_column,
            options.force,
        )

    document = run_on_screen(project, "compare", run, compare.show, options.json, [*IMPORTS])
    if options.json:
        print_json(document)
    return 0


def _place(text: str) -> str:
    """A place as it is meant here: the flow runs in the project's folder, and Prefect stores it."""
    return text if "://" in text else str(Path.cwd() / text)
