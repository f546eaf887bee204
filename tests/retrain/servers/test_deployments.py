"""Deployments are registered as `prefect deploy` registers them, on a Prefect server."""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from retrain.project import Project
from retrain.servers import deployments, ephemeral
from retrain.servers.reachable import request
from tests import templates
from tests.flows.conftest import free_port, until

FLOWS = """
from prefect import flow

@flow(name="small", description="What the flow does.")
def small(workload: str, seconds: float = 0, hint=None):
    pass
"""

ENTRIES = """
deployments:
  - name: one
    description: Trains one.
    entrypoint: small.py:small
    parameters: {workload: one, seconds: 1.5}
    tags: [train, one]
    schedules:
      - cron: "0 3 * * 1"
        timezone: Europe/Berlin
      - cron: "0 4 * * 1"
        active: false
    triggers:
      - type: event
        match: {prefect.resource.id: retrain.model.one}
        expect: [retrain.drift]
    concurrency_limit: {limit: 1, collision_strategy: ENQUEUE}
    work_pool: {name: local}
  - name: two
    entrypoint: small.py:small
    parameters: {workload: two, hint: no}
    work_pool: {name: local, job_variables: {env: {COLOUR: red}}}
"""


class Server:
    """A Prefect server, and a folder whose deployments are registered there."""

    def __init__(self, root: Path, api: str):
        self.root, self.api = root, api

    def ask(self, path, body):
        status, text = request(f"{self.api}{path}", body)
        assert status in (200, 201), text
        return json.loads(text)

    def change(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        asked = urllib.request.Request(self.api + path, data, headers, method=method)
        urllib.request.urlopen(asked).close()

    def call(self, *module):
        return subprocess.run(
            [sys.executable, "-m", *module], cwd=self.root, capture_output=True, text=True,
            env=os.environ | {"PREFECT_API_URL": self.api},
        )  # fmt: skip

    def register(self, entries=ENTRIES):
        (self.root / "prefect.yaml").write_text(entries)
        done = self.call("retrain.servers.deployments", "prefect.yaml")
        assert done.returncode == 0, done.stdout + done.stderr
        return self.deployments()

    def deployments(self):
        return {each["name"]: each for each in self.ask("/deployments/filter", {})}

    def forget(self):
        for each in self.deployments().values():
            self.change("DELETE", f"/deployments/{each['id']}")
        for each in self.ask("/automations/filter", {}):
            self.change("DELETE", f"/automations/{each['id']}")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root, port = tmp_path_factory.mktemp("deployments"), free_port()
    (root / "small.py").write_text(FLOWS)
    templates.place_prefect_database(root)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PREFECT_HOME", str(root / ".retrain" / "prefect"))
        process = ephemeral._start(Project(root), port)
        until(lambda: ephemeral._is_up(port), 60)
        made = Server(root, f"http://127.0.0.1:{port}/api")
        made.ask("/work_pools/", {"name": "local", "type": "process"})
        yield made
        process.communicate()  # its input is closed, which ends it


def comparable(tree):
    """A part of an answer, without what is of the moment."""
    if isinstance(tree, list):  # the server gives schedules in any order
        return sorted((comparable(each) for each in tree), key=json.dumps)
    if not isinstance(tree, dict):
        return tree
    of_the_moment = ("id", "created", "updated", "deployment_id", "concurrency_limit_id")
    return {key: comparable(value) for key, value in tree.items() if key not in of_the_moment}


def everything(server):
    """The deployments and the automations; in place of a deployment's id is its name."""
    found = server.deployments()
    text = json.dumps([*found.values(), *server.ask("/automations/filter", {})])
    for name, each in found.items():
        text = text.replace(each["id"], name)
    return comparable(json.loads(text))


def test_they_are_those_of_prefect_deploy(server):
    (server.root / "prefect.yaml").write_text(ENTRIES)
    done = server.call("prefect", "--no-prompt", "deploy", "--all")
    assert done.returncode == 0, done.stdout
    theirs = everything(server)
    server.forget()
    server.register()
    ours = everything(server)
    newest = {"script": f"{sys.executable} -m retrain.servers.newest"}
    for each in ours:
        if "pull_steps" in each:
            step = {"prefect.deployments.steps.run_shell_script": newest}
            each["pull_steps"].remove(step)
    assert ours == theirs
    assert sorted(each["name"] for each in ours) == ["one", "one__automation_1", "two"]
    assert {"workload": "two", "hint": False} in [each.get("parameters") for each in ours]


def test_what_has_not_changed_is_left_alone_with_what_a_person_has_paused(server):
    before = server.register()
    [schedule] = [each for each in before["one"]["schedules"] if each["active"]]
    path = f"/deployments/{before['one']['id']}/schedules/{schedule['id']}"
    server.change("PATCH", path, {"active": False})
    paused = server.deployments()
    assert [each["active"] for each in paused["one"]["schedules"]] == [False, False]
    assert server.register() == paused

    changed = server.register(ENTRIES.replace("Trains one.", "Trains it."))
    assert changed["two"] == paused["two"]
    assert changed["one"]["description"] == "Trains it."
    assert [each["active"] for each in changed["one"]["schedules"]] == [False, False]
    active = server.register(
        ENTRIES.replace("Europe/Berlin", "Europe/Berlin\n        active: true")
    )
    assert sorted(each["active"] for each in active["one"]["schedules"]) == [False, True]


def test_a_trigger_that_is_gone_from_the_file_is_gone_from_the_server(server):
    server.register()
    start, _, rest = ENTRIES.partition("    triggers:")
    server.register(start + "    concurrency_limit:" + rest.partition("    concurrency_limit:")[2])
    assert server.ask("/automations/filter", {}) == []


def test_what_only_prefect_understands_is_left_to_it(server):
    more = ENTRIES.replace("name: two", "name: three\n    version: '7'")
    assert server.register(more)["three"]["version"] == "7"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (("limit: 1", "limit: many"), "concurrency_limit"),
        (("0 3 * * 1", "0 3 * *"), "cron"),
        (("name: local}", "name: elsewhere}"), "elsewhere"),
    ],
)
def test_what_is_wrong_is_refused(server, wrong, message):
    server.register()
    (server.root / "prefect.yaml").write_text(ENTRIES.replace(*wrong))
    done = server.call("retrain.servers.deployments", "prefect.yaml")
    assert done.returncode == 1
    assert message in done.stdout + done.stderr


def test_a_file_of_the_project_is_understood():
    assert deployments.read(Path(__file__).parents[3] / "prefect.yaml")


GARBAGE = """
import threading, time, weakref
from retrain.servers import program

class Cell:
    pass

program.collect_garbage_apart()
threads = set()
watched = []
while not threads:
    for _ in range(program.GARBAGE_OBJECTS):
        cell = Cell()
        cell.itself = cell
    watched.append(weakref.ref(cell, lambda _: threads.add(threading.current_thread())))
    del cell
    time.sleep(0.05)
assert threading.main_thread() not in threads
"""


def test_garbage_of_a_server_is_freed_by_a_thread_of_its_own():
    subprocess.run([sys.executable, "-c", GARBAGE], check=True, timeout=60)
