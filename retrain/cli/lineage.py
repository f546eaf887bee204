"""The commands about how a version came about: `lineage`, `reproduce`."""

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrain.cli.command import REGISTRY, Answer, Clone, app

if TYPE_CHECKING:
    from retrain.registry.ledger import Entry
    from retrain.registry.lineage import Lineage, Made
    from retrain.registry.reproduce import Reproduction
    from retrain.registry.versions import ModelVersion

UNKNOWN = "not recorded"
SHOWN = 12  # characters of a key in a table
MAX_FILES = 5  # that are named
CHECKED = {"quarantined": "images set aside", "near_duplicates": "near duplicates"}


@app.command(group=REGISTRY)
def lineage(subject: str, /, *, images: Path | None = None, project: Clone) -> Answer:
    """Show what a version, or a file of predictions, came from: data, code, steps, machine.

    Args:
        subject: A version, as vit@champion, vit@7 or vit; or a Parquet file that `retrain predict`
            wrote.
        images: Write the SHA-256 of each image with its path, split and label into this .parquet or
            .csv file.
    """
    from flows import predict
    from retrain.registry import decisions, lineage
    from retrain.runs import console

    file, origin = Path.cwd() / subject, None
    if file.suffix == ".parquet" or file.is_file():
        origin, version = predict.find_model_of(project, file)
    else:
        version = predict.find_named(project, subject)
    record = lineage.read(project, version)
    count = 0
    if images:
        if record is None:
            named = f"{version.name} version {version.version}"
            raise ValueError(f"The images of {named} were {UNKNOWN}.")
        count = lineage.write_images(project, record, Path.cwd() / images)
    ledger = decisions.read(project, version.name)
    entries = [entry for entry in ledger.entries if entry.version == version.version]
    document = {
        "file": origin,
        "model": version.public(),
        "decisions": entries,
        "lineage": record,
    }

    def show() -> None:
        for name, text in _lines(origin, version, entries, record):
            print(f"{name:<13}{text}")
        if record:
            columns = ("step", "key", "output", "made", "by run", "seconds")
            console.print_table(columns, [_row(made) for made in record.steps])
        if images:
            print(f"{count:,} images are listed in {images}.")

    return Answer(document, show)


@app.command(group=REGISTRY)
def reproduce(version: str, /, *, project: Clone) -> Answer:
    """Train a version again from its recorded commit, data and parameters; compare weights.

    Args:
        version: A version, as vit@champion, vit@7 or vit.
    """
    from flows import predict
    from retrain.registry.reproduce import reproduce

    model = predict.find_named(project, version)
    result = reproduce(project, model, lambda line: print(line, file=sys.stderr, flush=True))
    document = dataclasses.asdict(result) | {"outcome": result.outcome}

    def show() -> None:
        if not result.identical:
            _show_differences(result)
        print(result.outcome)
        print(f"weights {result.weights}")
        if not result.identical:
            print(f"     -> {result.reproduced}")

    return Answer(document, show, failed=not result.identical)


def _show_differences(result: "Reproduction") -> None:
    """Shows in which steps and metrics a model that was trained again is another one."""
    from retrain.runs import console

    same = {True: "the same", False: "another"}
    steps = [(step, same[is_identical]) for step, is_identical in result.steps.items()]
    console.print_table(("step", "output"), steps)
    metrics = [
        (name, *map(console.number, (before, after, _distance(before, after))))
        for name, (before, after) in result.metrics.items()
    ]
    console.print_table(("metric", "registered", "reproduced", "apart"), metrics)


def _distance(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else abs(after - before)


def _lines(
    origin: Mapping[str, Any] | None,
    version: "ModelVersion",
    entries: "list[Entry]",
    record: "Lineage | None",
) -> Iterator[tuple[str, str]]:
    """The lineage from the file or the version down to the images: a name and a text each."""
    from retrain.runs import console

    if origin:
        states = {True: "as they were written", False: "NOT those that were written"}
        state = states.get(origin["unchanged"], f"a copy in which their digest is {UNKNOWN}")
        digest = f" (sha256 {origin['images']})" if origin["images"] else ""
        yield "predictions", f"{origin['rows']:,} images, {state}{digest}"
    aliases = f" ({', '.join(version.aliases)})" if version.aliases else ""
    named = f"{version.name} version {version.version}{aliases}"
    yield "version", f"{named}, registered {version.created}"
    for entry in entries:
        reason = f" ({entry.reason})" if entry.reason else ""
        by = entry.who or "somebody"
        yield "decision", f"{entry.action} {entry.time} by {by}: {entry.verdict}{reason}"
    yield "package", version.package_digest
    yield "weights", version.weights
    metrics = (f"{name} {console.number(value)}" for name, value in version.metrics.items())
    yield "metrics", ", ".join(metrics)
    if record:
        yield from _recorded(record)
        return
    yield "training", UNKNOWN
    yield "data", f"version {version.data}" if version.data else UNKNOWN
    yield "images", UNKNOWN
    yield "code", f"commit {version.commit}" if version.commit else UNKNOWN
    yield "machine", UNKNOWN
    yield "MLflow run", version.run_id


def _recorded(record: "Lineage") -> Iterator[tuple[str, str]]:
    """The lines that only a record has."""
    training, data, checks = record.training, record.data, record.validation
    best = f"best epoch {training['best_epoch']}; " if "best_epoch" in training else ""
    yield "training", f"{best}{_pairs(training.get('numerics', {}))}" or UNKNOWN
    if start := training.get("start"):
        yield "started from", f"weights {start}"
    if record.entry:
        changed = ", ".join(f"{name}={value}" for name, value in record.overrides.items())
        yield "parameters", f"{record.entry} of params.yaml{changed and f', with {changed}'}"
    kind = "under DVC" if data["tracked"] else "not under DVC"
    revision = f", of git revision {data['revision']}" if data["revision"] else ""
    yield "data", f"{data['path']} ({kind}), version {data['version']}{revision}"
    for split, images in record.images.splits.items():
        yield "images", f"{split}: {images['rows']:,}, sha256 {images['sha256']}"
    counts = [f"{checks[name]:,} {what}" for name, what in CHECKED.items() if name in checks]
    if counts:
        yield "checks", ", ".join(counts)
    code = f"commit {record.commit}" if record.commit else "outside git"
    yield "code", f"{code}{_uncommitted(record.uncommitted)}"
    yield "libraries", _pairs(record.libraries) or UNKNOWN
    yield "locked", f"requirements.lock, sha256 {record.requirements or UNKNOWN}"
    yield "machine", _machine(record.trained.provenance.get("machine"))
    yield "Prefect run", record.trained.provenance.get("run") or UNKNOWN
    yield "MLflow run", record.mlflow_run


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _uncommitted(changes: Mapping[str, Any] | None) -> str:
    if changes is None:
        return ""
    files = changes["files"]
    more = f" and {len(files) - MAX_FILES} more" if len(files) > MAX_FILES else ""
    named = f"{', '.join(files[:MAX_FILES])}{more}"
    return f", with uncommitted changes of {named} (sha256 {changes['sha256']})"


def _machine(machine: Mapping[str, Any] | None) -> str:
    if machine is None:
        return UNKNOWN
    parts = [machine["processor"], f"{machine['cores']} cores", *machine["instructions"]]
    parts += machine["accelerators"] or ["no accelerator"]
    parts += [machine["system"], f"Python {machine['python']}"]
    return f"{machine['host']}: {', '.join(parts)}"


def _row(made: "Made") -> tuple[Any, ...]:
    known = made.provenance
    return (
        made.step,
        made.key and made.key[:SHOWN],
        made.digest[:SHOWN],
        known.get("time", UNKNOWN),
        str(known.get("run", UNKNOWN))[:SHOWN],
        known.get("seconds"),
    )
