"""Registers deployments at the Prefect server as `prefect deploy --all` does, but in one go.

    python -m retrain.servers.deployments prefect.yaml

For each deployment, `prefect deploy` loads the flow, asks git five times, makes four clients, and
waits for two seconds or more whenever the database is locked: a second for each on two cores. Here
a flow is loaded once, and what the server has already is left alone: its planned runs stay. Its
runs call `retrain.servers.newest` first, which those of `prefect deploy` do not. A
schedule that a person has paused stays paused, unless the file says `active`. A file that says more
than the entries of this project do is left to `prefect deploy`.
"""

import asyncio
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pydantic import Field, JsonValue, TypeAdapter
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from retrain import patches
from retrain.servers.reachable import request
from retrain.workload.section import Section

if TYPE_CHECKING:
    from prefect import Flow
    from prefect.events import DeploymentTriggerTypes

PAGE = 200  # the most that the server lists in one answer
BUSY_SECONDS = 60.0  # that the database may be locked
AGAIN_SECONDS = 0.05
# What has to be the same for a deployment to be left alone, besides its limit and its schedules.
SAME = (
    *("parameters", "description", "tags", "entrypoint", "pull_steps", "work_pool_name"),
    *("job_variables", "parameter_openapi_schema", "enforce_parameter_schema"),
)


class Schedule(Section):
    """A schedule of an entry."""

    cron: str
    timezone: str | None = None
    active: bool | None = None


class Limit(Section):
    """How many runs of a deployment go on at once, and what becomes of others."""

    limit: int
    collision_strategy: str


class WorkPool(Section):
    """Where the runs of a deployment are started."""

    name: str
    job_variables: dict[str, JsonValue] = Field(default_factory=dict)


class Entry(Section):
    """An entry of `deployments` in a file: the keys that are understood here."""

    name: str
    entrypoint: str
    work_pool: WorkPool
    description: str | None = None
    parameters: dict[str, JsonValue] = Field(default_factory=dict)
    tags: list[str] = Field(default_factory=list)
    schedules: list[Schedule] = Field(default_factory=list)
    triggers: list[dict[str, Any]] = Field(default_factory=list)
    concurrency_limit: Limit | None = None

    def automations(self) -> "list[DeploymentTriggerTypes]":
        """The triggers, each with a name."""
        from prefect.events import DeploymentTriggerTypes

        adapter: TypeAdapter[DeploymentTriggerTypes] = TypeAdapter(DeploymentTriggerTypes)
        return [
            adapter.validate_python({"name": f"{self.name}__automation_{number}"} | trigger)
            for number, trigger in enumerate(self.triggers, start=1)
        ]


class File(Section):
    """A file of deployments."""

    deployments: list[Entry]


@dataclass(frozen=True)
class LoadedFlow:
    """A flow that deployments run, and its id on the server."""

    flow: "Flow[..., Any]"
    id: str
    parameters: dict[str, Any]


def main() -> None:
    """Registers the deployments of the files that the arguments name, in the working directory."""
    entries: list[Entry] = []
    for path in map(Path, sys.argv[1:]):
        if (understood := read(path)) is None:
            _leave_to_prefect(path)
        else:
            entries += understood
    try:
        Registration().register(entries)
    except ValueError as error:
        sys.exit(str(error))


def read(path: Path) -> list[Entry] | None:
    """The entries of a file; None if there is anything that only `prefect deploy` understands."""
    text = path.read_text(encoding="utf-8")
    yaml = YAML(typ="safe", pure=True)
    yaml.version = (1, 1)  # as Prefect reads it: `no` is false
    try:
        entries = File.model_validate(yaml.load(text)).deployments
        for entry in entries:
            entry.automations()
    except (YAMLError, ValueError):
        return None
    return None if "{{" in text else entries  # a template


class Registration:
    """Registers entries; what the server has of them is read once."""

    def __init__(self) -> None:
        """Asks the server for all deployments, and for those that an automation starts."""
        found = _ask_for_all("/deployments/filter")
        self.known = {(each["flow_id"], each["name"]): each for each in found}
        automations = _ask_for_all("/automations/filter")
        actions = [action for each in automations for action in each["actions"]]
        self.started = {action.get("deployment_id") for action in actions}
        self.version = asyncio.run(patches.version_of_clone())
        self.flow = lru_cache(_load)

    def register(self, entries: list[Entry]) -> None:
        """Creates or changes the deployments that are not on the server as the entries have them.

        Raises:
            ValueError: The server refuses one.
        """
        for entry in entries:
            flow = self.flow(entry.entrypoint)
            known = self.known.get((flow.id, entry.name))
            wanted = self._definition(entry, flow, known)
            if known is None or not is_same(wanted, known):
                known = _ask("/deployments/", wanted)
            if entry.triggers or known["id"] in self.started:
                _make_automations(entry, known["id"])

    def _definition(
        self, entry: Entry, loaded: LoadedFlow, known: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """What `prefect deploy` sends to the server, too."""
        limit = entry.concurrency_limit
        directory = {"directory": str(Path.cwd().resolve())}
        newest = {"script": shlex.join((sys.executable, "-m", "retrain.servers.newest"))}
        return {
            "flow_id": loaded.id,
            "name": entry.name,
            "version": self.version.version if self.version else loaded.flow.version,
            "description": entry.description or loaded.flow.description,
            "entrypoint": entry.entrypoint,
            "parameters": entry.parameters,
            "parameter_openapi_schema": loaded.parameters,
            "enforce_parameter_schema": True,
            "tags": entry.tags,
            "schedules": [
                {
                    "schedule": {"cron": each.cron, "timezone": each.timezone},
                    "active": is_active(each, known),
                }
                for each in entry.schedules
            ],
            "concurrency_limit": limit and limit.limit,
            "concurrency_options": limit and {"collision_strategy": limit.collision_strategy},
            "work_pool_name": entry.work_pool.name,
            "job_variables": entry.work_pool.job_variables,
            "pull_steps": [
                {"prefect.deployments.steps.set_working_directory": directory},
                {"prefect.deployments.steps.run_shell_script": newest},  # which loads no code here
            ],
        }


def _load(entrypoint: str) -> LoadedFlow:
    """Loads a flow, which the server is told of."""
    from prefect.flows import load_flow_from_entrypoint
    from prefect.utilities.callables import parameter_schema

    flow: Flow[..., Any] = load_flow_from_entrypoint(entrypoint)
    parameters = parameter_schema(flow).model_dump(exclude_unset=True, mode="json")
    return LoadedFlow(flow, _ask("/flows/", {"name": flow.name})["id"], parameters)


def _make_automations(entry: Entry, id_: str) -> None:
    """Makes the automations that belong to a deployment anew, as `prefect deploy` does."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        client.delete_resource_owned_automations(f"prefect.deployment.{id_}")
        for trigger in entry.automations():
            trigger.set_deployment_id(UUID(id_))
            client.create_automation(trigger.as_automation())


def _ask_for_all(path: str) -> list[dict[str, Any]]:
    """All that the server lists."""
    pages: list[dict[str, Any]] = []
    for offset in count(0, PAGE):
        page = _ask(path, {"limit": PAGE, "offset": offset})
        pages += page
        if len(page) < PAGE:
            break
    return pages


def _ask(path: str, body: Mapping[str, Any]) -> Any:
    """Asks the server, again while its database is locked by another writer.

    Raises:
        ValueError: It refuses what it is asked.
    """
    deadline = monotonic() + BUSY_SECONDS
    while True:
        status, text = request(os.environ["PREFECT_API_URL"] + path, body, BUSY_SECONDS)
        if status in (200, 201):
            return json.loads(text)
        if status != 503 or monotonic() > deadline:
            raise ValueError(f"{body.get('name', path)}: {text}")
        sleep(AGAIN_SECONDS)


def is_active(schedule: Schedule, known: Mapping[str, Any] | None) -> bool:
    """Whether a schedule is active: by its file, or else as it is on the server."""
    if schedule.active is None and known:
        for each in known["schedules"]:
            if _identity(each["schedule"]) == (schedule.cron, schedule.timezone or ""):
                return bool(each["active"])
    return schedule.active is not False


def is_same(wanted: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    """Whether the server has a deployment as it is wanted, but for its version."""
    schedules, known_schedules = (
        sorted((*_identity(each["schedule"]), each["active"]) for each in tree["schedules"])
        for tree in (wanted, known)
    )
    limit, options = known["global_concurrency_limit"], known["concurrency_options"] or {}
    return (
        all(wanted[name] == known[name] for name in SAME)
        and schedules == known_schedules
        and wanted["concurrency_limit"] == (limit and limit["limit"])
        and (wanted["concurrency_options"] or {}).items() <= options.items()
    )


def _identity(schedule: Mapping[str, Any]) -> tuple[str, str]:
    """What tells a schedule of the server from others; one of an interval has no expression."""
    return schedule.get("cron", ""), schedule.get("timezone") or ""


def _leave_to_prefect(path: Path) -> None:
    """Has Prefect's own command register a file; ends this process if it refuses any of it."""
    command = ("prefect", "--no-prompt", "deploy", "--all", "--prefect-file", str(path))
    done = subprocess.run(
        [sys.executable, "-m", *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    output = done.stdout.decode(errors="replace")
    # Prefect skips an invalid entry; the exit code is 0 if others are valid.
    if done.returncode or "Skipping" in output:
        sys.exit(output)


if __name__ == "__main__":
    main()
