"""The flow `predict`: classifies images with the model in production, or another version.

retrain predict vit --input photos --output predictions.parquet
prefect deployment run predict/vit --param input=photos --param output=predictions.parquet --watch

It has no steps with a key in the store: its output is a file of the user's, and what a killed run
has finished is kept until a run of the same images with the same package ends.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from tempfile import mkdtemp
from time import monotonic
from typing import TYPE_CHECKING, Any

from retrain import atomic, preflight
from retrain.errors import UsageError
from retrain.logins import has_login, refused
from retrain.outputs import list_files
from retrain.params import load_drift
from retrain.project import Project, find_project
from retrain.registry import versions
from retrain.registry.versions import CHAMPION, ModelVersion
from retrain.runs import console, lost, records
from retrain.runs.pipeline import flow_without_steps
from retrain.runs.records import Document
from retrain.step import digest_of
from retrain.store import Store
from tasks.data.champion import Registered
from tasks.data.reference import find_reference
from tasks.drift.report import TEST_SPLIT, publish, report, sentence
from tasks.predict.inputs import Source, open_source
from tasks.predict.origin import read_origin
from tasks.predict.predict import NAME, predict as classify

if TYPE_CHECKING:
    import pyarrow as pa
    from prefect import Flow

UNKNOWN = "Not compared with the test split: the store has lost what the version was evaluated on."
HELP = "Classifies images with the model in production, and writes a Parquet file."


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
def opened(
    project: Project, store: Store, run: str, place: str, image_column: str | None
) -> Iterator[Source]:
    """Finds out what an input holds, and downloads it first if it is at a URL.

    Args:
        project: The clone.
        store: Where a download is kept meanwhile.
        run: The id of the run, which holds artifacts.
        place: A folder, a file, or a URL that fsspec knows.
        image_column: The Parquet column with the images; None if it has a usual name.

    Raises:
        UsageError: There are no images.
        ValueError: As `fetched` does.
        OSError: As `fetched` does.
    """
    with fetched(project, store, run, place) as folder:
        yield open_source(folder, place, image_column)


@contextmanager
def fetched(
    project: Project, store: Store, run: str, place: str, option: str = "--input"
) -> Iterator[Path]:
    """A folder with an input, which is downloaded first if it is at a URL.

    A download is kept if the block fails, for the next run.

    Args:
        project: The clone.
        store: Where a download is kept meanwhile.
        run: The id of the run, which holds artifacts.
        place: A folder, a file, or a URL that fsspec knows.
        option: What the user gave it as.

    Raises:
        UsageError: There is nothing at the URL.
        ValueError: It changed while it was downloaded, or an archive is damaged.
        OSError: The URL cannot be reached.
    """
    if "://" in place:
        with _downloaded(store, place, option) as folder:
            yield folder
        return
    path = _path(project, place)
    if path.is_file():  # a folder with a link to it: the readers take folders
        folder = Path(mkdtemp(dir=store.temporary(run)))
        (folder / path.name).symlink_to(path)
        path = folder
    yield path


def run(
    workload: str,
    input: str,
    output: str,
    version: str | int = CHAMPION,
    image_column: str | None = None,
    force: bool = False,
) -> Document:
    """Classifies images, inside a Prefect flow run.

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
    from prefect import runtime

    began = monotonic()
    project = find_project()
    model = find_model(project, workload, str(version))
    check_input(project, input)
    path = check_output(project, input, output, force)
    lost.end_lost_runs(project)
    preflight.check_surroundings(project)
    store, run_id = Store(project.store), str(runtime.flow_run.id)
    with store.holding(run_id), opened(project, store, run_id, input, image_column) as source:
        path.parent.mkdir(parents=True, exist_ok=True)
        written, sample = classify(Registered(project, model), source, path, store)
    document = {
        "flow": NAME,
        "workload": workload,
        "run": run_id,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(monotonic() - began, 3),
        "input": input,
        "output": str(path),
        "model": model.identity(),
        **asdict(written),
    }
    document["outcome"] = _outcome(document)
    document["drift"] = compare(project, model, sample, input, run_id)
    _publish(document)
    return document


def compare(
    project: Project, model: ModelVersion, sample: "pa.Table", place: str, run: str
) -> dict[str, Any] | None:
    """Compares a sample with the test split; None if it is not known any more, or has no image.

    Args:
        project: The clone.
        model: The version that classified the sample.
        sample: As `tasks.data.image_facts.schema` has it.
        place: What came in.
        run: The id of the flow run.
    """
    reference = find_reference(project, model)
    if reference is None or not len(sample):
        return None
    threshold = load_drift(project.params, model.name).threshold
    return report(
        project,
        model,
        reference,
        sample,
        place=place,
        against=TEST_SPLIT,
        threshold=threshold,
        run=run,
    )


def show(document: Document) -> None:
    """Shows how many images have each label, and where the file is."""
    from rich.markup import escape

    rows = [
        [label, f"{count:,}", f"{count / document['rows']:.1%}"]
        for label, count in document["labels"].items()
    ]
    console.say_table(["label", "images", "share"], rows)
    console.say(f"[bold]{escape(document['outcome'])}[/]")
    console.say(escape(sentence(document["drift"]) if document["drift"] else UNKNOWN) + "\n")
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
        publish(document["workload"], document["drift"])


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
    with store.lock(NAME, digest):
        scratch = store.scratch(NAME, digest)
        folder, done = scratch / "data", scratch / "downloaded"
        if not done.exists() or done.read_text(encoding="utf-8") != _contents(folder):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            source.fetch(digest, folder, scratch)
            unpack(folder, scratch)
            atomic.write_text(done, _contents(folder))
        yield folder
        shutil.rmtree(scratch)


def _contents(folder: Path) -> str:
    """What the files of a download are: a digest of all of them."""
    return digest_of(list_files(folder))


def as_prefect_flow() -> "Flow[..., Document]":
    """The flow that Prefect runs, with the parameters of `run`."""
    return flow_without_steps(run, NAME, HELP)


def __getattr__(name: str) -> Any:
    """Gives Prefect its flow when it is asked for: importing Prefect takes a second."""
    if name != NAME:
        raise AttributeError(name)
    return as_prefect_flow()
