"""The flow `select`: chooses what to label next, of images that have no labels yet.

retrain select vit --input photos --count 200
prefect deployment run select/vit --param input=photos --watch

The images are compared with those of the workload's data, by the embeddings of the flow `suspects`,
which runs first if they are not in the store.
"""

from collections import Counter
from itertools import count as count_from
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.markup import escape

from flows import predict
from flows.pages import page, publish
from flows.suspects import suspects
from retrain.digests import sha256_of
from retrain.errors import UsageError
from retrain.flow import flow
from retrain.params import load_workload
from retrain.project import Project, find_project
from retrain.registry.versions import ModelVersion
from retrain.runs import console
from retrain.runs.records import Document, FlowRun
from retrain.store import Artifact
from tasks.compute.asked import ask, rows_of
from tasks.data import package, review_list
from tasks.data.champion import Registered
from tasks.predict.inputs import Source, open_source
from tasks.select import CLOSE, choose, directions, nearest, neighbours
from tasks.suspects.embeddings import EMBEDDINGS, embed_with_champion

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST = 5000  # images


@flow
def select(
    workload: str, input: str, count: int = 200, image_column: str | None = None
) -> Document:
    """Chooses images that are worth a label: uncertain, new, and different from each other.

    Args:
        workload: An entry of `params.yaml`.
        input: A folder of images at any depth, a Parquet file or a folder of them, or
            a URL of either; a relative path starts at the project's folder.
        count: How many images to choose, at most.
        image_column: The Parquet column with the images; `image` or `img` if None.

    Returns:
        The run's document, as `--json` prints it.

    Raises:
        ValueError: The user has to correct something.
    """
    project = find_project()
    registered = Registered(project, check(project, workload, input, count))
    with publish.begun(project, "select", workload) as run:
        here = run.store.runs.temporary(run.id)
        known = directions(np.load(_embeddings(run, workload), allow_pickle=False))
        with predict.fetched(run, input) as folder:
            source = open_source(folder, input, image_column)
            rows, counts = _choose(run, registered, source, known, count)
            places = [source.places[row["row"]] for row in rows]
            images = review_list.with_images(source.files, places, rows)
            review_list.write(here, images)
        target = page.folder_of(project, workload)
        name = f"select-{sha256_of(here / review_list.FILE)[:8]}"  # of this list alone
        review_list.write_for_people(
            here,
            target,
            name,
            project.root,
            registered.version.title,
            [*package.classes_of(registered.package)],
        )
        document = run.document(
            workload=workload,
            input=input,
            model=registered.version.identity(),
            look={"report": page.latest_of(workload, "select")}
            | review_list.look(name, target, project.root),
            labels=dict(Counter(row["proposed"] for row in rows)),
            chosen=len(rows),
            **counts,
        )
        document["outcome"] = _outcome(document)
        return publish.write(project, document)


def check(project: Project, workload: str, input: str, count: int) -> ModelVersion:
    """Checks the arguments of the flow, before it begins.

    Returns:
        The champion.

    Raises:
        UsageError: There is no such workload, no champion, no such input, or nothing is to choose.
    """
    load_workload(project.params, workload)
    version = predict.find_named(project, workload)
    predict.check_input(project, input)
    if not 1 <= count <= MOST:
        raise UsageError(f"--count {count}: choose 1 to {MOST:,} images.")
    return version


def show(document: Document) -> None:
    """Shows what was chosen, and where it is."""
    rows = [[label, f"{images:,}"] for label, images in sorted(document["labels"].items())]
    console.say_table(["the model's answer", "chosen"], rows)
    console.say(f"[bold]{escape(document['outcome'])}[/]\n")
    for name, place in document["look"].items():
        console.say(escape(f"{name:<10} {place}"))
    console.say(f"{'took':<10} {document['took']:.1f} s")


def _outcome(document: Document) -> str:
    outcome = f"{document['chosen']:,} of {document['rows']:,} images are worth a label"
    if document["near_duplicates"]:
        outcome += f"; {document['near_duplicates']:,} are too much like images of the data"
    if document["errors"]:
        outcome += f"; {document['errors']:,} could not be classified"
    return f"{outcome}."


def _embeddings(run: FlowRun, workload: str) -> Path:
    """The file with the embeddings of the workload's data; the flow `suspects` makes it."""
    config = load_workload(run.project.params, workload)

    def find() -> Artifact | None:
        return suspects.dry_run(run.project, config).state.artifacts.get(embed_with_champion.name)

    artifact = find()
    if artifact is None:
        suspects(workload)
        artifact = find()
    assert artifact, workload
    return artifact.folder / EMBEDDINGS


def _choose(
    run: FlowRun,
    registered: Registered,
    source: Source,
    known: "NDArray[np.float32]",
    count: int,
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The rows of the chosen images, but for their content; and how many images there are."""
    rows: list[dict[str, Any]] = []
    embeddings, probabilities = [], []
    folder, features = run.store.runs.temporary(run.id), [True] * len(source.places)
    with console.counted("select", len(source.places)) as shown:
        for some in ask(registered.package, source.files, source.places, folder, shown, features):
            paths = source.paths[len(rows) :]
            sha256, labels = some["sha256"].to_pylist(), some["label"].to_pylist()
            rows += map(_row, paths, sha256, labels, count_from(len(rows)))
            labelled = some.filter(some["label"].is_valid())
            if len(labelled):
                embeddings.append(rows_of(labelled, "features"))
                probabilities.append(rows_of(labelled, "probabilities"))
    answered_rows = [row for row in rows if row["proposed"] is not None]
    if not answered_rows:
        raise ValueError("None of the images can be classified.")
    new, answers = directions(np.concatenate(embeddings)), np.concatenate(probabilities)
    usual, distances = neighbours(known), nearest(new, known)
    closest = float(np.quantile(usual, CLOSE))
    chosen = []
    for place in choose(answers, new, distances, count, closest).tolist():
        distance = distances[place] / max(np.median(usual), 1e-12)
        measured = {"confidence": answers[place].max(), "distance": distance}
        chosen.append(answered_rows[place] | measured)
    return chosen, {
        "rows": len(rows),
        "errors": len(rows) - len(answered_rows),
        "near_duplicates": int((distances <= closest).sum()),
    }


def _row(path: str, sha256: str | None, label: str | None, number: int) -> dict[str, Any]:
    """What is known of an image; `row` is its number in the input."""
    where = {"path": path, "file": path, "row": number, "sha256": sha256}
    return where | {"why": review_list.TO_LABEL, "proposed": label}
