"""The flow `validate`: pull > validate, to check the data before a training or on a schedule.

retrain validate vit
prefect deployment run validate/vit --watch
"""

from flows import train
from retrain.runs import records
from retrain.runs.pipeline import Pipeline
from retrain.runs.records import Document
from retrain.runs.runner import Runner
from retrain.runs.state import RunState
from retrain.step import REPORT, DataVersion
from tasks.pull.step import STEP as PULL, data_version, outdated
from tasks.validate.outcome import say_near_duplicates
from tasks.validate.step import STEP as VALIDATE


def order(run: Runner, version: DataVersion) -> None:
    """Takes a version of the data through its checks.

    Raises:
        ValueError: The data cannot be read, or fails its checks.
    """
    data = run(PULL, version)
    run(VALIDATE, data)


def document(run: RunState) -> Document:
    """A run as JSON-able values; the parts of steps that did not run are None."""
    checked = run.artifacts.get("validate")
    base = records.base_document(run)
    names = ("rows", "quarantined", "near_duplicates")
    base["data"] |= {name: checked and checked.facts[name] for name in names}
    if checked is None:
        return base | {"look": {}, "outcome": None}
    docs = checked.folder / REPORT / "data_docs" / "index.html"
    outcome = f"The data of {run.workload.name} passes its checks."
    return base | {
        "look": {"Data Docs": run.context.project.relative(docs)},
        "outcome": outcome,
    }


def standing(document: Document) -> str:
    """The result of the checks."""
    return "the data passes its checks"


def show(document: Document) -> None:
    """Shows the size of the data, and where the results are."""
    from rich.markup import escape

    from retrain.runs import console

    console.say(f"\n[bold]{escape(document['outcome'])}[/]")
    rows = ", ".join(f"{count:,} {split}" for split, count in document["data"]["rows"].items())
    console.say(f"{rows}; {document['data']['quarantined']:,} images set aside")
    say_near_duplicates(document)
    console.say_places(document)


def publish(document: Document) -> None:
    """Shows a summary as an artifact of the Prefect flow run."""
    from prefect.artifacts import create_markdown_artifact

    name = document["workload"].lower().replace("_", "-")
    lines = [
        f"# {document['outcome']}",
        "",
        records.data_in_markdown(document),
        "",
        *records.steps_in_markdown(document),
    ]
    create_markdown_artifact(key=f"{name}-data", markdown="\n".join(lines))


PIPELINE = Pipeline(
    name="validate",
    steps=(PULL, VALIDATE),
    help="Pulls and checks a workload's data.",
    order=order,
    data_version=data_version,
    data_warning=outdated,
    document=document,
    standing=standing,
    show=show,
    publish=publish,
    imports={"pull": ("dvc.repo",), "validate": ("great_expectations",)},
    others=[step.name for step in train.PIPELINE.steps],
)

# Gives Prefect its flow, under the module's own name, when it is asked for.
__getattr__ = PIPELINE.module_attribute
