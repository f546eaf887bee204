"""The flow `train`: pull > validate > preprocess > train > evaluate > gate > promote.

For a head on embeddings, `embed` comes before `train`. For rules on slices of the test images,
`slice` comes after `validate`, and `score_slices` after `evaluate`.

retrain train vit
prefect deployment run train/vit --watch
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from retrain import tracking
from retrain.errors import ChampionChangedError
from retrain.project import Project
from retrain.registry import decisions, ledger, signatures, versions
from retrain.runs import console, records, suspension
from retrain.runs.dry_run import DryRun
from retrain.runs.notify import notify_now
from retrain.runs.pipeline import Pipeline
from retrain.runs.records import Document
from retrain.runs.run import Run
from retrain.runs.state import RunState
from retrain.step import REPORT, DataVersion, plan
from retrain.store import Artifact
from retrain.workload import Workload
from tasks.compute.served import start_ahead
from tasks.embed.step import STEP as EMBED
from tasks.evaluate.champion import (
    REFERENCE_STEP as EVALUATE_REFERENCE,
    STEP as EVALUATE_CHAMPION,
    score_ahead,
    score_opponents,
)
from tasks.evaluate.classes import STEP as COMPARE_CLASSES, compare_classes
from tasks.evaluate.step import STEP as EVALUATE
from tasks.gate.comparison import (
    REFERENCE_STEP as COMPARE_REFERENCE,
    STEP as COMPARE_CHAMPION,
    compare_with,
)
from tasks.gate.step import STEP as GATE
from tasks.preprocess.step import STEP as PREPROCESS
from tasks.promote import approval, outcome
from tasks.promote.step import STEP as PROMOTE, Intent
from tasks.pull.step import STEP as PULL, data_version, outdated
from tasks.slice.step import (
    SCORE_STEP as SCORE_SLICES,
    STEP as SLICE,
    score_slices,
    slice_test_split,
)
from tasks.train.start import find_start
from tasks.train.step import STEP as TRAIN
from tasks.validate.outcome import say_near_duplicates
from tasks.validate.step import STEP as VALIDATE

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

COMPARISONS = 10  # of a model, while other runs change the champion


def order(run: Run | DryRun, version: DataVersion) -> None:
    """Takes a version of the data through all steps.

    Raises:
        ValueError: The user has to correct something, such as data that fails its checks. A model
            that the gate rejects is not an error.
    """
    data = run(PULL, version)
    checked = run(VALIDATE, data)
    compare_classes(run, checked)  # before hours of training, like the next one
    slice_test_split(run, data, checked)
    images = prepare(run, data, checked)
    start = find_start(run.workload, run.context.project, images, data)
    training = plan(TRAIN, run.workload, [images, data, start])
    if run.would_run(training):
        score_ahead(run, data, checked, training.key)
    model = run(TRAIN, images, data, start)
    scores = run(EVALUATE, model, images)
    decide(run, version, data, checked, model, scores)


def prepare(run: Run | DryRun, data: Artifact, checked: Artifact) -> Artifact:
    """Makes what the training takes: prepared images, or embeddings of them."""
    images = run(PREPROCESS, data, checked)
    return run(EMBED, images) if EMBED.needed(run.workload) else images


def decide(
    run: Run | DryRun,
    version: DataVersion,
    data: Artifact,
    checked: Artifact,
    model: Artifact,
    scores: Artifact,
) -> None:
    """Compares a model with the champion and carries the decision out.

    When another run has promoted its model meanwhile, the comparison is made again, with that one.

    Raises:
        ChampionChangedError: The champion changed during each of many comparisons.
        ValueError: As `order` does.
    """
    slices = score_slices(run, data, checked, scores)
    for left in reversed(range(COMPARISONS)):
        champion, reference = score_opponents(run, data, checked, scores)
        opponents = compare_with(run, scores, slices, champion, reference)
        decision = run(GATE, scores, opponents, slices)
        intent = Intent(run.state.promote, run.state.again)
        try:
            run(PROMOTE, version, data, checked, model, scores, decision, intent)
            return
        except ChampionChangedError:
            if not left:
                raise
            console.say("Another run has changed the champion; the model is compared again.")


def wait(project: Project, document: Document) -> None:
    """Suspends a run of a deployment whose model waits for approval.

    One that has waited before, and does so no more, is ended.
    """
    name, run = document["workload"], document["run"]
    written = decisions.read(project, name)
    over = approval.waited_before(written)
    if over and over.run not in (None, run):
        suspension.end(over.run, *approval.became_of(name, written, over))
    asked = approval.asked_by(written, run)
    if asked and asked == written.waiting and suspension.is_possible():
        notify_now("waiting", document["outcome"])
        _ask(project, name, written, asked)


def resume(project: Project, name: str, run: str) -> "State[Document] | None":
    """Carries out what a person has said of the model that a run let wait.

    Returns:
        The state that the run ends in. None if it did not let a model wait; or if the champion is
        another one by now, so that the model has to be compared again.
    """
    from prefect.states import Completed

    written = decisions.read(project, name)
    asked = approval.asked_by(written, run)
    if asked is None:
        return None
    if asked == written.waiting:
        said = _ask(project, name, written, asked)
        who = f"{said.name} ({ledger.who()})" if said.name else None
        try:
            approval.review(
                project, name, said.decision, said.reason, version=asked.version, who=who
            )
        except ChampionChangedError as error:
            console.say(str(error))
            return None
    state, message = approval.became_of(name, decisions.read(project, name), asked)
    return Completed(name=state, message=message)


def _ask(project: Project, name: str, written: ledger.Ledger, asked: ledger.Entry) -> approval.Form:
    """What a person says of the model that waits; suspends the run until then."""
    text = approval.question(project, name, written, asked)
    return suspension.ask(approval.Form, str(asked.number), text)


def cannot_sign(workload: Workload, project: Project, force: bool) -> Iterator[str]:
    """Why a run could not sign its decision at the end."""
    try:
        signatures.check(project)
    except ValueError as error:
        yield str(error)


def waiting(project: Project, name: str) -> dict[str, Any] | None:
    """The entry in the ledger of the model that waits, and `says`, what can be done about it."""
    entry = decisions.read(project, name).waiting
    if entry is None:
        return None
    champion = versions.champion(project, name)
    says = approval.standing(name, entry, champion.version if champion else None)
    return asdict(entry) | {"says": says}


def review(
    project: Project,
    name: str,
    choice: approval.Choice,
    reason: str,
    version: int | None = None,
) -> approval.Review:
    """Approves or rejects the model that waits; see `tasks.promote.approval.review`.

    Raises:
        UsageError: There is no such workload, or another version waits.
        ValueError: Nothing waits, or it cannot be approved.
    """
    if not decisions.read(project, name).entries:
        records.check_name(project, name)
    return approval.review(project, name, choice, reason, version=version)


IMPORTS = {
    "pull": ("dvc.repo",),
    "validate": ("great_expectations",),
    "preprocess": ("numpy", "pyarrow.parquet"),
    "embed": ("torch", "transformers.modeling_utils"),
    "train": ("mlflow", "torch", "ray.train.torch", "transformers.modeling_utils"),
    "evaluate": ("matplotlib.figure",),
}


def document(run: RunState) -> Document:
    """A run as JSON-able values; the parts of steps that did not run are None."""
    facts = {name: dict(artifact.facts) for name, artifact in run.artifacts.items()}
    decision = facts.get("gate")
    champion = decision.pop("champion") if decision else None
    base = records.base_document(run) | {"promote": run.promote}
    names = ("rows", "quarantined", "near_duplicates")
    base["data"] |= {name: facts.get("validate", {}).get(name) for name in names}
    result = base | {
        "training": facts.get("train"),
        "images": facts.get("evaluate", {}).get("images"),
        "precision": facts.get("evaluate", {}).get("precision"),
        "metrics": facts.get("evaluate", {}).get("metrics"),
        "champion": champion,
        "decision": decision,
        "model": facts.get("promote"),
        "look": _where_to_look(run),
    }
    if decision is None or result["model"] is None:
        return result | {"promoted": False, "rejected": False, "waiting": False, "outcome": None}
    is_champion = decision["verdict"] == "champion already"
    failed = (not outcome.passed(result) and not is_champion) or "withheld" in result["model"]
    is_waiting = "waiting" in result["model"]
    return result | {
        "promoted": run.promote and not (failed or is_waiting or is_champion),
        "rejected": failed and run.promote,
        "waiting": is_waiting,
        "outcome": outcome.verdict(result),
    }


def standing(document: Document) -> str:
    """Which version is champion, or why the version of this run is not."""
    version = f"version {document['model']['version']}"
    if document["decision"]["verdict"] == "champion already":
        return f"{version} is champion"
    if not document["promote"]:
        return f"{version} {outcome.compared(document)}"
    if why := document["model"].get("withheld"):
        return f"{version} is not promoted: {outcome.withheld(why)}"
    if document["waiting"]:
        return f"{version} {outcome.waits(document)}"
    return f"{version} was rejected {outcome.why_rejected(document)}"


def show(document: Document) -> None:
    """Shows the best epoch, the metrics, the rules, the verdict, and where the results are."""
    if training := document.get("training"):  # not in the records of older versions
        answers = f"; evaluated in {each}" if (each := document.get("precision")) else ""
        console.say(f"{_in_training(training)}{answers}")
    outcome.show(document)
    if document["data"]["quarantined"]:
        console.say(f"{document['data']['quarantined']} images were set aside by the checks.")
    say_near_duplicates(document)
    console.say_places(document)


def _in_training(facts: Mapping[str, Any]) -> str:
    """The best epoch of a training, and what was trained, in one line."""
    others = ("batch_size", "best_epoch", "numerics", "of_equals", "parameters", "start", "weights")
    metrics = [name for name in facts if name not in others]
    equals = f"; {facts['of_equals']}" if "of_equals" in facts else ""
    values = ", ".join(f"{name} {console.number(facts[name])}" for name in metrics)
    told = facts["numerics"].get("told_precision")
    precision = f"told {told}" if told else facts["numerics"]["precision"]
    return (
        f"best epoch {facts['best_epoch']}: {values}{equals}; {facts['parameters']:,} parameters, "
        f"{precision}, batches of {facts['batch_size']}"
    )


def publish(document: Document) -> None:
    """Shows the decision and a summary as artifacts of the Prefect flow run."""
    from prefect.artifacts import create_markdown_artifact, create_table_artifact

    name = document["workload"].lower().replace("_", "-")
    create_table_artifact(
        key=f"{name}-decision",
        table=[
            {"rule": rule["rule"], "value": round(rule["value"], 4), "passed": rule["passed"]}
            for rule in outcome.rules(document)
        ],
        description=document["outcome"],
    )
    create_markdown_artifact(key=f"{name}-summary", markdown=markdown(document))


def markdown(document: Document) -> str:
    """A run's document in Markdown."""
    theirs = (document["champion"] or {}).get("metrics", {})
    lines = [
        f"# {document['workload']}: {document['outcome']}",
        "",
        records.data_in_markdown(document),
        "",
        f"Evaluated in {document['precision']}.",
        "",
        "| metric | challenger | champion |",
        "|---|---|---|",
        *(
            f"| {metric} | {console.number(value)} | {console.number(theirs.get(metric))} |"
            for metric, value in document["metrics"].items()
        ),
        "",
        *records.steps_in_markdown(document),
        "",
        *(f"- {name}: `{place}`" for name, place in document["look"].items()),
    ]
    return "\n".join(lines)


def _where_to_look(run: RunState) -> dict[str, str]:
    """Where a person finds the results of a run, by name."""
    places = {}
    if "validate" in run.artifacts:
        docs = run.artifacts["validate"].folder / REPORT / "data_docs" / "index.html"
        places["Data Docs"] = run.context.project.relative(docs)
    if "evaluate" in run.artifacts:
        plots = run.artifacts["evaluate"].folder / REPORT
        places["plots"] = run.context.project.relative(plots)
    if "train" in run.artifacts:
        mlflow = run.artifacts["train"].folder / REPORT / "mlflow.json"
        if mlflow.is_file():
            places["MLflow run"] = json.loads(mlflow.read_text(encoding="utf-8"))["run_id"]
    return places


PIPELINE = Pipeline(
    name="train",
    steps=(
        PULL,
        VALIDATE,
        COMPARE_CLASSES,
        SLICE,
        PREPROCESS,
        EMBED,
        TRAIN,
        EVALUATE,
        SCORE_SLICES,
        EVALUATE_CHAMPION,
        EVALUATE_REFERENCE,
        COMPARE_CHAMPION,
        COMPARE_REFERENCE,
        GATE,
        PROMOTE,
    ),
    help="Trains a workload's model and promotes it if the gate passes it.",
    order=order,
    data_version=data_version,
    data_warning=outdated,
    document=document,
    standing=standing,
    show=show,
    publish=publish,
    imports=IMPORTS,
    preparations={"train": tracking.client},  # may create MLflow's database
    ahead={"evaluate": start_ahead},  # for the champion, and for the check before a promotion
    promotes=True,
    resume=resume,
    wait=wait,
    faults=cannot_sign,
)

# Gives Prefect its flow, under the module's own name, when it is asked for.
__getattr__ = PIPELINE.module_attribute
