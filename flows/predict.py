"""The flow `predict`: classifies images with the model in production, or another version.

retrain predict vit --input photos --output predictions.parquet
prefect deployment run predict/vit --param input=photos --param output=predictions.parquet --watch

Its output is a file of the user's, and what a killed run has finished is kept until a run of the
same images with the same package ends.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from retrain.errors import UsageError
from retrain.flow import flow
from retrain.logins import has_login, refused
from retrain.project import Project, find_project
from retrain.registry import versions
from retrain.registry.versions import CHAMPION, ModelVersion
from retrain.runs import console, records
from retrain.runs.records import Document
from retrain.runs.without_steps import FlowRun, begun
from retrain.store import Store
from tasks.data.champion import Registered
from tasks.data.reference import find_reference
from tasks.drift import report
from tasks.predict.inputs import Source, open_source
from tasks.predict.origin import read_origin
from tasks.predict.predict import predict as classify

UNKNOWN = "Not compared with the test split: the store has lost what the version was evaluated on."


@flow
def predict(
    workload: str,
    input: str,
    output: str,
    version: str | int = CHAMPION,
    image_column: str | None = None,
    force: bool = False,
) -> Document:
    """Classifies images with the model in production, and writes a Parquet file.

    Args:
        workload: The name of a workload, or of what runs with `--as`.
        input: A folder of images at any depth, a Parquet or WebDataset file or a folder of them, or
            a URL of either; a relative path starts at the project's folder.
        output: The Parquet file to write.
        version: The number of a version, or an alias.
        image_column: The Parquet column with the images; `image` or `img` if None.
        force: Replace the output if it exists.

    Returns:
        The run's document, as `--json` prints it.

    Raises:
        ValueError: The user has to correct something.
    """
    project = find_project()
    model = find_model(project, workload, str(version))
    check_input(project, input)
    path = check_output(project, input, output, force)
    with begun(project, "predict") as run:
        with opened(run, input, image_column) as source:
            path.parent.mkdir(parents=True, exist_ok=True)
            predictions, sample = classify(Registered(project, model), source, path, run.store)
        reference, drift = find_reference(project, model), None
        if reference is not None and len(sample):
            against = report.TEST_SPLIT
            drift = report.report(project, model, reference, sample, input, against, run.id)
        document = run.document(
            workload=workload,
            input=input,
            output=str(path),
            model=model.identity(),
            **asdict(predictions),
            drift=drift,
        )
        document["outcome"] = _outcome(document)
        _publish(document)
        return document


def find_model(project: Project, workload: str, version: str) -> ModelVersion:
    """The version that is to classify.

    Args:
        project: The clone.
        workload: The name of a workload, or of what runs with `--as`.
        version: Its number, or an alias.

    Raises:
        UsageError: There is no such workload or version.
    """
    try:
        return versions.find(project, workload, version)
    except UsageError:
        records.check_name(project, workload)
        raise


def find_named(project: Project, text: str) -> ModelVersion:
    """The version that a user has named, as `versions.parse_reference` takes it.

    Raises:
        UsageError: There is no such workload or version.
    """
    return find_model(project, *versions.parse_reference(text))


def find_model_of(project: Project, file: Path) -> tuple[dict[str, Any], ModelVersion]:
    """What a file of predictions says of itself (JSON-able), and the version that wrote it.

    Raises:
        UsageError: The file is none of predictions; or the registry does not have the version.
        ValueError: The version that has the number now is another package.
    """
    origin = read_origin(file)
    model = versions.find(project, origin.model, str(origin.version))
    if Registered(project, model).digest != origin.package:
        raise ValueError(
            f"{file} was written by package {origin.package[:12]}, but {model.name} version "
            f"{model.version} of this registry is another one."
        )
    return asdict(origin), model


def check_input(project: Project, place: str, option: str = "--input") -> None:
    """Refuses an input that is no file and no folder, unless it is a URL.

    Args:
        project: The clone.
        place: A path or a URL.
        option: What the user gave it as.

    Raises:
        UsageError: There is nothing, or a device, a pipe or a socket; or a URL has a login.
    """
    if has_login(place):
        raise UsageError(refused(option))
    if "://" in place:
        return
    path = _path(project, place)
    if not path.exists():
        raise UsageError(f"{option} {place} does not exist.")
    if not (path.is_file() or path.is_dir()):
        raise UsageError(f"{option} {place} is neither a file nor a folder.")


def check_output(project: Project, place: str | None, output: str, force: bool) -> Path:
    """The path of the output, if it may be written.

    Args:
        project: The clone.
        place: The input; None for images of the store.
        output: The path or name of the file.
        force: It may exist.

    Raises:
        UsageError: It exists, is a folder, or lies in the input.
    """
    path = _path(project, output)
    if "://" in output or path.is_dir():
        raise UsageError(f"--output {output}: name a file of this machine, such as FILE.parquet.")
    if path.exists() and not force:
        raise UsageError(f"--output {output} exists: add --force to replace it.")
    if place and "://" not in place and path.is_relative_to(_path(project, place)):
        raise UsageError(f"--output {output} lies in the input, where the next run would read it.")
    return path


@contextmanager
def opened(run: FlowRun, place: str, image_column: str | None) -> Iterator[Source]:
    """Finds out what an input holds, and downloads it first if it is at a URL.

    Args:
        run: The run that reads it.
        place: A folder, a file, or a URL that fsspec knows.
        image_column: The Parquet column with the images; None if it has a usual name.

    Raises:
        UsageError: There are no images.
        ValueError: As `fetched` does.
        OSError: As `fetched` does.
    """
    with fetched(run, place) as folder:
        yield open_source(folder, place, image_column)


@contextmanager
def fetched(run: FlowRun, place: str, option: str = "--input") -> Iterator[Path]:
    """A folder with an input, which is downloaded first if it is at a URL.

    A download is kept if the block fails, for the next run.

    Args:
        run: The run that reads it.
        place: A folder, a file, or a URL that fsspec knows.
        option: What the user gave it as.

    Raises:
        UsageError: There is nothing at the URL.
        ValueError: It changed while it was downloaded, or an archive is damaged.
        OSError: The URL cannot be reached.
    """
    if "://" in place:
        with _downloaded(run.store, place, option) as folder:
            yield folder
        return
    path = _path(run.project, place)
    if path.is_file():  # a folder with a link to it: the readers take folders
        folder = Path(mkdtemp(dir=run.store.temporary(run.id)))
        (folder / path.name).symlink_to(path)
        path = folder
    yield path


def show(document: Document) -> None:
    """Shows how many images have each label, and where the file is."""
    from rich.markup import escape

    rows = [
        [label, f"{count:,}", f"{count / document['rows']:.1%}"]
        for label, count in document["labels"].items()
    ]
    console.say_table(["label", "images", "share"], rows)
    console.say(f"[bold]{escape(document['outcome'])}[/]")
    console.say(escape(report.sentence(document["drift"]) if document["drift"] else UNKNOWN) + "\n")
    console.say(escape(f"{'output':<10} {document['output']}"))
    console.say(f"{'took':<10} {document['took']:.1f} s")


def _outcome(document: Document) -> str:
    model, errors = document["model"], document["errors"]
    outcome = f"{document['rows']:,} images, {model['name']} version {model['version']}"
    if document["reused"]:
        outcome += f"; {document['reused']:,} units were there from a run that was ended"
    if errors:
        outcome += f"; {errors:,} could not be classified: the column `error` says why"
    return f"{outcome}."


def _publish(document: Document) -> None:
    """Shows the labels as an artifact of the Prefect flow run."""
    from prefect.artifacts import create_table_artifact

    create_table_artifact(
        key=f"{document['workload'].lower().replace('_', '-')}-predictions",
        table=[{"label": name, "images": count} for name, count in document["labels"].items()],
        description=f"{document['outcome']} `{document['output']}`",
    )
    if document["drift"]:
        report.publish(document["workload"], document["drift"])


def _path(project: Project, text: str) -> Path:
    return Path(os.path.normpath(project.root / os.path.expanduser(text)))  # noqa: PTH111


@contextmanager
def _downloaded(store: Store, url: str, option: str) -> Iterator[Path]:
    """A folder with the files at a URL; an archive is unpacked."""
    from tasks.pull.archives import unpack
    from tasks.pull.url_source import UrlSource

    source = UrlSource(url)
    try:
        digest = source.digest()
    except UsageError as error:
        raise UsageError(str(error).replace("data.path", option, 1)) from error
    with store.lock("predict", digest):
        scratch = store.scratch("predict", digest)
        folder, downloaded = scratch / "data", scratch / "downloaded"
        if not downloaded.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            source.fetch(digest, folder, scratch)
            unpack(folder, scratch)
            downloaded.touch()
        yield folder
        shutil.rmtree(scratch)
