"""The state of a workload, for `retrain status`: what is in production, and what waits."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from retrain.errors import UsageError
from retrain.params import load_section
from retrain.project import Project
from retrain.registry import decisions, packages, versions
from retrain.registry.ledger import Entry, Ledger
from retrain.registry.versions import ModelVersion
from retrain.runs import records
from retrain.servers import serving
from retrain.workload import Data, Gate
from tasks.data import gate_rules
from tasks.promote.approval import approval_status
from tasks.pull.step import data_version


def state_of(project: Project, name: str) -> dict[str, Any]:
    """The state of a workload, as `--json` prints it.

    Args:
        project: The clone.
        name: The name of the workload.
    """
    ledger, champion = decisions.read(project, name), None
    fault = ledger.fault or (None if ledger.champion else records.lost_champion(project, name))
    try:
        if champion := versions.champion(project, name):
            fault = fault or packages.fault(project, champion)
    except ValueError as error:
        fault = fault or f"{name} {error}."
    last_run = records.last_run(project, name)
    return {
        "workload": name,
        "champion": champion and champion.public(),
        "since": ledger.appointment and ledger.appointment.time,
        "changed_rules": ledger.appointment and ledger.appointment.changed_rules,
        "fault": fault,
        "waiting": ledger.waiting
        and asdict(ledger.waiting)
        | {"says": approval_status(name, ledger.waiting, champion.version if champion else None)},
        "last_run": last_run,
        **_data(project, last_run),
        "resolution": _resolution(project, ledger),
        "server": _server(project, name, champion),
    }


def _server(project: Project, name: str, champion: ModelVersion | None) -> dict[str, Any] | None:
    """What the workload's server answers with, and `says`; None if it was not started here."""
    served = serving.read(project, name)
    if served.url is None:
        return None
    version = serving.version_at(served.url) if served.is_running else None
    says = f"version {version} answers at {served.url}"
    if version is None:
        says = f"the server does not answer at {served.url}; start it: retrain serve {name}"
        if served.is_running and served.version is None:
            says = "the server waits for the first champion"
    elif champion and champion.version != version:
        fault = "will follow"
        if champion.version == served.failed:
            fault = f"cannot be served: {served.why}"
        says = f"{says}; the champion, version {champion.version}, {fault}"
    return {"url": served.url, "version": version, "says": says}


def with_reasons(
    project: Project, ledger: Ledger, entries: Iterable[Entry]
) -> list[dict[str, Any]]:
    """Entries of a ledger as JSON-able values, each with its `rules` and its `comparison`."""
    values = []
    for entry in entries:
        considered = decisions.considered(project, ledger, entry)
        why = {
            "rules": considered.get("rules", []),
            "comparison": comparison_of(considered),
        }
        values.append(asdict(entry) | why)
    return values


def comparison_of(considered: Mapping[str, Any]) -> dict[str, Any] | None:
    """The comparison with the champion that a decision rests on: its own metric, and its images.

    None if there was no champion, or too few images, or if a person has decided.

    Args:
        considered: All that was considered for the decision.
    """
    comparison = considered.get("comparisons", {}).get("champion")
    metric = str(considered.get("metric"))
    if not comparison or metric not in comparison["metrics"]:
        return None
    found = comparison["metrics"][metric]
    says = gate_rules.difference(metric, found)
    return {"metric": metric, "images": comparison["images"], **found, "says": says}


def _data(project: Project, last_run: Mapping[str, Any] | None) -> dict[str, Any]:
    """The version of the data that the next run would use, as far as that is known at once.

    It is what `data.dvc` pins, with a `warning` where the folder is not so; or what the last run
    found at a place that is not under DVC.
    """
    if last_run and last_run["data"]["tracked"]:
        with suppress(UsageError, OSError):
            found = data_version(Data(path=last_run["data"]["path"]), project)
            return {"data": found.digest, "warning": found.warning}
    return {"data": last_run and str(last_run["data"]["version"]), "warning": None}


def _resolution(project: Project, ledger: Ledger) -> dict[str, Any] | None:
    """Which margin the test images allow, by the last comparison; None before the first."""
    gate = load_section(project.params, ledger.name, Gate)
    for entry in reversed(ledger.entries):
        comparison = decisions.considered(project, ledger, entry).get("comparisons", {})
        if found := comparison.get("champion"):
            counts = {name: found[name] for name in ("units", "images", "groups")}
            return counts | {"says": gate_rules.describe_margin(gate, **counts)}
    return None
