"""What a run did and why, as one document: printed, kept, and shown in Prefect."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from retrain.project import Project
from retrain.step import REPORT
from retrain.store import write_json

if TYPE_CHECKING:
    from retrain.runs.dry_run import DryRun
    from retrain.runs.run import Run

Document = dict[str, Any]

LATEST = "latest.json"
STARTED = "started.json"


@contextmanager
def kept(run: "Run") -> Iterator[None]:
    """Keeps a run's document when the run has ended, whether it succeeded or failed."""
    folder = _folder(run.context.project, run.workload.name)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / STARTED, {"run": run.context.run})
    try:
        yield
    except Exception as error:
        _keep(run.context.project, document(run) | {"error": str(error)})
        raise
    _keep(run.context.project, document(run))


def last_run(project: Project, workload: str) -> Document | None:
    """The document of a workload's last run that ended by itself; None before the first."""
    return _read(_folder(project, workload) / LATEST)


def completed(project: Project, workload: str) -> Document | None:
    """The document of a workload's last run if that was successful, and None if not.

    One that was killed leaves no document, but has left its id when it started.
    """
    last, started = last_run(project, workload), _read(_folder(project, workload) / STARTED)
    if last is None or started is None or started["run"] != last["run"] or "error" in last:
        return None
    return last


def still(look: "DryRun", last: Document) -> Document:
    """The document of a run that did not have to be, because the last one stands."""
    return document(look) | {"time": last["time"], "unchanged": True}


def document(run: "Run | DryRun") -> Document:
    """A run as JSON-able values; parts that it did not get to are None."""
    facts = {name: dict(made.facts) for name, made in run.artifacts.items()}
    decision = facts.get("gate")
    champion = decision.pop("champion") if decision else None
    validated = facts.get("validate", {})
    return {
        "workload": run.workload.name,
        "run": run.context.run,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "unchanged": False,
        "seconds": round(monotonic() - run.began, 3),
        "data": {
            "version": run.version.digest,
            "tracked": run.version.tracked,
            "revision": run.version.revision,
            "path": run.workload.data.path,
            "rows": validated.get("rows"),
            "quarantined": validated.get("quarantined"),
        },
        "steps": [asdict(outcome) for outcome in run.outcomes],
        "metrics": facts.get("evaluate", {}).get("metrics"),
        "champion": champion,
        "decision": decision,
        "model": facts.get("promote"),
        "look": _where_to_look(run),
    }


def published(run: "Run") -> Document:
    """Shows a run's document in Prefect: the decision, a summary, and where to look.

    Returns:
        The document.
    """
    from prefect.artifacts import create_markdown_artifact, create_table_artifact

    shown = document(run)
    name = run.workload.name.lower().replace("_", "-")
    create_table_artifact(
        key=f"{name}-decision",
        table=[
            {"rule": rule["rule"], "value": round(rule["value"], 4), "passed": rule["passed"]}
            for rule in shown["decision"]["rules"]
        ],
        description=verdict(shown),
    )
    create_markdown_artifact(key=f"{name}-summary", markdown=markdown(shown))
    return shown


def verdict(shown: Mapping[str, Any]) -> str:
    """What was decided about the model, in one sentence."""
    decision, model, champion = shown["decision"], shown["model"], shown["champion"]
    if decision["verdict"] == "champion already":
        return f"This very model is the champion already (version {champion['version']})."
    if decision["verdict"] == "repackaged":
        return (
            f"{model['name']} version {model['version']}, the same training as version "
            f"{champion['version']} in a new package, is the champion now."
        )
    if decision["passed"]:
        over = f" over version {champion['version']}" if champion else ": the first"
        return f"{model['name']} version {model['version']} is the champion now{over}."
    return f"{model['name']} version {model['version']} is rejected {_why_rejected(shown)}."


def outcome(shown: Mapping[str, Any]) -> str:
    """How a run ended, in one sentence, for one that failed too, or did not have to be."""
    if "error" in shown:
        return f"failed: {shown['error']}"
    if not shown.get("unchanged"):
        return verdict(shown)
    version = f"version {shown['model']['version']}"
    stands = (
        f"{version} is champion"
        if shown["decision"]["verdict"] == "champion already"
        else f"{version} was rejected {_why_rejected(shown)}"
    )
    return f"Nothing changed since run {shown['run'][:8]} of {shown['time']}; {stands}."


def _why_rejected(shown: Mapping[str, Any]) -> str:
    champion = shown["champion"]
    reasons = "; ".join(
        f"{rule['rule']} is {rule['value']:.4f}"
        for rule in shown["decision"]["rules"]
        if not rule["passed"]
    )
    stays = f"version {champion['version']} stays champion" if champion else "there is no champion"
    return f"({reasons}); {stays}"


def markdown(shown: Mapping[str, Any]) -> str:
    """A run's document for reading."""
    from retrain.runs.console import number

    theirs = (shown["champion"] or {}).get("metrics", {})
    rows = shown["data"]["rows"]
    lines = [
        f"# {shown['workload']}: {verdict(shown)}",
        "",
        f"Data `{shown['data']['version']}`: "
        + ", ".join(f"{count} {split}" for split, count in rows.items())
        + f"; {shown['data']['quarantined']} set aside.",
        "",
        "| metric | challenger | champion |",
        "|---|---|---|",
        *(
            f"| {metric} | {number(value)} | {number(theirs.get(metric))} |"
            for metric, value in shown["metrics"].items()
        ),
        "",
        "| step | | why | seconds |",
        "|---|---|---|---|",
        *(
            f"| {step['step']} | {'cached' if step['cached'] else 'ran'} | {step['why']} "
            f"| {step['seconds']:.1f} |"
            for step in shown["steps"]
        ),
        "",
        *(f"- {name}: `{place}`" for name, place in shown["look"].items()),
    ]
    return "\n".join(lines)


def _keep(project: Project, shown: Document) -> None:
    folder = _folder(project, shown["workload"])
    write_json(folder / f"{shown['run']}.json", shown)
    write_json(folder / LATEST, shown)


def _folder(project: Project, workload: str) -> Path:
    return project.state / "runs" / workload


def _read(path: Path) -> Document | None:
    try:
        kept_document: Document = json.loads(path.read_text(encoding="utf-8"))
        return kept_document
    except FileNotFoundError:
        return None


def _where_to_look(run: "Run | DryRun") -> dict[str, str]:
    """Places for a person to go on from, by name."""
    look = {}
    validated, trained = run.artifacts.get("validate"), run.artifacts.get("train")
    scores = run.artifacts.get("evaluate")
    if validated:
        look["Data Docs"] = _near(run, validated.folder / REPORT / "data_docs" / "index.html")
    if scores:
        look["plots"] = _near(run, scores.folder / REPORT)
    if trained and (trained.folder / REPORT / "mlflow.json").is_file():
        tracked = json.loads((trained.folder / REPORT / "mlflow.json").read_text())
        look["MLflow run"] = tracked["run_id"]
    return look


def _near(run: "Run | DryRun", place: Path) -> str:
    """A path from the project's root, if it lies below it."""
    root = run.context.project.root
    return str(place.relative_to(root) if place.is_relative_to(root) else place)
