"""The commands that show what runs and decisions have left, and those by which a person decides."""

import glob
import sys
import webbrowser
from collections.abc import Iterator, Mapping
from time import strftime
from typing import Annotated, Any

from cyclopts import Parameter

from retrain.cli.command import (
    DECIDING,
    LOOKING,
    UNKNOWN,
    Answer,
    Clone,
    Name,
    ToJson,
    Version,
    app,
    format_value,
)
from retrain.errors import UsageError
from retrain.project import Project
from retrain.registry import decisions, lineage as lineages, packages
from retrain.registry.ledger import Action, Entry
from retrain.registry.versions import ModelVersion
from retrain.runs import console
from retrain.runs.console import ago, local_time, with_local_times, wrapped
from retrain.runs.liveness import Processes

Reason = Annotated[str, Parameter(help="Why, for the ledger.")]
Waiting = Annotated[int | None, Parameter(help="Only if it is this version that waits.")]


@app.command(group=LOOKING)
def status(workload: Name | None = None, /, *, project: Clone) -> Answer:
    """Show what is in production, what waits, and how the runs ended.

    Examples: `retrain status`, `retrain status vit`

    Args:
        workload: Show the last run of this workload whole.
    """
    from flows.reports.status import state_of
    from retrain.runs import records

    if workload:
        records.check_name(project, workload)
    listed = [workload] if workload else records.names(project)
    states = [state_of(project, name) for name in listed]

    def show() -> None:
        known = ("champion", "last_run", "fault")
        used = [state for state in states if workload or any(state[name] for name in known)]
        if used:
            columns = ("workload", "champion", "accuracy", "age", "data")
            console.print_table(columns, [_status_row(state) for state in used])
        for sentence in (sentence for state in used for sentence in _sentences(state)):
            print(wrapped(with_local_times(sentence)))
        if unused := [state["workload"] for state in states if state not in used]:
            print(f"Not run here yet: {', '.join(unused)}")
        processes = Processes(project.store)
        for process in processes.alive().values():
            print(wrapped(with_local_times(f"Under way: {process}")))
        for process in processes.killed().values():
            print(wrapped(f"Killed: {process}. The same command goes on from there."))
        if workload:
            _show_workload(states[0])

    return Answer(states, show)


def _status_row(state: Mapping[str, Any]) -> tuple[Any, ...]:
    champion = state["champion"]
    if champion is None:
        return state["workload"], "none", None, None, None
    accuracy, data = f"{champion['metrics']['accuracy']:.4f}", (champion["data"] or UNKNOWN)[:8]
    since = ago(state["since"] or champion["created"]).removesuffix(" ago")
    return state["workload"], f"version {champion['version']}", accuracy, since, data


def _sentences(state: Mapping[str, Any]) -> Iterator[str]:
    """What a person should know about a workload, beside the row of the table."""
    from retrain.runs import records

    name, champion, last_run = state["workload"], state["champion"], state["last_run"]
    if last_run and last_run.get("waiting"):
        if state["waiting"] is None:
            yield f"{name}: the model of the last run waited for approval: retrain history {name}"
    elif last_run:
        when = f"{last_run['flow']}, {ago(last_run['time'])}"
        yield f"{name}: {when}: {records.outcome(last_run)}"
    if state["fault"]:
        yield state["fault"]
    if state["waiting"]:
        yield f"{state['waiting']['says']}."
    if state["changed_rules"]:
        rules = state["changed_rules"]
        yield f"{name}: the champion was promoted by changed rules of the gate: {rules}."
    if champion and state["data"] not in (None, champion["data"]):
        old = (champion["data"] or UNKNOWN)[:8]
        yield f"{name}: the data is {state['data'][:8]} now; the champion was trained on {old}."
    if state["warning"]:
        yield f"{name}: {state['warning']}"
    parts = filter(None, (state["resolution"], state["server"]))
    yield from (f"{name}: {part['says']}" for part in parts if part["says"])


def _show_workload(state: Mapping[str, Any]) -> None:
    """Shows what images a workload's models take, and its last run."""
    from flows import flow_with_steps

    last_run = state["last_run"]
    for whose, model in (("the champion", state["champion"]), ("the last run's model", last_run)):
        if images := (model or {}).get("images"):
            print(wrapped(f"{whose} takes images of {format_value(dict(sorted(images.items())))}"))
    if last_run and "error" not in last_run:
        report = flow_with_steps(last_run["flow"]).report
        with console.shown_on(sys.stdout):
            report.show(last_run | {"took": last_run["seconds"]})


@app.command(group=LOOKING)
def history(workload: Name, /, *, last: int = 50, project: Clone) -> Answer:
    """Show the decisions about a workload's models, the newest first.

    Examples: `retrain history vit`, `retrain history vit --last 1000`

    Args:
        last: How many of them, with `--json` too; 0 for all.
    """
    from flows.reports.status import with_reasons
    from retrain.runs import records

    ledger = decisions.read(project, workload)
    if not ledger.entries:
        records.check_name(project, workload)
    entries = ledger.entries[-last:]
    document = with_reasons(project, ledger, entries)

    def show() -> None:
        if not ledger.entries:
            print(f"Nothing was decided about {workload} yet: retrain train {workload}")
            return
        columns = (f"time ({strftime('%Z')})", "champion", "decision", "difference", "who")
        rows = [
            (
                local_time(entry.time).rpartition(" ")[0],
                _from_to(entry),
                _decision(entry),
                facts["comparison"] and facts["comparison"]["says"],
                entry.who,
            )
            for entry, facts in zip(entries, document, strict=True)
        ]
        console.print_table(columns, rows[::-1])
        if older := len(ledger.entries) - len(entries):
            print(f"{older} are older: retrain history {workload} --last 0")
        if any(facts["comparison"] for facts in document):
            print("Difference to the champion then, with its interval.")

    return Answer(document, show)


def _decision(entry: Entry) -> str:
    """What was decided, by which verdict and why."""
    verdict = "" if entry.verdict == entry.action else f": {entry.verdict}"
    return f"{entry.action}{verdict}" + (f" ({entry.why})" if entry.why else "")


def _from_to(entry: Entry) -> str:
    """The champion before a decision, and the version that was decided about."""
    previous = "none" if entry.previous is None else str(entry.previous)
    if entry.appoints:
        return f"{previous} -> {entry.version}"
    return f"{previous}, not {'yet ' if entry.action == 'waiting' else ''}{entry.version}"


@app.command(group=DECIDING)
def approve(
    workload: Name, /, *, reason: Reason, version: Waiting = None, project: Clone
) -> Answer:
    """Promote the model that waits for approval.

    Example: `retrain approve vit --reason "checked by hand"`
    """
    return _decided("promoted", project, workload, reason, version)


@app.command(group=DECIDING)
def reject(workload: Name, /, *, reason: Reason, version: Waiting = None, project: Clone) -> Answer:
    """Reject the model that waits for approval.

    Example: `retrain reject vit --reason "too few night images"`
    """
    return _decided("rejected", project, workload, reason, version)


@app.command(group=DECIDING)
def rollback(workload: Name, /, *, reason: Reason, to: int | None = None, project: Clone) -> Answer:
    """Make the champion before the current one champion again.

    Example: `retrain rollback vit --reason "wrong at night"`

    Args:
        to: Go back to this earlier champion.
    """
    return _decided("rolled back", project, workload, reason, to)


def _decided(
    action: Action, project: Project, workload: str, reason: str, version: int | None
) -> Answer:
    from flows.rollback import decide

    result = decide(project, workload, action, reason, version)
    return Answer(result, lambda: print(f"{result['outcome']}."))


@app.command(group=LOOKING)
def why(workload: Name, /, *, project: Clone) -> Answer:
    """Show why each step of the last training ran, and what had changed.

    Example: `retrain why vit`
    """
    from retrain.runs import records

    records.check_name(project, workload)
    last_run = records.last_run(project, workload, "train")
    if last_run is None:
        raise ValueError(f"{workload} has not been trained here yet: retrain train {workload}")

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
    markdown: bool = False,
    project: Clone,
    to_json: ToJson,
) -> Answer:
    """Show where the report of the last run is, or of an earlier one.

    Examples: `retrain report vit --open`, `retrain report vit --markdown`

    Args:
        run: The id of a run, or how it begins.
        open_it: Open it in the browser.
        markdown: Print it in short, as the comment of a pull request.
    """
    from flows.pages import publish
    from flows.reports import documents
    from retrain.runs import records

    records.check_name(project, workload)
    document = records.find_run(project, workload, run)
    name, folder = document["run"] if document else run, f"{documents.REPORTS}/{workload}"
    if name is None:
        raise ValueError(f"{workload} has not been run here yet: retrain train {workload}")
    if document and markdown:
        from flows.pages import comment

        text = comment.render(project, document)
        return Answer({"markdown": text, "run": name}, lambda: print(text, end=""))
    pages = sorted((project.root / folder).glob(f"{glob.escape(name)}*.html"))
    if pages and not markdown:  # as it was made: the store may have lost what it shows
        file = pages[0]
    elif document:
        file = publish.write_run(project, document)
    else:
        raise UsageError(f"{workload}: no such run is recorded here; see {folder}/.")
    if open_it and not to_json:
        webbrowser.open(file.as_uri())
    return Answer({"report": str(file), "run": file.stem}, lambda: print(file))


KEY_SHOWN, RUN_SHOWN = 12, 8  # characters of a key, and of a run, in a table


@app.command(group=LOOKING)
def lineage(version: Version, /, *, card: bool = False, project: Clone) -> Answer:
    """Show what a version came from.

    Examples: `retrain lineage vit@champion`, `retrain lineage vit@champion --card`

    Args:
        card: Show the model card instead: the data, the results and the limits of the version.
    """
    from flows import predict

    model = predict.find_model(project, version)
    record = lineages.read(project, model)
    ledger = decisions.read(project, model.name)
    entries = [entry for entry in ledger.entries if entry.version == model.version]
    text = packages.read_card(project, model)
    if card and text is None:
        raise ValueError(f"{model.title} has no card: the MLflow run of its training is gone.")
    document = {
        "model": model.public(),
        "decisions": entries,
        "lineage": record,
        "card": text,
    }

    if card:
        return Answer(document, lambda: print(text, end=""))

    def show() -> None:
        for name, value in _of_version(model, entries) + _of_record(record):
            print(wrapped(f"{name:<13}{format_value(value)}", " " * 13))
        _show_steps(record)

    return Answer(document, show)


def _show_steps(record: Mapping[str, Any]) -> None:
    """Shows the steps from the data to the evaluation."""
    rows = [
        (
            output["step"],
            (output["key"] or "")[:KEY_SHOWN],
            output["digest"][:KEY_SHOWN],
            format_value(output["provenance"].get("time")),
            (output["provenance"].get("run") or "")[:RUN_SHOWN],
        )
        for output in record["steps"]
    ]
    console.print_table(("step", "key", "output", "made", "by run"), rows)


def _of_version(version: ModelVersion, entries: list[Entry]) -> list[tuple[str, Any]]:
    """What the registry knows of a version: a name and a value each."""
    aliases = f" ({', '.join(version.aliases)})" if version.aliases else ""
    decided = [
        f"{entry.action} {entry.time} by {entry.who or 'somebody'}: {entry.verdict}"
        + (f" ({entry.why})" if entry.why else "")
        for entry in entries
    ]
    return [
        ("version", f"{version.title}{aliases}, registered {version.created}"),
        *(("decision", text) for text in decided),
        ("package", version.package_digest),
        ("weights", version.weights),
        ("metrics", version.metrics),
    ]


def _of_record(record: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """What is recorded of how a version was made: a name and a value each."""
    provenance = lineages.output_of(record, "train")["provenance"]
    return [
        ("training", _chosen(record["training"], "start", "best_epoch", "numerics")),
        ("parameters", {"entry": record["entry"]} | dict(record["overrides"])),
        ("data", _chosen(record["data"], "path", "version", "tracked", "revision")),
        *(("images", {split: images}) for split, images in record["images"]["splits"].items()),
        ("checks", _chosen(record["validation"], "quarantined", "near_duplicates")),
        ("code", {"commit": record["commit"]} | dict(record["uncommitted"] or {})),
        ("libraries", lineages.libraries(record)),
        ("locked", {"requirements.lock": record["requirements"]}),
        ("machine", provenance.get("machine")),
        ("Prefect run", provenance.get("run")),
        ("MLflow run", record["mlflow_run"]),
    ]


def _chosen(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The values under some names, without those that are not known."""
    return {name: values[name] for name in names if values.get(name) is not None}
