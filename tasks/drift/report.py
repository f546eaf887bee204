"""Reports the drift between two samples: tables, files to keep, and an event for Prefect."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.markup import escape

from retrain.disk import write_json
from retrain.params import load_section
from retrain.project import Project
from retrain.registry.versions import ModelVersion
from retrain.runs import console
from retrain.runs.flow_runs import emit
from retrain.workload import Drift
from tasks.drift.compare import COLUMNS, compare, shares

EVENT = "retrain.drift"
TEST_SPLIT = "the test split"
MANY_COPIES = 0.05  # of the sample, of which people are told


def report(
    project: Project,
    version: ModelVersion,
    reference: pa.Table,
    incoming: pa.Table,
    place: str,
    against: str,
    run: str,
) -> dict[str, Any]:
    """Compares two samples, keeps the result below the project's state, and tells of a drift.

    Args:
        project: The clone.
        version: The version that classified both.
        reference: A sample with the columns of `tasks.data.image_facts.SCHEMA`.
        incoming: A sample of the incoming images, with the same columns.
        place: The name of the input.
        against: The name of the reference.
        run: The id of the flow run.

    Returns:
        The result, JSON-able.
    """
    threshold = load_section(project.params, version.name, Drift).threshold
    features = compare(reference, incoming)
    worst = max(features, key=lambda feature: float(feature["score"]))
    folder = project.state / "drift" / version.name
    result = {
        "reference": against,
        "reference_images": len(reference),
        "images": len(incoming),
        "threshold": threshold,
        "score": worst["score"],
        "feature": worst["feature"],
        "drifted": worst["score"] > threshold,
        "copies": len(incoming) - len(incoming["sha256"].unique()),
        "features": features,
        "labels": shares(reference, incoming),
        "file": project.relative(folder / f"{run}.json"),
    }
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(incoming.drop_columns(["features"]), folder / f"{run}.parquet")
    model = {"model": version.name, "version": version.version, "run": run, "input": place}
    write_json(folder / f"{run}.json", model | result)
    if result["drifted"]:
        reasons = {name: result[name] for name in ("score", "feature", "threshold")}
        emit(EVENT, version.name, model | reasons)
    return result


def sentence(drift: Mapping[str, Any]) -> str:
    """The result in one sentence, and another one if there are many copies of images."""
    score = f"{drift['score']:.1f}" if drift["score"] < 100 else "more than 100"
    verdict = "Drift" if drift["drifted"] else "No drift"
    text = (
        f"{verdict}: {drift['feature']} is furthest from {drift['reference']}, with a score of "
        f"{score}; chance alone seldom exceeds 1 (drift.threshold {drift['threshold']:g})."
    )
    if drift["copies"] > MANY_COPIES * drift["images"]:
        text += (
            f" {drift['copies']:,} of the {drift['images']:,} images are copies of others, byte by "
            "byte: is a camera stuck, or something sent twice?"
        )
    return text


def show(drift: Mapping[str, Any]) -> None:
    """Shows the features, then the labels."""
    rows = [
        [feature["feature"], *(console.number(feature[name]) for name in COLUMNS[1:])]
        for feature in drift["features"]
    ]
    console.say_table(COLUMNS, rows)
    shares = [
        [row["label"], f"{row['reference']:.1%}", f"{row['incoming']:.1%}"]
        for row in drift["labels"]
    ]
    console.say_table(["label", "reference", "incoming"], shares)
    console.say(f"[bold]{escape(sentence(drift))}[/]")
    console.say(
        escape(
            f"{drift['images']:,} images were compared with {drift['reference_images']:,} of "
            f"{drift['reference']}; {drift['file']}"
        )
    )
