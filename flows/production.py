"""The flow `production`: compares what the model answered with labels that came later.

retrain drift vit --labels labels.csv

If the accuracy is lower than in the model's test by more than `production.max_drop`, it emits the
event `retrain.production`, on which an automation of Prefect can start `train/vit`.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape

from flows.pages import publish
from flows.predict import find_model
from retrain.flow import flow
from retrain.params import load_section
from retrain.project import Project, find_project
from retrain.registry import tracking, versions
from retrain.registry.ledger import CHAMPION
from retrain.registry.versions import ModelVersion
from retrain.runs import console
from retrain.runs.notifications import emit
from retrain.runs.records import Document
from retrain.workload import Production
from tasks.live_accuracy import (
    MIN_IMAGES,
    keep_labels as keep_labels,
    measure,
    read_answers,
    read_labels,
    sentence,
)

EVENT = "retrain.production"
EVENT_FACTS = ("labelled", "accuracy", "low", "high", "test", "difference")


@flow
def production(
    workload: str, answers: Sequence[str] = (), version: str | int = CHAMPION
) -> Document:
    """Compares the accuracy in production with that of the test.

    Args:
        workload: The name of a workload, or of what runs with `--as`.
        answers: Folders to which servers have logged; the answers of `predict` count anyway.
        version: The number of a version, or an alias.

    Returns:
        The run's document, as `--json` prints it.

    Raises:
        ValueError: The user has to correct something.
    """
    project = find_project()
    model = find_model(project, f"{workload}@{version}")
    with publish.flow_run(project, "production", workload) as run:
        found = measure_version(project, model, [project.root / place for place in answers])
        if found["worse"]:
            facts = {name: found[name] for name in EVENT_FACTS}
            emit(EVENT, model.name, {"model": model.name, "version": model.version} | facts)
        document = run.document(
            workload=workload,
            model=model.identity(),
            production=found,
            state="Worse" if found["worse"] else None,
            outcome=sentence(model, found),
        )
        return publish.write(project, document)


def measure_version(project: Project, model: ModelVersion, logs: Sequence[Path]) -> dict[str, Any]:
    """What is known of a version in production, as `tasks.live_accuracy.measure` gives it.

    Raises:
        UsageError: A folder of `logs` does not exist, or has something else.
    """
    content = tracking.read_artifact(project, model.run_id, "evaluate/classes.json")
    known, every = read_labels(project, model.name), read_answers(project, model.name, logs)
    found = measure(
        every[every["weights"] == model.weights],
        known,
        model.metrics,
        json.loads(content)["classes"] if content else [],
        load_section(project.params, model.name, Production),
    )
    if found["worse"] is not None:
        return found | {"instead": None}
    # Where labels come later than the next champion, no champion ever has enough of them.
    labelled = every[every["sha256"].isin(known)]
    images = labelled.groupby("weights")["sha256"].nunique()
    earlier = (
        version.version
        for version in versions.every_of(project, model.name)
        if version.version < model.version and images.get(version.weights, 0) >= MIN_IMAGES
    )
    return found | {"instead": next(earlier, None)}


def show_result(document: Document) -> None:
    """Shows the weeks, the classes that lost most, and the result."""
    found = document["production"]
    measured = ("accuracy", "low", "high")
    rows = [
        [
            row["week"],
            f"{row['images']:,}",
            f"{row['labelled']:,}",
            *(console.number(row[name]) for name in measured),
        ]
        for row in found["weeks"]
    ]
    console.say_table(["week", "images", "labelled", *measured], rows)
    rows = [
        [
            row["label"],
            f"{row['labelled']:,}",
            console.number(row["recall"]),
            console.number(row["test_recall"]),
        ]
        for row in found["classes"]
    ]
    console.say_table(["class", "labelled", "recall", "in the test"], rows)
    console.say(f"[bold]{escape(document['outcome'])}[/]")
    if found["unknown"]:
        console.say(escape(f"The version does not know: {', '.join(found['unknown'])}."))
