"""The servers as `make up` starts them, in a project with a small flow, on free ports."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir
from pathlib import Path

import httpx
import psutil
import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings
from ruamel.yaml import YAML

from retrain.errors import UsageError
from retrain.params import workload_names
from retrain.project import Project
from retrain.runs import console, liveness
from retrain.servers import program, services, serving
from retrain.servers.program import MARK
from tests import templates
from tests.conftest import listening
from tests.flows.conftest import free_port, until
from tests.tasks.promote.conftest import promoted

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]

FLOW = """
import os, signal, threading, time
from pathlib import Path
from prefect import runtime
from retrain.flow import flow
from retrain.project import find_project
from retrain.runs import console, liveness

console.PLAIN_LINE_SECONDS = 0
liveness.VMSTAT = Path("vmstat")

@flow
def small(seconds: float = 0, workload: str = "", deaths: int = 0, by: str = ""):
    '''A small flow.'''
    with liveness.Processes(find_project().store).hold():
        liveness.end_lost_runs(find_project())
        return work(seconds, workload, deaths, by)

def work(seconds, workload, deaths, by):
    tries = Path(workload + ".tries")
    tries.open("a").write(str(runtime.flow_run.parameters) + chr(10))
    if len(tries.read_text().splitlines()) <= deaths:
        if by == "error":
            raise ValueError("It is my own fault.")
        if by == "a person":
            time.sleep(300)
        if by == "memory":
            liveness.VMSTAT.write_text(f"oom_kill {time.time_ns()}")
        time.sleep(0.5)  # Prefect sends what was said from a thread
        os.kill(os.getpid(), signal.SIGTERM if by == "SIGTERM" else signal.SIGKILL)
        time.sleep(60)
    console.say(f"[b]said[/] in {os.getcwd()}")
    with console.progress("train") as update:
        trainer = threading.Thread(target=update, args=(0.5, "epoch 1/2"))
        trainer.start()
        trainer.join()
    time.sleep(seconds)
    return {"outcome": "It is small.", "state": "Promoted"}
"""


def make_project(folder, environment):
    """A project with the settings and the deployment of this one, but another flow."""
    (folder / "deploy").mkdir()
    for name in ("prefect.toml", services.CONFIGURATION):
        shutil.copy(ROOT / name, folder / name)
    deployments = (ROOT / "prefect.yaml").read_text()
    assert "flows/train.py:train" in deployments
    deployments, _, _ = deployments.partition("  - <<: *shared\n    name: vit # with")
    deployments = deployments.replace("flows/train.py:train", "small.py:small")
    deployments = deployments.replace("workload: vit", "workload: vit\n      seconds: 0")
    (folder / "prefect.yaml").write_text(deployments)
    (folder / "small.py").write_text(FLOW)
    (folder / "vmstat").write_text("oom_kill 0")
    (folder / "params.yaml").write_text("workloads: {}\n")
    for name in ("PREFECT_API_URL", "PREFECT_HOME", "PREFECT_LOGGING_LEVEL", "MLFLOW_TRACKING_URI"):
        environment.delenv(name, raising=False)
    templates.place_prefect_database(folder)
    return Project(folder)


def test_every_deployment_runs_a_workload_and_one_run_at_a_time():
    deployments = YAML(typ="safe").load(ROOT / "prefect.yaml")["deployments"]
    workloads = workload_names(ROOT / "params.yaml")
    assert deployments
    for deployment in deployments:
        if "gc" not in deployment["tags"]:
            assert deployment["parameters"]["workload"] in workloads
        assert deployment["concurrency_limit"] == {"limit": 1, "collision_strategy": "ENQUEUE"}


@pytest.fixture(scope="module")
def messages():
    """What people are sent."""
    with listening() as received:
        yield received


@pytest.fixture(scope="module")
def project(tmp_path_factory, messages):
    """A project whose services run, beside others that have the usual ports."""
    with pytest.MonkeyPatch.context() as environment, socket.create_server(("127.0.0.1", 0)) as own:
        environment.setitem(services.USUAL_PORTS, "mlflow", own.getsockname()[1])
        environment.setenv("PREFECT_WORKER_QUERY_SECONDS", "1")
        made = make_project(tmp_path_factory.mktemp("project"), environment)
        (made.root / ".env").write_text("TOKEN=mine\n")
        promoted(made, "one", {"verdict": "first"})
        assert services.up(made)[1] == ["small/vit"]
        yield made
        services.down(made)


@pytest.fixture
def api(project):
    def call(path, body=None):
        def answer():  # none while the database is locked; Prefect's own client tries again, too
            url = f"{services.server_api(project)}/{path}"
            found = httpx.get(url) if body is None else httpx.post(url, json=body)
            return [found.json()] if found.is_success else None

        return until(answer)[0]

    return call


def pids(project):
    found = services._supervisor(project).getAllProcessInfo()
    return {each["name"]: each["pid"] for each in found if each["pid"]}


def processes_of(project):
    """The processes of all services, with those that they have started."""
    leaders = [psutil.Process(pid) for pid in pids(project).values()]
    return [each for leader in leaders for each in (leader, *leader.children(recursive=True))]


def test_all_that_listens_is_on_loopback(project):
    listening = {
        connection.laddr.ip.removeprefix("::ffff:")
        for process in processes_of(project)
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}


def test_a_run_started_in_the_project_is_watched_to_its_end_with_its_output(project):
    done = subprocess.run(
        [sys.executable, "-m", "prefect", "deployment", "run", "small/vit", "--watch"],
        cwd=project.root,  # where .env names the server
        env=os.environ | {"COLUMNS": "500"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"said in {project.root}" in done.stdout
    assert "epoch 1/2" in done.stdout


def comes_back(project, name, pid):
    return until(lambda: pids(project).get(name, pid) != pid, 60)


def live_run(api, **parameters):
    deployment = api("deployments/name/small/vit")["id"]
    return api(f"deployments/{deployment}/create_flow_run", {"parameters": parameters})["id"]


def state_of(api, run):
    return api(f"flow_runs/{run}")["state"]["type"]


def tries_of(api, run):
    """The flow runs of a run, in order."""
    tags = {"any_": [f"try-{number}-of-{run}" for number in (2, 3, 4)]}
    later = api("flow_runs/filter", {"flow_runs": {"tags": tags}})
    return [api(f"flow_runs/{run}"), *sorted(later, key=lambda each: each["created"])]


def ended(api, run):
    """The states of all flow runs of a run, when it has ended."""
    found = []

    def is_over():
        found[:] = [each["state"]["type"] for each in tries_of(api, run)]
        last = len(found) == liveness.TRIES or found[-1] != "CRASHED"
        return last and {*found} <= {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}

    until(is_over, 240)
    return found


def begun(project, workload):
    """How often a run has begun, and with which parameters."""
    file = project.root / f"{workload}.tries"
    return file.read_text().splitlines() if file.exists() else []


CRASHED = "the run crashed: "


@pytest.mark.parametrize(
    ("deaths", "by", "states", "message"),
    [
        (1, "SIGKILL", ["CRASHED", "COMPLETED"], "It is small."),
        (2, "SIGTERM", ["CRASHED", "CRASHED", "COMPLETED"], "It is small."),
        (9, "memory", ["CRASHED"] * 3, f"{CRASHED}{liveness.OUT_OF_MEMORY} {liveness.LAST}"),
        (9, "error", ["FAILED"], "the run failed: It is my own fault."),
    ],
)
def test_a_run_that_is_killed_is_run_again_twice_at_most_and_told_once(
    project, api, messages, deaths, by, states, message
):
    messages.clear()
    (project.root / "vmstat").write_text("oom_kill 0")
    workload = f"{by}-{deaths}"
    run = live_run(api, workload=workload, deaths=deaths, by=by)
    assert ended(api, run) == states
    [sent] = until(lambda: messages)
    assert sent["text"].startswith(f"{workload}: {message}\n")
    parameters = begun(project, workload)
    assert len(parameters) == len(states)
    assert len({*parameters}) == 1
    slots = "global_concurrency_limit"
    until(lambda: api("deployments/name/small/vit")[slots]["active_slots"] == 0)


def test_a_run_that_a_person_cancels_is_not_run_again(project, api, messages):
    messages.clear()
    run = live_run(api, workload="cancelled", deaths=9, by="a person")
    until(lambda: begun(project, "cancelled"), 60)
    api(f"flow_runs/{run}/set_state", {"state": {"type": "CANCELLING"}})
    assert ended(api, run) == ["CANCELLED"]
    assert messages == []


def test_a_worker_that_is_killed_comes_back_by_itself_and_so_do_its_runs(project, api, messages):
    messages.clear()
    run = live_run(api, workload="worker", deaths=1, by="a person")
    until(lambda: begun(project, "worker"), 60)
    before = pids(project)
    of_the_run = psutil.Process(before["worker"]).children(recursive=True)
    assert of_the_run
    with (
        temporary_settings(updates={PREFECT_API_URL: services.server_api(project)}),
        chdir(project.root),
    ):
        for other in ("another", "local-worker"):  # a second worker that starts harms no live run
            program.end_runs_of_dead_worker(other)
            assert state_of(api, run) == "RUNNING"
    waiting = live_run(api)  # one run at a time: a worker that took it and was killed leaves this
    api(f"flow_runs/{waiting}/set_state", {"state": {"type": "PENDING"}, "force": True})
    os.kill(before["worker"], signal.SIGKILL)
    comes_back(project, "worker", before["worker"])

    for each in (run, waiting):
        assert ended(api, each) == ["CRASHED", "COMPLETED"]
    until(lambda: not any(process.is_running() for process in of_the_run))
    assert {name for name, pid in pids(project).items() if pid != before[name]} == {"worker"}
    until(lambda: len(messages) == 2)  # the end of each


def test_a_run_of_a_machine_that_is_gone_goes_on_at_a_worker_that_sees_its_store(
    project, api, messages
):
    messages.clear()
    deployment = api("deployments/name/small/vit")["id"]
    later = {"type": "SCHEDULED", "state_details": {"scheduled_time": "2999-01-01T00:00:00Z"}}
    body = {"parameters": {"workload": "gone"}, "state": later, "tags": ["process-gone"]}
    run = api(f"deployments/{deployment}/create_flow_run", body)["id"]
    (project.store / liveness.LOCKS / "process-gone.lock").touch()  # which nobody holds
    api(f"flow_runs/{run}/set_state", {"state": {"type": "RUNNING"}, "force": True})
    assert ended(api, run) == ["CRASHED", "COMPLETED"]
    [sent] = until(lambda: messages)
    assert sent["event"] == "promoted"


def test_what_was_killed_with_all_servers_goes_on_after_the_next_start(project, api, messages):
    messages.clear()
    run = live_run(api, workload="machine", deaths=1, by="a person")
    until(lambda: begun(project, "machine"), 60)
    supervisor = psutil.Process(services._supervisor(project).getPID())
    killed = [supervisor, *supervisor.children(recursive=True)]
    for process in killed:
        process.kill()
    psutil.wait_procs(killed)
    services.up(project)
    assert ended(api, run) == ["CRASHED", "COMPLETED"]
    [sent] = until(lambda: messages)
    assert sent["event"] == "promoted"


def test_up_leaves_alone_what_runs_and_refuses_what_does_not_fit(project):
    before = pids(project)
    assert list(services.up(project)[0]) == list(before)
    file = project.root / "prefect.yaml"
    good = file.read_text()
    bad = good.split("deployments:\n")[1].replace("name: vit", "name: other", 1)
    file.write_text(f"{good}{bad}    concurrency_limit: {{limit: many}}\n")
    with pytest.raises(ValueError, match=r"(?s)prefect.yaml were refused.*concurrency_limit"):
        services.up(project)
    file.write_text(good)
    assert pids(project) == before


ANOTHER = """
  - name: another
    entrypoint: small.py:small
    schedules:
      - cron: "0 5 * * *"
      - interval: 3600
      - rrule: FREQ=DAILY
    work_pool:
      name: local
"""


def test_what_a_person_paused_stays_so_and_what_left_the_file_is_removed(project, api, capsys):
    file = project.root / "prefect.yaml"
    text = file.read_text()
    file.write_text(text + ANOTHER)
    services.up(project)
    name, other = "deployments/name/small/vit", "deployments/name/small/another"
    [weekly] = api(name)["schedules"]
    pause = ("deployment", "schedule", "pause", "small/vit", weekly["id"])
    subprocess.run([sys.executable, "-m", "prefect", *pause], cwd=project.root, check=True)
    url = f"{services.server_api(project)}/deployments/{api(other)['id']}"

    def send(method, path, body=None):  # again while the database is locked
        until(lambda: httpx.request(method, f"{url}/{path}", json=body).is_success)

    send("POST", "pause_deployment")
    for each in api(other)["schedules"][:2]:
        send("PATCH", f"schedules/{each['id']}", {"active": False})
    was = [each["active"] for each in api(other)["schedules"]]
    assert sorted(was) == [False, False, True]

    file.write_text(text + ANOTHER.replace("rrule", "slug: daily\n        rrule"))
    services.up(project)
    assert [each["active"] for each in api(name)["schedules"]] == [False]
    assert [each["active"] for each in api(other)["schedules"]] == was
    assert api(other)["paused"]

    bare = ANOTHER.partition("    schedules")[0] + ANOTHER[ANOTHER.index("    work_pool") :]
    file.write_text(text + bare)
    send("POST", "schedules", [{"schedule": {"cron": "0 7 * * *"}, "slug": "of-mine"}])
    services.up(project)
    assert [each["slug"] for each in api(other)["schedules"]] == ["of-mine"]

    moved = text.replace("0 3 * * 1", "0 6 * * 1").replace("slug: weekly", "slug: mondays")
    assert moved != text
    file.write_text(moved)
    with console.shown_on(sys.stdout):
        assert services.up(project)[1] == ["small/vit"]
    assert "small/another is no longer in prefect.yaml, and is removed." in capsys.readouterr().out
    [mondays] = api(name)["schedules"]
    assert (mondays["slug"], mondays["active"]) == ("mondays", True)
    assert [each["name"] for each in api("deployments/filter", {})] == ["vit"]
    file.write_text(text)


def test_a_workload_with_a_port_is_served_from_the_next_up_on(project):
    params, before = project.root / "params.yaml", pids(project)
    port = free_port()
    entry = f"{{data: {{path: x}}, model: {{family: vit}}, serve: {{port: {port}}}}}"
    params.write_text(f"workloads: {{toy: {entry}}}\n")
    assert services.up(project)[0]["serve-toy"] == f"http://127.0.0.1:{port}"
    url = f"http://127.0.0.1:{port}"
    until(lambda: serving.version_at(url) == 1, 240)
    assert services.is_ready(project, "serve-toy")
    assert {name: pid for name, pid in pids(project).items() if name != "serve-toy"} == before
    server = pids(project)["serve-toy"]
    left = psutil.Process(server).children(recursive=True)
    os.kill(server, signal.SIGKILL)
    comes_back(project, "serve-toy", server)
    until(lambda: not any(process.is_running() for process in left))
    until(lambda: serving.version_at(url) == 1, 240)

    params.write_text(f"workloads: {{toy: {entry}, other: {entry}}}\n")
    with pytest.raises(UsageError, match=r"two workloads have the same serve\.port"):
        services.up(project)


def test_down_leaves_nothing_alive(project):
    processes = processes_of(project)
    assert set(services.down(project)) == {"prefect", "mlflow", "worker", "serve-toy"}
    left = [process for process in processes if process.is_running()]
    assert all(process.status() == psutil.STATUS_ZOMBIE for process in left)  # none but ended ones
    assert services.running(project) == {}
    assert services.down(project) == []
    assert (project.root / ".env").read_text() == "TOKEN=mine\n"
    assert services.server_api(project) == ""


def test_a_clone_that_uses_another_server_starts_none(tmp_path, monkeypatch):
    project = make_project(tmp_path, monkeypatch)
    theirs = "http://prefect.example:4200/api"
    with monkeypatch.context() as elsewhere, pytest.raises(UsageError, match=r"prefect\.example"):
        elsewhere.setenv("PREFECT_API_URL", theirs)
        services.up(project)
    (tmp_path / ".env").write_text(f"PREFECT_API_URL={theirs}\n")
    with pytest.raises(UsageError, match=r"prefect\.example"):
        services.up(project)
    assert services.running(project) == {}
    assert (tmp_path / ".env").read_text() == f"PREFECT_API_URL={theirs}\n"
    assert services.server_api(project) == theirs


def test_clones_that_are_started_at_once_have_servers_of_their_own(tmp_path_factory, monkeypatch):
    clones = [make_project(tmp_path_factory.mktemp("at-once"), monkeypatch) for _ in range(2)]
    try:
        with ThreadPoolExecutor() as pool:
            started = [running for running, _ in pool.map(services.up, clones)]
        addresses = [{*filter(None, running.values())} for running in started]
        assert addresses[0].isdisjoint(addresses[1])
    finally:
        for clone in clones:
            services.down(clone)


def test_a_service_that_cannot_start_is_reported_and_the_others_are_stopped(
    tmp_path_factory, monkeypatch
):
    folder = tmp_path_factory.mktemp("bad")  # a Unix socket's path is short
    project = make_project(folder, monkeypatch)
    shutil.copy(ROOT / "params.yaml", folder / "mlflow.db")  # no SQLite file
    with pytest.raises(ValueError, match=r"(?s)mlflow did not start.*not a database"):
        services.up(project)
    assert services.running(project) == {}
    assert not any(
        (process.info["environ"] or {}).get(MARK, "").startswith(str(project.state))
        for process in psutil.process_iter(["environ"])
    )
