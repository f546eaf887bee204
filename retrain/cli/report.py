"""The command that shows the page of a run."""

import glob
from typing import Annotated

from cyclopts import Parameter

from retrain.cli.command import TRAINING, Answer, Clone, Name, app
from retrain.errors import UsageError


@app.command(group=TRAINING)
def report(
    workload: Name,
    /,
    *,
    run: str | None = None,
    open_it: Annotated[bool, Parameter("--open")] = False,
    project: Clone,
) -> Answer:
    """Show where the report of the last run is, or of an earlier one.

    Args:
        run: The id of a run, or how it begins.
        open_it: Open it in the browser.
    """
    import webbrowser

    from flows.pages import page, publish
    from retrain.runs import records

    records.check_name(project, workload)
    document = records.find_run(project, workload, run)
    name = document["run"] if document else run
    files = sorted(page.folder_of(project, workload).glob(f"{glob.escape(name or '')}*.html"))
    if name and files:
        file = files[0]  # as it was made: the store may have lost what it shows
    elif document:
        file = publish.write_run(project, document)
    else:
        raise UsageError(
            f"{workload}: no such run is recorded here; see {page.FOLDER}/{workload}/."
        )
    if open_it:
        webbrowser.open(file.as_uri())
    return Answer({"report": str(file), "run": file.stem}, lambda: print(file))
