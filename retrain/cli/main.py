"""`retrain`: the project's command line.

Exit codes: 0 success (a model that the gate rejects is no failure), 1 a run that failed, 2 wrong
usage. With `--json`, standard output holds one JSON document and nothing else.
"""

import argparse
import dataclasses
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from retrain.cli import store
from retrain.cli.command import Commands
from retrain.errors import UsageError
from retrain.project import Project, find_project
from retrain.workload import load_workload, parse_override, workload_names


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; see `retrain --help`.

    Returns:
        The exit code.
    """
    options = _parser().parse_args(arguments)
    try:
        project = find_project()
        code: int = options.command(project, options)
        return code
    except UsageError as error:
        return _refuse(options, error, 2)
    except KeyboardInterrupt:
        return _refuse(options, "Interrupted.", 130)
    except Exception as error:
        return _refuse(options, error, 1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="retrain", description="Keep an image classifier trained."
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def command(name: str, function: Any, help_: str, *, workload: bool) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help_, description=help_)
        sub.set_defaults(command=function)
        sub.add_argument("--json", action="store_true", help="print one JSON document")
        sub.add_argument(
            "--debug",
            action="store_true",
            default=argparse.SUPPRESS,
            help="show the traceback of an error",
        )
        if workload:
            sub.add_argument("workload", help="an entry of params.yaml")
        return sub

    train = command("train", _train, "Run the train flow for a workload.", workload=True)
    train.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="replace a parameter, such as train.lr=1e-3 (repeatable)",
    )
    train.add_argument("--data-rev", metavar="REV", help="use the data of this git revision")
    train.add_argument("--run", action="store_true", help="run even if nothing has changed")
    train.add_argument(
        "--refresh", action="store_true", help="run every step, taking nothing from the cache"
    )
    command("status", _status, "Show what is in production.", workload=False)
    command("history", _history, "Show what was promoted or rejected, and why.", workload=True)
    command("why", _why, "Show why each step of the last run ran or was cached.", workload=True)
    command("up", _up, "Start the Prefect server, a worker, the MLflow UI and Ray.", workload=False)
    command("down", _down, "Stop what `up` started.", workload=False)
    store.add_commands(Commands(commands))
    return parser


def _train(project: Project, options: argparse.Namespace) -> int:
    overrides = dict(parse_override(text) for text in options.overrides)
    # Refused before anything is started, and at once.
    workload = load_workload(project.params, options.workload, overrides)
    from flows.order import import_ahead, look
    from retrain.runs import records

    looked = look(project, workload, options.data_rev)
    if not (options.run or options.refresh) and (same := looked.unchanged()):
        _print_json(same) if options.json else print(records.outcome(same))
        return 0
    first = "pull" if options.refresh else looked.has_to_run
    return _run(project, overrides, options, import_ahead(project, first))


def _run(
    project: Project,
    overrides: dict[str, Any],
    options: argparse.Namespace,
    imports: list[Callable[[], object]],
) -> int:
    from retrain.runs import console

    log = project.logs / f"{time.strftime('%Y%m%d-%H%M%S')}-{options.workload}.log"
    with console.on_screen(log, to_stderr=options.json):
        try:
            _use_prefect(project, imports)
            from flows.train import train
            from retrain.runs import records

            done: Any = train(
                options.workload, overrides, options.data_rev, options.refresh, run=True
            )
        except Exception as error:
            traceback.print_exc()  # into the log file
            error.add_note(f"More is in {log}")
            raise
        if not options.json:
            console.closing(done, records.verdict(done))
    if options.json:
        _print_json(done)
    return 0


def _status(project: Project, options: argparse.Namespace) -> int:
    from retrain.registry import versions
    from retrain.runs import console, records

    shown: list[dict[str, Any]] = []
    for name in workload_names(project.params):
        champion = versions.champion(project, name)
        last = records.last_run(project, name)
        shown.append(
            {"workload": name, "champion": champion and champion.public(), "last_run": last}
        )
    if options.json:
        _print_json(shown)
        return 0
    columns = ("workload", "champion", "accuracy", "registered", "last run")
    console.table(columns, [_status_row(**each) for each in shown])
    return 0


def _status_row(
    workload: str, champion: dict[str, Any] | None, last_run: dict[str, Any] | None
) -> tuple[Any, ...]:
    from retrain.runs import records

    said = records.outcome(last_run) if last_run else "not run here yet"
    if champion is None:
        return workload, "none", None, None, said
    accuracy = f"{champion['metrics']['accuracy']:.4f}"
    return workload, f"version {champion['version']}", accuracy, champion["created"], said


def _history(project: Project, options: argparse.Namespace) -> int:
    from retrain.registry import versions
    from retrain.runs import console

    load_workload(project.params, options.workload)
    events = [dataclasses.asdict(event) for event in versions.history(project, options.workload)]
    if options.json:
        _print_json(events)
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
    console.table(("time", "action", "version", "champion before", "verdict", "rules"), rows)
    return 0


def _why(project: Project, options: argparse.Namespace) -> int:
    from retrain.runs import console, records

    load_workload(project.params, options.workload)
    last = records.last_run(project, options.workload)
    if last is None:
        raise ValueError(
            f"{options.workload} has not been run here yet: retrain train {options.workload}"
        )
    if options.json:
        _print_json(last["steps"])
    else:
        console.why(last)
    return 0


def _up(project: Project, options: argparse.Namespace) -> int:
    from retrain.servers import services

    before = services.running(project)
    now = services.up(project)
    if options.json:
        _print_json([dataclasses.asdict(service) for service in now])
        return 0
    for service in now:
        state = "runs already" if service in before else "started"
        print(f"{service.name:<8} {state:<13} {service.url or service.address or ''}")
    return 0


def _down(project: Project, options: argparse.Namespace) -> int:
    from retrain.servers import services

    stopped = services.down(project)
    if options.json:
        _print_json(stopped)
    else:
        print("Stopped: " + ", ".join(stopped) if stopped else "Nothing was running.")
    return 0


def _use_prefect(project: Project, imports: list[Callable[[], object]]) -> None:
    """Uses the Prefect server of `make up` if it runs, else one that this process brings along.

    A server that the user names in `PREFECT_API_URL` is used as it is. To be called before Prefect
    is imported.

    Args:
        project: The clone.
        imports: What to do while a server of our own starts.
    """
    from retrain.servers import services
    from retrain.servers.ephemeral import start_ephemeral_server

    os.chdir(project.root)  # where Prefect reads prefect.toml
    os.environ.setdefault("PREFECT_HOME", str(project.state / "prefect"))
    server = next((each for each in services.running(project) if each.name == "prefect"), None)
    if server:
        os.environ.setdefault("PREFECT_API_URL", f"{server.url}/api")  # wins over prefect.toml
    if not os.environ.get("PREFECT_API_URL"):
        start_ephemeral_server(project, [partial(import_module, "flows.train"), *imports])


def _refuse(options: argparse.Namespace, error: Exception | str, code: int) -> int:
    if options.debug and isinstance(error, Exception):
        traceback.print_exception(error)
    print(f"retrain: {str(error).strip() or type(error).__name__}", file=sys.stderr)
    if code == 1:
        print(*getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
    return code


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=1))


if __name__ == "__main__":
    sys.exit(main())
