"""The commands about the models in the registry: `status`, `history`."""

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from retrain.cli.command import Commands, print_json
from retrain.project import Project
from retrain.runs.records import Document


def add_commands(commands: Commands) -> None:
    """Adds `status` and `history`."""
    help_ = "Show what is in production, and how the last run of each workload ended."
    status = commands.add("status", _status, help_)
    status.add_argument("workload", nargs="?", help="show its last run whole")
    help_ = "Show what was promoted or rejected, and why."
    commands.add("history", _history, help_, workload=True)


def _status(project: Project, options: argparse.Namespace) -> int:
    from retrain.registry import versions
    from retrain.runs import console, records

    if options.workload:
        records.check_name(project, options.workload)
    shown: list[dict[str, Any]] = []
    for name in [options.workload] if options.workload else records.names(project):
        champion = versions.champion(project, name)
        last = records.last_run(project, name)
        shown.append(
            {"workload": name, "champion": champion and champion.public(), "last_run": last}
        )
    if options.json:
        print_json(shown)
        return 0
    columns = ("workload", "champion", "accuracy", "registered", "last run")
    console.print_table(columns, [_status_row(**each) for each in shown])
    if options.workload:
        _print_images("the champion", shown[0]["champion"])
        _print_images("the last run's model", shown[0]["last_run"])
    if options.workload and (last := shown[0]["last_run"]) and "error" not in last:
        with console.on_stdout():
            import_module(f"flows.{last['flow']}").PIPELINE.show(last | {"took": last["seconds"]})
    return 0


def _status_row(
    workload: str, champion: dict[str, Any] | None, last_run: Document | None
) -> tuple[Any, ...]:
    from retrain.runs import records

    ended = f"{last_run['flow']}: {records.outcome(last_run)}" if last_run else "not run here yet"
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
    from retrain.registry import versions
    from retrain.runs import console, records

    events = [dataclasses.asdict(event) for event in versions.history(project, options.workload)]
    if not events:
        records.check_name(project, options.workload)
    if options.json:
        print_json(events)
        return 0
    rows = [
        (
            event["time"],
            event["action"],
            event["version"],
            event["previous"],
            event["verdict"],
            "\n".join(f"{rule['rule']}: {rule['value']:.4f}" for rule in event["rules"]),
        )
        for event in events
    ]
    columns = ("time", "action", "version", "champion before", "verdict", "rules")
    console.print_table(columns, rows)
    return 0
