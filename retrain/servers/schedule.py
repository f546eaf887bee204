"""Finds when a workload is run next: by the Prefect server, or by the schedules in its files."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from retrain.params import parse_yaml
from retrain.project import Project
from retrain.servers import services
from retrain.servers.reachable import request

MOST = 200  # runs that the server lists in one answer


@dataclass(frozen=True)
class NextRun:
    """A run that is scheduled.

    Attributes:
        time: When it begins (ISO 8601, UTC).
        workload: The name of the workload.
        planned: Whether the Prefect server runs and has planned it. Otherwise it is what the
            schedules of the deployments say, and happens only once the servers run.
    """

    time: str
    workload: str
    planned: bool


def next_runs(project: Project) -> dict[str, NextRun]:
    """The next run of each workload that has one, by the workload's name; no server is started."""
    is_up = any(service.name == "prefect" for service in services.running(project))
    found = list(_planned(project) if is_up else _by_files(project))
    return {run.workload: run for run in sorted(found, key=lambda run: run.time, reverse=True)}


def _planned(project: Project) -> Iterator[NextRun]:
    """The runs that the Prefect server has planned, the next ones first."""
    asked = {
        "flow_runs": {"state": {"type": {"any_": ["SCHEDULED"]}}},
        "sort": "EXPECTED_START_TIME_ASC",
        "limit": MOST,
    }
    status, answer = request(f"{services.server_api(project)}/flow_runs/filter", asked)
    for run in json.loads(answer) if status == 200 else ():
        time = datetime.fromisoformat(run["expected_start_time"]).astimezone(UTC)
        if workload := run["parameters"].get("workload"):
            yield NextRun(time.isoformat(timespec="seconds"), workload, planned=True)


def _by_files(project: Project) -> Iterator[NextRun]:
    """The next runs by the deployments' schedules that are cron expressions."""
    from cronsim import CronSim, CronSimError
    from ruamel.yaml.error import YAMLError

    for file in services.DEPLOYMENTS:
        with suppress(FileNotFoundError, YAMLError):
            tree = parse_yaml((project.root / file).read_text(encoding="utf-8"))
            for deployment, schedule in _schedules(tree):
                # What is wrong with a schedule is said by Prefect, with `retrain up`.
                with suppress(CronSimError, KeyError, TypeError):
                    zone = ZoneInfo(schedule.get("timezone") or "UTC")
                    time = next(CronSim(schedule["cron"], datetime.now(zone))).astimezone(UTC)
                    workload = deployment["parameters"]["workload"]
                    yield NextRun(time.isoformat(timespec="seconds"), workload, planned=False)


def _schedules(tree: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """The deployments of a file, each with each of its schedules that is active."""
    for deployment in tree.get("deployments") or ():
        for schedule in deployment.get("schedules") or ():
            if schedule.get("active", True):
                yield deployment, schedule
