"""A server that follows the champion, with real processes on loopback."""

import base64
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from time import sleep

import httpx
import psutil
import pytest

from flows.reports.status import state_of
from retrain.file_io import write_json
from retrain.project import Project
from retrain.registry import decisions, packages, versions
from retrain.registry.ledger import Decision
from retrain.servers import serving as server
from retrain.servers.scoring import HEADER
from tests import templates
from tests.flows.conftest import free_port, until
from tests.tasks.promote.conftest import promoted
from tests.tasks.pull import pulling
from tests.tasks.pull.test_file_sources import Answer
from tests.tasks.toy_model import pixels, png

pytestmark = pytest.mark.slow

IMAGES = [png(image) for image in pixels(5)]
REQUEST = {"inputs": [base64.b64encode(image).decode() for image in IMAGES]}
PARAMS = "workloads: {toy: {data: {path: data/toy}, model: {family: vit}}}\n"
SECONDS = 240.0  # for loading packages on a machine that is busy


@pytest.fixture
def project(tmp_path):
    """A clone whose champion was version 1, then 2, and is 3."""
    project = Project(tmp_path)
    better = [{"verdict": "better", "champion": number} for number in (1, 2)]
    promoted(project, "three", {"verdict": "first"}, *better)
    (tmp_path / "params.yaml").write_text(PARAMS)
    return project


@contextmanager
def serving(project, port=None, **variables):
    """The command, in a session of its own; its address and its process."""
    port = port or free_port()
    command = [sys.executable, "-m", "retrain.cli", "serve", "toy", "--port", str(port)]
    with (project.root / "serve.log").open("ab") as log:
        process = subprocess.Popen(
            command, cwd=project.root, env=os.environ | variables, stdout=log, stderr=log,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    try:
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.terminate()
        process.wait(60)


def answers_with(url, version):
    """Waits until only one version answers."""
    until(lambda: {server.version_at(url) for _ in range(12)} == {version}, SECONDS)


def ask(url):
    """The version that answers, and the probabilities of the first class."""
    answer = httpx.post(f"{url}/invocations", json=REQUEST, timeout=60)
    assert answer.status_code == 200, answer.text
    rows = answer.json()["predictions"]
    return int(answer.headers[HEADER]), tuple(round(r["probabilities"]["ant"], 5) for r in rows)


def make_champion(project, number):
    version, champion = versions.get(project, "toy", number), versions.champion(project, "toy")
    decision = Decision("rolled back", number, champion.version, "rolled back", reason="a test")
    decisions.apply(project, version, decision)


def processes_of(process):
    return [process, *process.children(recursive=True)]


def says(project):
    return state_of(project, "toy")["server"]["says"]


def test_the_champion_answers_also_after_it_has_changed_and_no_request_is_lost(project):
    is_over = threading.Event()

    def ask_often(url):
        given = []
        while not is_over.is_set():
            given.append(ask(url))
        return given

    logged = project.root / "answers"
    with serving(project, RETRAIN_LOG_PREDICTIONS=str(logged)) as (url, _):
        answers_with(url, 3)
        assert says(project) == f"version 3 answers at {url}"
        with ThreadPoolExecutor(3) as pool:
            askers = [pool.submit(ask_often, url) for _ in range(3)]
            try:
                make_champion(project, 1)
                assert f"version 3 answers at {url}" in says(project)
                answers_with(url, 1)
            finally:
                is_over.set()
        assert says(project) == f"version 1 answers at {url}"
        refused = httpx.post(f"{url}/invocations", json={"inputs": ["no image"]})
        assert (refused.status_code, refused.headers[HEADER]) == (400, "1")
    assert state_of(project, "toy")["server"] is None
    answers = [answer for asker in askers for answer in asker.result()]  # or what was lost
    given = Counter(answers)
    assert {version for version, _ in given} == {1, 3}
    assert len(given) == 2  # each version gives always the same answer, and another one than others
    rows = [
        json.loads(line)
        for file in logged.glob("*.jsonl*")
        for line in file.read_text().splitlines()
    ]
    weights = {versions.get(project, "toy", number).weights: number for number in (1, 3)}
    found = Counter(weights[row["weights"]] for row in rows)
    expected = Counter(version for version, _ in answers for _ in IMAGES)
    assert found == expected


BREAK = "\nimport {module}\nif {condition}:\n    raise ImportError('it is broken')\n"


@pytest.mark.parametrize(
    ("module", "condition"),
    [("os", "True"), ("multiprocessing", "multiprocessing.parent_process()")],
    ids=["it does not load", "it loads alone, but not in a worker"],
)
def test_a_champion_that_cannot_be_served_changes_nothing_and_is_told_once(
    project, webhook, module, condition
):
    with serving(project) as (url, _):
        answers_with(url, 3)
        package = packages.fetch(project, versions.get(project, "toy", 2), project.root / "fetched")
        code = package / "code" / "models" / "__init__.py"
        text = code.read_text()
        code.write_text(text + BREAK.format(module=module, condition=condition))
        make_champion(project, 2)  # which a rollback would refuse
        until(lambda: webhook, SECONDS)
        answers_with(url, 3)
        why = says(project)
        assert why.startswith(f"version 3 answers at {url}; the champion, version 2, cannot be")
        [message] = webhook
        assert message["event"] == "failed"
        assert message["text"].startswith("toy: the champion, version 2, cannot be served, and ver")
    # A later try.
    served = server.read(project, "toy")
    file = project.state / "served" / "toy.json"
    write_json(file, asdict(served) | {"retry": 0.0})
    if condition != "True":
        code.write_text(text)
    with serving(project) as (url, _):
        answers_with(url, 3 if condition == "True" else 2)
    assert len(webhook) == 1
    after = server.read(project, "toy")
    assert after.retry > served.retry if condition == "True" else after.failed is None


def test_a_first_champion_is_waited_for_and_a_killed_server_and_worker_leave_nothing(tmp_path):
    project = Project(tmp_path)
    templates.place_mlflow_database(tmp_path)
    (tmp_path / "params.yaml").write_text(PARAMS)
    with serving(project) as (url, process):
        until(lambda: server.read(project, "toy").url, SECONDS)
        assert says(project) == "the server waits for the first champion"
        sleep(4)
        assert process.poll() is None
        promoted(project, "one", {"verdict": "first"})
        answers_with(url, 1)
        processes = processes_of(psutil.Process(process.pid))
        assert len(processes) >= 3
        with serving(project) as (_, second):
            assert second.wait(60) == 2
        assert "toy is served already" in (project.root / "serve.log").read_text()
        os.kill(process.pid, signal.SIGKILL)
        until(lambda: not any(each.is_running() for each in processes[1:]))
    assert "does not answer" in says(project)
    with serving(project) as (url, process):
        answers_with(url, 1)
        processes = processes_of(psutil.Process(process.pid))
        worker = next(each for each in processes if "spawn_main" in " ".join(each.cmdline()))
        worker.suspend()
        sleep(2)  # by then it is asked whether it lives
        worker.kill()
        until(lambda: {*processes_of(psutil.Process(process.pid))} - {*processes})
        answers_with(url, 1)
    until(lambda: not any(each.is_running() for each in processes))


def test_where_another_program_has_the_address_nothing_is_served_and_its_answers_are_not_ours(
    project,
):
    class Other(Answer):
        headers_sent = {HEADER: "7"}  # noqa: RUF012

    with pulling.serving(Other) as url:
        port = url.rpartition(":")[2]
        with serving(project, port) as (_, process):
            assert process.wait(60) == 2
        said = f"retrain: 127.0.0.1:{port} cannot be had"
        assert said in (project.root / "serve.log").read_text()
        served = server.ServedModel(url, psutil.Process().pid, 3)
        killed = replace(served, pid=2**22)
        for written, said in ((served, "version 7 answers"), (killed, "does not answer")):
            write_json(project.state / "served" / "toy.json", asdict(written))
            assert said in says(project)
