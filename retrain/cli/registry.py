"""The commands about registered models: what is known of them, and what a person decides."""

import argparse
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from retrain.cli.command import Commands, print_json
from retrain.errors import UsageError
from retrain.messages import message_of
from retrain.project import Project
from retrain.runs.records import Document

if TYPE_CHECKING:
    from retrain.registry.ledger import Entry, Ledger

Choice = Literal["approve", "reject"]
REVIEWS: Mapping[Choice, str] = {
    "approve": "Promote the model that waits for approval.",
    "reject": "Reject the model that waits for approval.",
}


def add_commands(commands: Commands) -> None:
    """Adds `status`, `history`, `approve`, `reject`, `rollback`, `card` and `export`."""
    help_ = "Show what is in production, what waits for approval, and how the last runs ended."
    status = commands.add("status", _status, help_)
    status.add_argument("workload", nargs="?", help="show its last run whole")
    help_ = "Show what was promoted, rejected, left waiting or rolled back, by whom and why."
    history = commands.add("history", _history, help_, workload=True)
    history.add_argument(
        "--plot", type=Path, metavar="FILE.png", help="draw the champions' metric over time"
    )
    for choice, help_ in REVIEWS.items():
        review = commands.add(choice, partial(_review, choice), help_, workload=True)
        review.add_argument("--reason", required=True, help="why, for the ledger")
        review.add_argument(
            "--version", type=int, metavar="VERSION", help="only if it is this version that waits"
        )
    help_ = "Make the champion before the current one champion again."
    rollback = commands.add("rollback", _rollback, help_, workload=True)
    rollback.add_argument("--reason", required=True, help="why, for the ledger")
    rollback.add_argument(
        "--to", type=int, metavar="VERSION", help="go back to this earlier champion"
    )
    card = commands.add("card", _card, "Show the card of a model: its data, results and limits.")
    card.add_argument(
        "model", metavar="NAME[@VERSION]", help="a version, by its number or an alias (champion)"
    )
    help_ = "Write a model for the Auto classes of transformers, or as an ONNX file."
    export = commands.add("export", _export, help_)
    export.add_argument(
        "model", metavar="NAME[@VERSION]", help="a version, by its number or an alias (champion)"
    )
    export.add_argument("--to", required=True, metavar="DIR", help="a new folder")
    export.add_argument(
        "--format", choices=("huggingface", "onnx"), default="huggingface", help="(huggingface)"
    )


def _status(project: Project, options: argparse.Namespace) -> int:
    from flows.train import waiting
    from retrain.registry import decisions, versions
    from retrain.runs import console, records

    if options.workload:
        records.check_name(project, options.workload)
    shown: list[dict[str, Any]] = []
    for name in [options.workload] if options.workload else records.names(project):
        champion = versions.champion(project, name)
        shown.append(
            {
                "workload": name,
                "champion": champion and champion.public(),
                "fault": decisions.fault(project, name),
                "waiting": waiting(project, name),
                "last_run": records.last_run(project, name),
            }
        )
    if options.json:
        print_json(shown)
        return 0
    columns = ("workload", "champion", "accuracy", "registered", "last run")
    console.print_table(columns, [_status_row(**each) for each in shown])
    for each in shown:
        if each["fault"]:
            print(each["fault"])
        if each["waiting"]:
            print(f"{each['waiting']['says']}.")
    if options.workload:
        _print_images("the champion", shown[0]["champion"])
        _print_images("the last run's model", shown[0]["last_run"])
    if options.workload and (last := shown[0]["last_run"]) and "error" not in last:
        with console.shown_on(sys.stdout):
            import_module(f"flows.{last['flow']}").PIPELINE.show(last | {"took": last["seconds"]})
    return 0


def _status_row(
    workload: str,
    champion: dict[str, Any] | None,
    fault: str | None,
    waiting: Mapping[str, Any] | None,
    last_run: Document | None,
) -> tuple[Any, ...]:
    from retrain.runs import records

    ended = f"{last_run['flow']}: {records.outcome(last_run)}" if last_run else "not run here yet"
    if last_run and last_run.get("waiting") and waiting is None:
        ended = f"{last_run['flow']}: its model waited for approval; retrain history {workload}"
    if champion is None:
        return workload, "none", None, None, ended
    accuracy = f"{champion['metrics']['accuracy']:.4f}"
    return workload, f"version {champion['version']}", accuracy, champion["created"], ended


def _print_images(whose: str, document: Mapping[str, Any] | None) -> None:
    """Prints what images a model takes, in one line; nothing for a model that there is not."""
    images = (document or {}).get("images")
    if not images:
        return
    size, colours = images["size"], "grey" if images["channels"] == 1 else "RGB"
    told = [f"{size} x {size} {colours}", f"resize {images['resize']}"]
    if "mean" in images:  # not in the records of older versions
        told += [
            images["resampling"],
            *(f"{name} {_each(images[name])}" for name in ("mean", "std")),
        ]
    print(f"{whose} takes images of {', '.join(told)}")


def _each(values: Sequence[float]) -> str:
    """The value of each channel; one value, if they are all equal."""
    shown = values[:1] if len({*values}) == 1 else values
    return " ".join(f"{value:.4g}" for value in shown)


def _history(project: Project, options: argparse.Namespace) -> int:
    from retrain.registry import decisions
    from retrain.runs import console, records

    written = decisions.read(project, options.workload)
    if not written.entries:
        records.check_name(project, options.workload)
    if options.plot:
        _plot(project, options.workload, written, options.plot)
    if options.json:
        print_json(
            [
                dataclasses.asdict(entry) | {"rules": decisions.rules(project, written, entry)}
                for entry in written.entries
            ]
        )
        return 0
    rows = [
        (
            entry.time,
            entry.action,
            _from_to(entry),
            entry.verdict,
            entry.who,
            entry.reason,
        )
        for entry in written.entries
    ]
    columns = ("time", "action", "from -> to", "verdict", "who", "reason")
    console.print_table(columns, rows)
    return 0


def _from_to(entry: "Entry") -> str:
    """The champion before, and the version that was decided about."""
    before = "none" if entry.previous is None else str(entry.previous)
    if entry.appoints:
        return f"{before} -> {entry.version}"
    return f"{before}, not {'yet ' if entry.action == 'waiting' else ''}{entry.version}"


def _plot(project: Project, name: str, written: "Ledger", file: Path) -> None:
    """Draws the metric of the gate over the champions.

    Raises:
        UsageError: The file cannot be written.
    """
    from retrain.params import load_workload, workload_names
    from retrain.registry import plot, versions
    from retrain.workload import Gate

    gate = Gate()
    if name in workload_names(project.params):  # not if it was run under a name of its own
        gate = load_workload(project.params, name).gate
    champions = [
        (entry, version)
        for entry in written.entries
        if entry.appoints and (version := versions.get(project, name, entry.version))
    ]
    try:
        plot.plot(champions, gate.metric, file)
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}.") from error


def _review(choice: Choice, project: Project, options: argparse.Namespace) -> int:
    from flows.train import review

    done = review(project, options.workload, choice, options.reason, options.version)
    if done.run:
        _end_suspended(project, done.run, done.state, done.outcome)
    if options.json:
        print_json(dataclasses.asdict(done))
    else:
        print(f"{done.outcome}.")
    return 0


def _end_suspended(project: Project, run: str, state: str, outcome: str) -> None:
    """Ends the flow run that is suspended until what was decided now, if there is its server.

    The decision is carried out already, and stays so if the server does not answer.
    """
    from retrain.cli.flows import use_prefect_server
    from retrain.runs import suspension

    try:
        if use_prefect_server(project):
            suspension.end(run, state, f"{outcome}.")
    except Exception as error:
        print(
            f"The flow run {run} could not be ended; resume or cancel it in Prefect: "
            f"{message_of(error)}",
            file=sys.stderr,
        )


def _rollback(project: Project, options: argparse.Namespace) -> int:
    from flows.rollback import go_back

    done = go_back(project, options.workload, options.reason, options.to)
    if options.json:
        print_json(dataclasses.asdict(done))
    else:
        print(f"{done.outcome}.")
        if done.says:
            print(f"{done.says}.")
    return 0


def _card(project: Project, options: argparse.Namespace) -> int:
    from flows.predict import find_named
    from retrain.registry import model_card

    version = find_named(project, options.model)
    card = model_card.read(project, version)
    if card is None:
        raise ValueError(f"{version.name} version {version.version} has no card: it is too old.")
    print_json({"card": card}) if options.json else print(card, end="")
    return 0


def _export(project: Project, options: argparse.Namespace) -> int:
    from flows.export import export_version

    folder = str(Path.cwd() / options.to)
    done = export_version(project, options.model, folder, options.format)
    if options.json:
        print_json(dataclasses.asdict(done))
    else:
        print(done.outcome)
    return 0
