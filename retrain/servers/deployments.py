"""Registers the deployments of `prefect.yaml` at a Prefect server, for `make up` and `deploy/`.

    python -m retrain.servers.deployments

Prefect itself makes the schedules of an entry anew, which ends the pause of those without a slug,
ends the pause of a deployment, and leaves on the server what was taken out of the file.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Collection, Mapping
from typing import Any

from rich.markup import escape
from ruamel.yaml import YAML

from retrain.file_io import write_json
from retrain.project import Project, find_project
from retrain.runs import console

API = "PREFECT_API_URL"
FILE = "prefect.yaml"
# In the clone's state: the deployments of the last call by their ids, each with its name and the
# slugs of its schedules.
REGISTERED = "deployments.json"
CREATED = re.compile(r"Deployment '(.+)' successfully created with id '(.+)'")


def register(project: Project, api: str) -> list[str]:
    """Has Prefect register the deployments of `prefect.yaml`.

    What a person has paused stays so, unless the file says `paused` or `active`. What an earlier
    call has registered is removed when it is no longer in the file.

    Args:
        project: The clone.
        api: The URL of the API of the server.

    Returns:
        The names of the deployments.

    Raises:
        ValueError: Prefect refuses one.
    """
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_URL, temporary_settings

    file = project.state / REGISTERED
    earlier = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    with temporary_settings({PREFECT_API_URL: api}), get_client(sync_client=True) as client:
        before = {str(each.id): each for each in client.read_deployments()}
        created = _deploy(project, api)
        entries = YAML(typ="safe").load(project.root / FILE)["deployments"]
        registered = {}
        for (name, id), entry in zip(created, entries, strict=True):
            slugs = [each.get("slug") for each in entry.get("schedules") or ()]
            registered[id] = {"name": name, "slugs": slugs}
            if id in before:
                gone = {*earlier.get(id, {}).get("slugs", ())}.difference(slugs)
                _keep(client, before[id], entry, gone)
        for id in (earlier.keys() - registered) & before.keys():
            console.say(escape(f"{earlier[id]['name']} is no longer in {FILE}, and is removed."))
            client.delete_deployment(before[id].id)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, registered)
    return [name for name, _ in created]


def _deploy(project: Project, api: str) -> list[tuple[str, str]]:
    """Calls `prefect deploy`; returns the name and the id of each deployment, as in the file."""
    process = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"],
        cwd=project.root,  # where Prefect reads `prefect.toml`
        env=os.environ | {API: api, "PREFECT_CLI_COLORS": "false", "COLUMNS": "500"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    # Prefect skips an invalid entry; the exit code is 0 if others are valid.
    if process.returncode or "Skipping" in process.stdout:
        last_lines = "\n".join(process.stdout.splitlines()[-12:])
        raise ValueError(f"The deployments of {FILE} were refused:\n{last_lines}")
    return CREATED.findall(process.stdout)


def _keep(client: Any, before: Any, entry: Mapping[str, Any], gone: Collection[str]) -> None:
    """Pauses again what was paused, and removes the schedules that are no longer in the file.

    Args:
        client: Prefect's, of the server.
        before: The deployment as it was before it was registered again.
        entry: What the file says of it.
        gone: The slugs of the schedules that the file had and has no more; None for those without.
    """
    if before.paused and "paused" not in entry:
        client.pause_deployment(before.id)
    says_active = any("active" in each for each in entry.get("schedules") or ())
    paused = [_rule(each) for each in before.schedules if not each.active and not says_active]
    for each in client.read_deployment(before.id).schedules:
        if each.slug in gone:
            client.delete_deployment_schedule(before.id, each.id)
        elif each.active and _rule(each) in paused:
            client.update_deployment_schedule(before.id, each.id, active=False)


def _rule(schedule: Any) -> Any:
    """When the runs of a schedule are due; an interval begins anew each time it is registered."""
    return schedule.schedule.model_dump(exclude={"anchor_date"})


if __name__ == "__main__":
    with console.shown_on(sys.stdout):
        console.say(escape(", ".join(register(find_project(), os.environ[API]))))
