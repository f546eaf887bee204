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
from pathlib import Path
from tempfile import mkdtemp

from rich.markup import escape

from flows.pages import publish
from retrain import file_io
from retrain.errors import UsageError, has_login, refused
from retrain.flow import flow
from retrain.project import Project, find_project
from retrain.registry import versions
from retrain.registry.ledger import CHAMPION
from retrain.registry.versions import ModelVersion
from retrain.runs import console, records
from retrain.runs.liveness import Processes
from retrain.runs.records import Document, FlowRun
from tasks.data.champion import RegisteredVersion
from tasks.data.predictions import find_reference
from tasks.drift import TEST_SPLIT, report, sentence
from tasks.live_accuracy import keep_answers
from tasks.predict.predict import (
    PARQUET,
    SUFFIXES,
    open_source,
    predict as classify,
    write_as,
)

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
    """Classifies images with the model in production, and writes their labels to a file.

    Args:
        workload: The name of a workload, or of what runs with `--as`.
        input: A folder of images at any depth, a Parquet file or a folder of them, or
            a URL of either; a relative path starts at the project's folder.
        output: The file to write: `.parquet`, `.csv` or `.jsonl`.
        version: The number of a version, or an alias.
        image_column: The Parquet column with the images; `image` or `img` if None.
        force: Replace the output if it exists.

    Returns:
        The run's document, as `--json` prints it.

    Raises:
        ValueError: The user has to correct something.
    """
    project = find_project()
    model, path = check(project, f"{workload}@{version}", input, output, force)
    with publish.flow_run(project, "predict", workload) as run:
        with input_folder(run, input) as folder:
            source = open_source(folder, input, image_column)
            path.parent.mkdir(parents=True, exist_ok=True)
            is_made = path.suffix.lower() == PARQUET
            made = path if is_made else Processes(run.project.store).temporary() / f"made{PARQUET}"
            predictions, sample = classify(
                RegisteredVersion(project, model), source, made, run.store
            )
        keep_answers(project, model, made, run.id)
        if not is_made:
            write_as(made, path)
        if predictions["errors"] == predictions["rows"] > 0:
            raise ValueError(
                f"None of the {predictions['rows']:,} images in {input} could be classified: the "
                f"column `error` of {path} says why."
            )
        reference, drift = find_reference(project, model), None
        if reference is not None and len(sample):
            drift = report(project, model, reference, sample, input, TEST_SPLIT, run.id)
        document = run.document(
            workload=workload,
            input=input,
            output=str(path),
            model=model.identity(),
            **predictions,
            drift=drift,
            state="Drifted" if drift and drift["drifted"] else None,
        )
        document["outcome"] = _outcome(document)
        return publish.write(project, document)


def check(
    project: Project, model: str, input: str, output: str, force: bool
) -> tuple[ModelVersion, Path]:
    """Checks the arguments of the flow, before it begins.

    Args:
        project: The clone.
        model: The version, as `find_model` takes it.
        input: A folder, a file or a URL, as the flow takes it.
        output: The file to write.
        force: Replace the output if it exists.

    Returns:
        The version that is to classify, and the path of the output.

    Raises:
        UsageError: There is no such version or input, or the output cannot be written.
    """
    version = find_model(project, model)
    check_input(project, input)
    return version, check_output(project, input, output, force)


def find_model(project: Project, text: str) -> ModelVersion:
    """The version that a user has named: `NAME`, its champion, `NAME@ALIAS` or `NAME@NUMBER`.

    Raises:
        UsageError: There is no such workload or version.
    """
    name, selector = versions.parse_reference(text)
    try:
        return versions.find(project, name, selector)
    except UsageError:
        records.check_name(project, name)
        raise


def check_input(project: Project, place: str) -> None:
    """Refuses an input that is no file and no folder, unless it is a URL.

    Args:
        project: The clone.
        place: A path or a URL.

    Raises:
        UsageError: There is nothing, or a device, a pipe or a socket; or a URL has a login.
    """
    if has_login(place):
        raise UsageError(refused("--input"))
    path = _path(project, place)
    if "://" not in place and not (path.is_file() or path.is_dir()):
        raise UsageError(f"--input {place}: there is no such file or folder.")


def check_output(project: Project, place: str, output: str, force: bool) -> Path:
    """The path of the output, if it may be written.

    Args:
        project: The clone.
        place: The input.
        output: The path or name of the file.
        force: Whether the file may exist already.

    Raises:
        UsageError: The file exists, is a folder, has another suffix, or lies in the input.
    """
    path = _path(project, output)
    if "://" in output or path.is_dir():
        raise UsageError(f"--output {output}: name a file of this machine, such as FILE.parquet.")
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"--output {output}: its suffix is one of {', '.join(SUFFIXES)}.")
    if path.exists() and not force:
        raise UsageError(f"--output {output} exists: add --force to replace it.")
    if "://" not in place and path.is_relative_to(_path(project, place)):
        raise UsageError(f"--output {output} lies in the input, where the next run would read it.")
    return path


@contextmanager
def input_folder(run: FlowRun, place: str) -> Iterator[Path]:
    """A folder with an input; what is at a URL is downloaded first, and an archive unpacked.

    A download is kept if the block fails, for the next run.

    Args:
        run: The run that reads it.
        place: A folder, a file, or a URL that fsspec knows.

    Raises:
        UsageError: There is nothing at the URL.
        ValueError: The input changed while it was downloaded, or an archive is damaged.
        OSError: The URL cannot be reached.
    """
    if "://" not in place:
        path = _path(run.project, place)
        if path.is_file():  # a folder with a link to it: the readers take folders
            folder = Path(mkdtemp(dir=Processes(run.project.store).temporary()))
            (folder / path.name).symlink_to(path)
            path = folder
        yield path
        return

    from tasks.pull.file_sources import UrlSource
    from tasks.pull.step import unpack

    source = UrlSource(place)
    try:
        digest = source.digest()
    except UsageError as error:
        raise UsageError(str(error).replace("data.path", "--input", 1)) from error
    with run.store.lock("predict", digest):
        scratch = run.store.scratch("predict", digest)
        folder = scratch / "data"
        if not folder.exists():
            with file_io.replacing(folder) as aside:
                aside.mkdir()
                source.fetch(digest, aside, scratch)
                unpack(aside, scratch)
        yield folder
        shutil.rmtree(scratch)


def show_result(document: Document) -> None:
    """Shows how many images have each label, and where the file is."""
    rows = [
        [label, f"{count:,}", f"{count / document['rows']:.1%}"]
        for label, count in document["labels"].items()
    ]
    console.say_table(["label", "images", "share"], rows)
    console.say(f"[bold]{escape(document['outcome'])}[/]")
    drift = document["drift"]
    if not document["state"]:
        console.say(escape(sentence(drift) if drift else UNKNOWN))
    console.say("")
    console.say(escape(f"{'output':<10} {document['output']}"))
    console.say(f"{'took':<10} {document['took']:.1f} s")


def _outcome(document: Document) -> str:
    model, errors = document["model"], document["errors"]
    outcome = f"{model['name']} version {model['version']} was given {document['rows']:,} images"
    if document["reused"]:
        outcome += f"; {document['reused']:,} units were there from a run that was ended"
    if errors:
        outcome += f"; {errors:,} could not be classified: the column `error` says why"
    found = f" {sentence(document['drift'])}" if document["state"] else ""  # as people are told
    return f"{outcome}.{found}"


def _path(project: Project, text: str) -> Path:
    return Path(os.path.normpath(project.root / os.path.expanduser(text)))  # noqa: PTH111
