"""The flow `compare`: two versions answer the same images, and are compared as the gate does it.

retrain compare vit@champion vit@7
retrain compare vit@champion vit@7 --data photos --output differences.parquet
retrain compare vit@champion vit@7 --answers /var/log/vit

It changes nothing: no alias, no ledger.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.markup import escape

from flows import predict
from flows.pages import publish
from retrain import atomic
from retrain.errors import UsageError
from retrain.flow import flow
from retrain.params import load_section
from retrain.project import Project, find_project
from retrain.registry.versions import ModelVersion
from retrain.runs import console
from retrain.runs.records import Document, FlowRun
from retrain.workload import Gate
from tasks.data.champion import Registered
from tasks.data.pixels import digest_of
from tasks.data.predictions import learnt_images
from tasks.data.reference import SPLIT, EvaluatedImages, evaluated_of
from tasks.gate import any_two
from tasks.predict.inputs import Source, open_labelled, read
from tasks.predict.predict import predict as classify
from tasks.production.logged import MEASURED, pairs


@flow
def compare(
    a: str,
    b: str,
    data: str | None = None,
    output: str | None = None,
    image_column: str | None = None,
    label_column: str | None = None,
    force: bool = False,
    answers: Sequence[str] = (),
) -> Document:
    """Compares the answers of any two registered versions for the same images.

    Args:
        a: `NAME`, which means its champion, `NAME@ALIAS` or `NAME@NUMBER`.
        b: Another version, written like `a`; the result says by how much this one is better.
        data: A folder or a URL as for the flow `predict`, with or without classes; a relative path
            starts at the project's folder. If None, the test split of the newer version.
        output: The Parquet file for the images to which the two give different labels.
        image_column: The Parquet column with the images; `image` or `img` if None.
        label_column: The Parquet column with their classes; `label` or `labels` if None.
        force: Replace the output if it exists.
        answers: Folders to which servers have logged what is compared; nothing is classified then.

    Returns:
        The run's document, as `--json` prints it.

    Raises:
        ValueError: The user has to correct something.
    """
    project = find_project()
    models = check(project, a, b, data, output, force, answers)
    path = predict.check_output(project, data, output, force) if output else None
    with publish.begun(project, "compare", models[0].name) as run:
        if answers:
            place = ", ".join(answers)
            comparison, differences = compare_logged(project, models, answers)
        else:
            with _opened(run, models, data, image_column, label_column) as (place, source):
                comparison, differences = compare_on(run, models, source)
        outcome = any_two.sentences(comparison, *(model.title for model in models))[0]
        if path:
            _write(differences, path)
        found: Document = {"data": place, "output": path and str(path)}
        found |= {"a": models[0].identity(), "b": models[1].identity(), "comparison": comparison}
        return publish.write(project, run.document(**found, outcome=outcome))


def _write(table: pa.Table, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic.replacing(path) as aside:
        pq.write_table(table, aside)


def check(
    project: Project,
    a: str,
    b: str,
    data: str | None,
    output: str | None,
    force: bool,
    answers: Sequence[str],
) -> tuple[ModelVersion, ModelVersion]:
    """Checks the arguments of the flow, before it begins.

    Returns:
        The two versions.

    Raises:
        UsageError: There is no such version, both are the same, there are no such images, there
            are two kinds of them, or the output cannot be written.
    """
    first, second = (predict.find_named(project, text) for text in (a, b))
    if (first.name, first.version) == (second.name, second.version):
        raise UsageError(f"{a} and {b} are both {first.title}: name two versions.")
    if data is not None and answers:
        raise UsageError("--data has images classified, --answers has been answered: name one.")
    if data is not None:
        predict.check_input(project, data, "--data")
    if output is not None:
        predict.check_output(project, data, output, force)
    return first, second


def compare_on(
    run: FlowRun, models: Sequence[ModelVersion], source: Source
) -> tuple[dict[str, Any], pa.Table]:
    """Has two versions classify the same images, and compares their answers.

    Args:
        run: The run, in whose store the answers are kept meanwhile.
        models: The two versions.
        source: The images.

    Returns:
        What `tasks.gate.any_two.compare` returns.

    Raises:
        ValueError: There is no image, a file is broken, or a package is.
    """
    folder = run.store.runs.temporary(run.id)
    files = [folder / f"{number}.parquet" for number, _ in enumerate(models)]
    for model, file in zip(models, files, strict=True):
        classify(Registered(run.project, model), source, file, run.store)
    shown = [
        (image.path, image.sha256, image.label, digest_of(image.data))
        for unit in source.units()
        for image in read(source, unit)
    ]
    if not shown:
        raise ValueError("There are no images to compare the models on.")
    columns = dict(zip(any_two.IMAGES, zip(*shown, strict=True), strict=True))
    images = pa.table(columns, pa.schema(dict.fromkeys(columns, pa.string())))
    learnt = [
        np.load(file, allow_pickle=False) if file else None
        for file in (learnt_images(run.project, model) for model in models)
    ]
    rules = load_section(run.project.params, models[1].name, Gate)
    a, b = (any_two.read_answers(file, images) for file in files)
    return any_two.compare(a, b, images, learnt, rules)


def compare_logged(
    project: Project, models: Sequence[ModelVersion], answers: Sequence[str]
) -> tuple[dict[str, Any], pa.Table]:
    """Compares what two versions have answered in production, with the labels that came later.

    Args:
        project: The clone.
        models: The two versions.
        answers: The folders, as the flow takes them.

    Returns:
        What `tasks.gate.any_two.compare` returns.

    Raises:
        ValueError: A folder is none of answers, or both have answered no image.
    """
    (a, b), images = pairs(project, models, [project.root / place for place in answers])
    if not len(images):
        names = " and ".join(model.title for model in models)
        raise ValueError(f"There is no image that {names} have both answered in production.")
    rules = load_section(project.params, models[1].name, Gate)
    return any_two.compare(a, b, images, (None, None), rules, MEASURED)


def show(document: Document) -> None:
    """Shows the tables, and what they say."""
    models = (document["a"], document["b"])
    any_two.show(document["comparison"], *(f"{m['name']} version {m['version']}" for m in models))
    console.say("")
    console.say(escape(f"{'images':<10} {document['data']}"))
    if document["output"]:
        console.say(escape(f"{'output':<10} {document['output']}"))
    console.say(f"{'took':<10} {document['took']:.1f} s")


@contextmanager
def _opened(
    run: FlowRun,
    models: Sequence[ModelVersion],
    data: str | None,
    image_column: str | None,
    label_column: str | None,
) -> Iterator[tuple[str, Source]]:
    """The name of the images for a person, and the images.

    Raises:
        ValueError: No images were named, and the store has lost those of the evaluations.
    """
    if data is not None:
        with predict.fetched(run, data, "--data") as folder:
            source = open_labelled(folder, data, image_column, label_column)
            yield f"the {source.split} split of {data}" if source.split else data, source
        return
    newest_first = sorted(models, key=lambda model: (model.created, model.version), reverse=True)
    for model in newest_first:  # the store may have lost what the newer one was evaluated on
        if evaluated := evaluated_of(run.project, model):
            reader = EvaluatedImages(evaluated.source, evaluated.validated)
            yield (
                f"the {SPLIT} split of {model.title}",
                Source(evaluated.source.format, reader),
            )
            return
    first, second = models
    raise ValueError(
        f"The store has lost what {first.title} and {second.title} were evaluated on, which it "
        "keeps for the champion and the reference only: name other images with --data."
    )
