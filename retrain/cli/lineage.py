"""The commands `lineage` and `reproduce`: how a version of a model came about."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retrain.cli.command import KEEPING, LOOKING, Answer, Clone, Version, app, in_words, place
from retrain.messages import wrapped
from retrain.registry import decisions, lineage as records, packages
from retrain.registry.ledger import Entry
from retrain.registry.versions import ModelVersion
from retrain.runs import console

KEY_SHOWN, RUN_SHOWN = 12, 8  # characters of a key, and of a run, in a table


@app.command(group=LOOKING)
def lineage(
    subject: str, /, *, images: Path | None = None, card: bool = False, project: Clone
) -> Answer:
    """Show what a version, or a file of predictions, came from.

    Examples: `retrain lineage vit@champion`, `retrain lineage vit@champion --card`

    Args:
        subject: A version, as vit@champion, vit@7 or vit; or a Parquet file that `retrain predict`
            wrote.
        images: Write the SHA-256 of each image with its path, split and label into this .parquet or
            .csv file.
        card: Show the model card instead: the data, the results and the limits of the version.
    """
    from flows import predict

    file, origin = Path(place(subject)), None
    if file.suffix == ".parquet" or file.is_file():
        origin, version = predict.find_model_of(project, file)
    else:
        version = predict.find_named(project, subject)
    record = records.read(project, version)
    count = 0
    if images:
        count = records.write_images(project, record, Path(place(str(images))))
    ledger = decisions.read(project, version.name)
    entries = [entry for entry in ledger.entries if entry.version == version.version]
    text = packages.read_card(project, version)
    if card and text is None:
        raise ValueError(f"{version.title} has no card: the MLflow run of its training is gone.")
    document = {
        "file": origin,
        "model": version.public(),
        "decisions": entries,
        "lineage": record,
        "card": text,
    }

    if card:
        return Answer(document, lambda: print(text, end=""))

    def show() -> None:
        fields = _of_version(version, entries) + _of_record(record)
        for name, value in [("predictions", origin), *fields] if origin else fields:
            print(wrapped(f"{name:<13}{in_words(value)}", " " * 13))
        _show_steps(record)
        if images:
            print(f"{count:,} images are listed in {images}.")

    return Answer(document, show)


def _show_steps(record: Mapping[str, Any]) -> None:
    """Shows the steps from the data to the evaluation."""
    rows = [
        (
            output["step"],
            (output["key"] or "")[:KEY_SHOWN],
            output["digest"][:KEY_SHOWN],
            in_words(output["provenance"].get("time")),
            (output["provenance"].get("run") or "")[:RUN_SHOWN],
        )
        for output in record["steps"]
    ]
    console.print_table(("step", "key", "output", "made", "by run"), rows)


@app.command(group=KEEPING)
def reproduce(version: Version, /, *, project: Clone) -> Answer:
    """Train a version again as it was, and compare the weights.

    Example: `retrain reproduce vit@champion`
    """
    from flows import predict

    model = predict.find_named(project, version)
    result = records.reproduce(
        project, model, lambda line: print(line, file=sys.stderr, flush=True)
    )

    def show() -> None:
        if not result["identical"]:
            _show_differences(result)
        print(result["outcome"])
        print(f"weights {result['weights']}")
        if not result["identical"]:
            print(f"     -> {result['reproduced']}")

    return Answer(result, show, failed=not result["identical"])


def _show_differences(result: Mapping[str, Any]) -> None:
    """Shows in which steps and metrics a model that was trained again is another one."""
    steps = [
        (step, "the same" if is_same else "another") for step, is_same in result["steps"].items()
    ]
    console.print_table(("step", "output"), steps)
    metrics = [(name, *map(console.number, values)) for name, values in result["metrics"].items()]
    console.print_table(("metric", "registered", "reproduced"), metrics)


def _of_version(version: ModelVersion, entries: list[Entry]) -> list[tuple[str, Any]]:
    """What the registry knows of a version: a name and a value each."""
    aliases = f" ({', '.join(version.aliases)})" if version.aliases else ""
    decisions = [
        f"{entry.action} {entry.time} by {entry.who or 'somebody'}: {entry.verdict}"
        + (f" ({entry.reason})" if entry.reason else "")
        for entry in entries
    ]
    return [
        ("version", f"{version.title}{aliases}, registered {version.created}"),
        *(("decision", text) for text in decisions),
        ("package", version.package_digest),
        ("weights", version.weights),
        ("metrics", version.metrics),
    ]


def _of_record(record: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """What is recorded of how a version was made: a name and a value each."""
    provenance = records.output_of(record, "train")["provenance"]
    return [
        ("training", _chosen(record["training"], "start", "best_epoch", "numerics")),
        ("parameters", {"entry": record["entry"]} | dict(record["overrides"])),
        ("data", _chosen(record["data"], "path", "version", "tracked", "revision")),
        *(("images", {split: images}) for split, images in record["images"]["splits"].items()),
        ("checks", _chosen(record["validation"], "quarantined", "near_duplicates")),
        ("code", {"commit": record["commit"]} | dict(record["uncommitted"] or {})),
        ("libraries", records.libraries(record)),
        ("locked", {"requirements.lock": record["requirements"]}),
        ("machine", provenance.get("machine")),
        ("Prefect run", provenance.get("run")),
        ("MLflow run", record["mlflow_run"]),
    ]


def _chosen(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The values under some names, without those that are not known."""
    return {name: values[name] for name in names if values.get(name) is not None}
