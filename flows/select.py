"""The flow `select`: chooses what to label next, of images that have no labels yet.

retrain select vit --input photos --count 200
prefect deployment run select/vit --param input=photos --watch

The images are compared with those of the workload's data, by the embeddings of the flow `suspects`,
which runs first if they are not in the store.
"""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from rich.markup import escape

from flows import predict
from flows.pages import publish
from flows.suspects import suspects
from retrain.disk import digest_of
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
from tasks.predict.predict import Source, open_source
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
        known = directions(np.load(_embeddings(run, workload), allow_pickle=False))
        target = publish.folder_of(project, workload)
        with predict.fetched(run, input) as folder:
            source = open_source(folder, input, image_column)
            rows, counts = _choose(run, registered, source, known, count)
            name = f"select-{digest_of(rows)[:8]}"  # of this list alone
            review_list.write(
                rows,
                source.files,
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
            look={"report": publish.latest_of(workload, "select")}
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
        return suspects.look(run.project, config).artifacts.get(embed_with_champion.name)

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
    """The rows of the chosen images, the most useful first; and how many images there are."""
    folder, features = run.store.runs.temporary(run.id), [True] * len(source.places)
    with console.counted("select", len(source.places)) as show:
        tables = [*ask(registered.package, source.files, source.places, folder, show, features)]
    if not any(table["label"].null_count < len(table) for table in tables):
        raise ValueError("None of the images can be classified.")
    every = pa.concat_tables(tables)
    answers = every.filter(every["label"].is_valid())
    images = np.flatnonzero(every["label"].is_valid())
    new, probabilities = directions(rows_of(answers, "features")), rows_of(answers, "probabilities")
    usual, distances = neighbours(known), nearest(new, known)
    closest, middle = float(np.quantile(usual, CLOSE)), max(float(np.median(usual)), 1e-12)
    rows = []
    for chosen in choose(probabilities, new, distances, count, closest).tolist():
        file, row = source.places[images[chosen]]
        rows.append(
            {
                "why": review_list.TO_LABEL,
                "path": source.paths[images[chosen]],
                "file": file,
                "row": row,
                "sha256": answers["sha256"][chosen].as_py(),
                "proposed": answers["label"][chosen].as_py(),
                "confidence": float(probabilities[chosen].max()),
                "distance": float(distances[chosen]) / middle,
            }
        )
    return rows, {
        "rows": len(every),
        "errors": len(every) - len(answers),
        "near_duplicates": int((distances <= closest).sum()),
    }
