"""The commands about what runs have left: `why` and `report`."""

import glob
import webbrowser
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from retrain.cli.command import LOOKING, Answer, Clone, Name, ToJson, app
from retrain.errors import UsageError
from retrain.messages import local_time
from retrain.project import Project
from retrain.runs import console


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
    from retrain.runs import records

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


def _page_of(project: Project, workload: str, run: str | None) -> Path:
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
