"""The commands about what runs have left: `why`, `report`, `open` and `logs`."""

import glob
import time
import webbrowser
from pathlib import Path
from typing import Annotated, Literal, get_args

from cyclopts import Parameter

from retrain.cli.command import LOOKING, Answer, Clone, Name, ToJson, app, names
from retrain.errors import UsageError
from retrain.messages import local_time
from retrain.project import Project

Place = Literal["report", "mlflow", "prefect"]

WATCH_SECONDS = 0.3


@app.command(group=LOOKING)
def why(
    workload: Name,
    /,
    *,
    flow: Literal["train", "tune", "validate"] | None = None,
    project: Clone,
) -> Answer:
    """Show why each step of the last run ran, and what had changed.

    Example: `retrain why vit`

    Args:
        flow: The last run of this flow.
    """
    from retrain.runs import console, records

    records.check_name(project, workload)
    last_run = records.last_run(project, workload, flow)
    if last_run is None:
        command = f"retrain {flow or 'train'} {workload}"
        raise ValueError(f"{workload} has not been run here yet: {command}")

    def show() -> None:
        print(f"{last_run['flow']} of {local_time(last_run['time'])}, run {last_run['run'][:8]}")
        console.print_steps(last_run)

    return Answer(last_run["steps"], show)


@app.command(group=LOOKING)
def report(
    workload: Name,
    /,
    *,
    run: str | None = None,
    open_it: Annotated[bool, Parameter("--open")] = False,
    project: Clone,
    to_json: ToJson,
) -> Answer:
    """Show where the report of the last run is, or of an earlier one.

    Example: `retrain report vit --open`

    Args:
        run: The id of a run, or how it begins.
        open_it: Open it in the browser.
    """
    file = _page_of(project, workload, run)
    if open_it and not to_json:
        webbrowser.open(file.as_uri())
    return Answer({"report": str(file), "run": file.stem}, lambda: print(file))


def _page_of(project: Project, workload: str, run: str | None = None) -> Path:
    """The report of a run: as it was made, because the store may have lost what it shows."""
    from flows.pages import page, publish
    from retrain.runs import records

    records.check_name(project, workload)
    document = records.find_run(project, workload, run)
    name = document["run"] if document else run
    files = sorted(page.folder_of(project, workload).glob(f"{glob.escape(name or '')}*.html"))
    if name and files:
        return files[0]
    if document is None and run is None:
        raise ValueError(f"{workload} has not been run here yet: retrain train {workload}")
    if document is None:
        raise UsageError(
            f"{workload}: no such run is recorded here; see {page.FOLDER}/{workload}/."
        )
    return publish.write_run(project, document)


@app.command(name="open", group=LOOKING)
def open_place(
    workload: Annotated[str, Parameter(completer=lambda _: [*names(), *get_args(Place)])] = "",
    place: Place = "report",
    /,
    *,
    project: Clone,
    to_json: ToJson,
) -> Answer:
    """Open a report, or a page of a server, in the browser.

    Examples: `retrain open vit`, `retrain open vit prefect`, `retrain open mlflow`

    Args:
        workload: An entry of params.yaml, or a name of `--as`; for a server it may be left out.
        place: What to open.
    """
    from retrain.faults import did_you_mean

    if workload in get_args(Place):
        workload, place = "", workload  # type: ignore[assignment]  # it is one of them
    if not workload and place == "report":
        raise UsageError(f"Of which workload?{did_you_mean('', names())}")
    url = _address_of(project, place, workload)
    if not to_json:
        webbrowser.open(url)
    return Answer({"url": url}, lambda: print(url))


def _address_of(project: Project, place: Place, workload: str) -> str:
    """The URL of a page about a workload; of a server's first page if it is empty.

    Raises:
        UsageError: There is no such page, or the server does not run.
    """
    from retrain.runs import records

    if place == "report":
        return _page_of(project, workload).as_uri()
    if workload:
        records.check_name(project, workload)
    run = records.last_run(project, workload) if workload else None
    if place == "mlflow":
        return _server(project, place) + (f"/#/models/{workload}" if workload else "")
    return _server(project, place) + (f"/runs/flow-run/{run['run']}" if run else "")


def _server(project: Project, name: str) -> str:
    """The address of a server of `retrain up`, or of MLflow's, if the environment names one."""
    from retrain.servers import services

    url = services.address_of(project, name)
    if url is None:
        raise UsageError(f"{name} does not run here: start it with retrain up.")
    return url


@app.command(group=LOOKING)
def logs(
    subject: Annotated[str, Parameter(completer=names)] = "",
    /,
    *,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"))] = False,
    project: Clone,
) -> Answer:
    """Print the log of a run or of a server; with --json, where it is.

    Examples: `retrain logs vit`, `retrain logs worker --follow`

    Args:
        subject: A workload, or a server of `retrain up`.
        follow: Go on printing what is added, until Ctrl-C.
    """
    file = _log_of(project, subject)

    def show() -> None:
        with file.open(encoding="utf-8", errors="replace") as stream:
            print(stream.read(), end="", flush=True)
            while follow:
                time.sleep(WATCH_SECONDS)
                print(stream.read(), end="", flush=True)

    return Answer({"log": str(file)}, show)


def _log_of(project: Project, subject: str) -> Path:
    """The newest log of a workload or of a server; of any workload without a subject."""
    from retrain.faults import did_you_mean
    from retrain.runs import records

    files = sorted(project.logs.glob("[0-9]*-[0-9]*-*.log"))
    if subject in records.names(project):
        files = [file for file in files if file.stem.split("-", 3)[3:] == [subject]]
    elif subject:
        files = [file for file in [project.logs / f"{subject}.log"] if file.is_file()]
    if not files:
        servers = [file.stem for file in project.logs.glob("*.log") if not file.stem[0].isdigit()]
        raise UsageError(
            f"No log of {subject or 'a run'} in {project.relative(project.logs)}/."
            + did_you_mean(subject, [*records.names(project), *servers])
        )
    return files[-1]
