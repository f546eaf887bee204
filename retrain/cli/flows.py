"""The commands that run a flow, one for each module of `flows/`: `retrain train vit`."""

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from flows import pipelines
from retrain import preflight, roots
from retrain.cli.command import Commands, print_json
from retrain.params import load_workload, parse_override
from retrain.project import Project
from retrain.runs import lost

if TYPE_CHECKING:
    from retrain.runs.pipeline import Pipeline
    from retrain.runs.records import Document


def add_commands(commands: Commands) -> None:
    """Adds a command for each flow with steps; another has a command of its own."""
    for name, pipeline in pipelines().items():
        parser = commands.add(name, partial(_run, pipeline), pipeline.help, workload=True)
        parser.add_argument(
            "--set",
            action="append",
            default=[],
            metavar="KEY=VALUE",
            dest="overrides",
            help="replace a parameter, such as train.lr=1e-3; nothing after the = drops it to its "
            "default (repeatable)",
        )
        for option, parameter in pipeline.options.items():
            parser.add_argument(f"--{option}", metavar="VALUE", help=f"sets {parameter}")
        parser.add_argument("--data-rev", metavar="REV", help="use the data of this git revision")
        parser.add_argument(
            "--as",
            metavar="NAME",
            dest="as_name",
            help="run under a name of its own, with a champion of its own",
        )
        if pipeline.promotes:
            parser.add_argument(
                "--promote",
                action="store_true",
                help="promote the model if it passes, also with --set or --data-rev, or if it was "
                "rolled back",
            )
        parser.add_argument(
            "--dry-run", action="store_true", help="show what would run and why, and run nothing"
        )
        parser.add_argument("--run", action="store_true", help="run even if nothing has changed")
        parser.add_argument(
            "--refresh", action="store_true", help="run every step, taking nothing from the cache"
        )
        parser.add_argument(
            "--force", action="store_true", help="run steps that need more than this machine has"
        )


def _run(pipeline: "Pipeline", project: Project, options: argparse.Namespace) -> int:
    from retrain.runs import console

    overrides = dict(parse_override(text) for text in _overrides(pipeline, options))
    # First, so that a wrong parameter is refused at once.
    workload = load_workload(project.params, options.workload, overrides, as_name=options.as_name)
    pipeline.check(workload, project, options.force)
    promote = _is_to_promote(pipeline, options)
    with console.shown_on(sys.stderr):  # it may have to read data that is not under DVC
        dry_run = pipeline.dry_run(project, workload, options.data_rev, promote)
    if options.dry_run:
        preview = pipeline.preview(dry_run, insist=options.run, refresh=options.refresh)
        print_json(preview) if options.json else _show_preview(preview)
        return 0
    # After a run that was killed, a flow has to run, even if that finds nothing to do.
    has_to_run = options.run or options.refresh or lost.are_there(project)
    if not has_to_run and (same := pipeline.unchanged(dry_run)):
        roots.add(project, ())
        if warning := pipeline.data_warning(workload.data, project, options.data_rev):
            print(warning, file=sys.stderr)
        print_json(same | {"took": _seconds()}) if options.json else print(same["outcome"])
        return 0
    first = next(iter(pipeline.imports)) if options.refresh else dry_run.has_to_run
    pipeline.check_slowly(first, workload, project, options.force)
    for line in pipeline.forecast(first, workload, project):
        print(line, file=sys.stderr)
    imports = pipeline.imports_from(first, project)
    preflight.check_surroundings(project)
    document = _run_on_screen(pipeline, project, overrides, promote, options, imports)
    if options.json:
        print_json(document)
    return 0


def _overrides(pipeline: "Pipeline", options: argparse.Namespace) -> list[str]:
    """The parameters that the command line sets, as `--set` has them."""
    given = {parameter: getattr(options, name) for name, parameter in pipeline.options.items()}
    set_by_name = [f"{name}={value}" for name, value in given.items() if value is not None]
    return [*options.overrides, *set_by_name]


def _is_to_promote(pipeline: "Pipeline", options: argparse.Namespace) -> bool | None:
    """Whether a run may change what is served: with other parameters or data it is a trial.

    Returns:
        True if it was told to; None if it may, except for a version that was rolled back.
    """
    if pipeline.promotes and options.promote:
        return True
    tries = bool(options.overrides or options.data_rev) and options.as_name is None
    return False if tries else None


def _show_preview(preview: "Document") -> None:
    for step in preview["steps"]:
        print(f"{step['step']:<20} would {step['would']}: {step['why']}")
    print(preview["outcome"])


def _run_on_screen(
    pipeline: "Pipeline",
    project: Project,
    overrides: dict[str, Any],
    promote: bool | None,
    options: argparse.Namespace,
    imports: list[Callable[[], object]],
) -> "Document":
    """Runs a flow's steps."""

    def run() -> Any:
        return pipeline.as_prefect_flow()(
            options.workload,
            overrides,
            options.data_rev,
            options.refresh,
            run=True,
            promote=promote,
            as_name=options.as_name,
            force=options.force,
        )

    name = f"{pipeline.name}-{options.as_name or options.workload}"
    return run_on_screen(project, name, run, pipeline.show, options.json, imports)


def run_on_screen(
    project: Project,
    name: str,
    run: Callable[[], Any],
    show: Callable[["Document"], None],
    to_json: bool,
    imports: list[Callable[[], object]],
) -> "Document":
    """Runs a flow through Prefect and shows it, with the libraries' output in a log file.

    Args:
        project: The clone.
        name: Of the log file.
        run: Makes the Prefect flow and calls it; returns the run's document.
        show: Shows the document to a person.
        to_json: Leave standard output to the document.
        imports: Called while a server starts.
    """
    from retrain.runs import console

    log = project.logs / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}.log"
    with console.on_screen(log, to_stderr=to_json):
        try:
            _use_prefect(project, imports)
            with lost.marked(project):
                document = run()
        except Exception as error:
            traceback.print_exc()  # into the log file
            _send_logs()
            error.add_note(f"More is in {log}")
            raise
        document["took"] = _seconds()
        if not to_json:
            show(document)
    return dict(document)


def _send_logs() -> None:
    """Has Prefect send its last log records now: what it says if it cannot goes to the log file."""
    if handlers := sys.modules.get("prefect.logging.handlers"):
        with suppress(Exception):
            handlers.APILogHandler.flush()


def _seconds() -> float:
    """Since this process was started, with its imports."""
    import psutil

    began: float = psutil.Process().create_time()
    return round(time.time() - began, 3)


def _use_prefect(project: Project, imports: list[Callable[[], object]]) -> None:
    """Uses the Prefect server that there is; if there is none, starts one for this process.

    Args:
        project: The clone.
        imports: Called while a server starts.
    """
    from retrain.servers.ephemeral import start_ephemeral_server

    if not use_prefect_server(project):
        start_ephemeral_server(project, [partial(import_module, "prefect.main"), *imports])


def use_prefect_server(project: Project) -> bool:
    """Uses the Prefect server of `make up`, or the one that the user names in `PREFECT_API_URL`.

    Call this before Prefect is imported.

    Returns:
        Whether there is one.

    Raises:
        ConnectionError: It does not answer within seconds.
    """
    from retrain.servers import reachable, services

    os.chdir(project.root)  # where Prefect reads prefect.toml
    os.environ.setdefault("PREFECT_HOME", str(project.state / "prefect"))
    server = next((each for each in services.running(project) if each.name == "prefect"), None)
    if server:
        os.environ.setdefault("PREFECT_API_URL", f"{server.url}/api")  # wins over prefect.toml
    api = os.environ.get("PREFECT_API_URL")
    if api:
        reachable.check("PREFECT_API_URL", api, "/health")
    return bool(api)
