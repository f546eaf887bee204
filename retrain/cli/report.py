"""The command that shows the page of a run."""

from typing import Annotated

from cyclopts import Parameter

from retrain.cli.command import LOOKING, Answer, Clone, Name, app
from retrain.errors import UsageError


@app.command(group=LOOKING)
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
    if document is None:
        raise UsageError(
            f"{workload}: no such run is recorded here; see {page.FOLDER}/{workload}/."
        )
    file = publish.write_run(project, document)
    if open_it:
        webbrowser.open(file.as_uri())
    return Answer({"report": str(file), "run": document["run"]}, lambda: print(file))
