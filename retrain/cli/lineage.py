"""The commands about how a version came about: `lineage`, `reproduce`."""

import argparse
import dataclasses
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows import predict
from retrain.cli.command import Commands, print_json
from retrain.project import Project

if TYPE_CHECKING:
    from retrain.registry.ledger import Entry
    from retrain.registry.lineage import Lineage, Made
    from retrain.registry.versions import ModelVersion

UNKNOWN = "not recorded"
SHOWN = 12  # characters of a key in a table
MAX_FILES = 5  # that are named


def add_commands(commands: Commands) -> None:
    """Adds `lineage` and `reproduce`."""
    help_ = "Show what a version, or a file of predictions, came from: data, code, steps, machine."
    lineage = commands.add("lineage", _lineage, help_)
    lineage.add_argument(
        "subject",
        metavar="NAME[@VERSION]|FILE.parquet",
        help="a version, as vit@champion, vit@7 or vit; or a file that `retrain predict` wrote",
    )
    lineage.add_argument(
        "--images",
        type=Path,
        metavar="FILE",
        help="write the SHA-256 of each image with its path, split and label (.parquet or .csv)",
    )
    help_ = "Train a version again from its recorded commit, data and parameters; compare weights."
    again = commands.add("reproduce", _reproduce, help_)
    again.add_argument("version", metavar="NAME[@VERSION]", help="as vit@champion, vit@7 or vit")


def _lineage(project: Project, options: argparse.Namespace) -> int:
    from retrain.registry import decisions, lineage
    from retrain.runs import console

    file, origin = Path.cwd() / options.subject, None
    if file.suffix == ".parquet" or file.is_file():
        origin, version = predict.find_model_of(project, file)
    else:
        version = predict.find_named(project, options.subject)
    record = lineage.read(project, version)
    if options.images:
        if record is None:
            named = f"{version.name} version {version.version}"
            raise ValueError(f"The images of {named} were {UNKNOWN}.")
        written = lineage.write_images(project, record, Path.cwd() / options.images)
    entries = decisions.read(project, version.name).entries
    about = [entry for entry in entries if entry.version == version.version]
    if options.json:
        print_json(
            {
                "file": origin,
                "model": version.public(),
                "decisions": [dataclasses.asdict(entry) for entry in about],
                "lineage": record and dataclasses.asdict(record),
            }
        )
        return 0
    for name, text in _lines(origin, version, about, record):
        print(f"{name:<13}{text}")
    if record:
        columns = ("step", "key", "output", "made", "by run", "seconds")
        console.print_table(columns, [_row(made) for made in record.steps])
    if options.images:
        print(f"{written:,} images are listed in {options.images}.")
    return 0


def _reproduce(project: Project, options: argparse.Namespace) -> int:
    from rich.markup import escape

    from retrain.registry.reproduce import reproduce
    from retrain.runs import console

    version = predict.find_named(project, options.version)
    done = reproduce(project, version, lambda line: print(line, file=sys.stderr, flush=True))
    if options.json:
        print_json(dataclasses.asdict(done) | {"outcome": done.outcome})
        return 0 if done.identical else 1
    if not done.identical:
        same = {True: "the same", False: "another"}
        rows = [
            (each.step, same[each.identical], escape(each.inputs) or same[True])
            for each in done.steps
        ]
        console.print_table(("step", "output", "inputs"), rows)
        apart = [
            (name, *map(console.number, values), console.number(_distance(*values)))
            for name, values in done.metrics.items()
        ]
        console.print_table(("metric", "registered", "reproduced", "apart"), apart)
    print(done.outcome)
    print(f"weights {done.weights}")
    if not done.identical:
        print(f"     -> {done.reproduced}")
    return 0 if done.identical else 1


def _distance(before: float | None, now: float | None) -> float | None:
    return None if before is None or now is None else abs(now - before)


def _lines(
    origin: Mapping[str, Any] | None,
    version: "ModelVersion",
    entries: "list[Entry]",
    record: "Lineage | None",
) -> Iterator[tuple[str, str]]:
    """The lineage from the file or the version down to the images: a name and a text each."""
    from retrain.runs import console

    if origin:
        state = {True: "as they were written", False: "NOT those that were written"}
        told = state.get(origin["unchanged"], f"a copy in which their digest is {UNKNOWN}")
        digest = f" (sha256 {origin['images']})" if origin["images"] else ""
        yield "predictions", f"{origin['rows']:,} images, {told}{digest}"
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
    training, trained = record.training, record.trained
    numerics = ", ".join(f"{name} {value}" for name, value in training.get("numerics", {}).items())
    best = f"best epoch {training['best_epoch']}; " if "best_epoch" in training else ""
    yield "training", f"{best}{numerics}" or UNKNOWN
    if start := training.get("start"):
        yield "started from", f"weights {start}"
    if record.entry:
        yield "parameters", f"{record.entry} of params.yaml{_overrides(record.overrides)}"
    data = record.data
    kind = "under DVC" if data["tracked"] else "not under DVC"
    asked = f", of git revision {data['revision']}" if data["revision"] else ""
    yield "data", f"{data['path']} ({kind}), version {data['version']}{asked}"
    for split, found in record.images.splits.items():
        yield "images", f"{split}: {found['rows']:,}, sha256 {found['sha256']}"
    checks = record.validation
    told = [f"{checks[name]:,} {what}" for name, what in CHECKED.items() if name in checks]
    if told:
        yield "checks", ", ".join(told)
    code = f"commit {record.commit}" if record.commit else "outside git"
    yield "code", f"{code}{_uncommitted(record.uncommitted)}"
    libraries = ", ".join(f"{name} {value}" for name, value in record.libraries.items())
    yield "libraries", libraries or UNKNOWN
    yield "locked", f"requirements.lock, sha256 {record.requirements or UNKNOWN}"
    yield "machine", _machine(trained.provenance.get("machine"))
    yield "Prefect run", trained.provenance.get("run") or UNKNOWN
    yield "MLflow run", record.mlflow_run


CHECKED = {"quarantined": "images set aside", "near_duplicates": "near duplicates"}


def _overrides(overrides: Mapping[str, Any]) -> str:
    changed = ", ".join(f"{name}={value}" for name, value in overrides.items())
    return f", with {changed}" if changed else ""


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
