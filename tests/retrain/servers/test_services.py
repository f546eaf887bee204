"""The servers as `make up` starts them, in a project with a small flow, on free ports."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.schedules import CronSchedule
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelling, Pending, Running, Scheduled
from ruamel.yaml import YAML

from retrain.errors import UsageError
from retrain.params import workload_names
from retrain.project import Project
from retrain.runs import console, liveness
from retrain.servers import program, services, serving
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
def sent():
    """What people are sent."""
    with listening() as received:
        yield received


@pytest.fixture(scope="module")
def project(tmp_path_factory, sent):
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


@contextmanager
def client_of(project):
    """Prefect's client of a project's server."""
    settings = temporary_settings({PREFECT_API_URL: services.server_api(project)})
    with settings, get_client(sync_client=True) as client:
        yield client


@pytest.fixture
def client(project):
    with client_of(project) as client:
        yield client


def deployment(client, name="vit"):
    return client.read_deployment_by_name(f"small/{name}")


def pids(project):
    found = services._supervisor(project).getAllProcessInfo()
    return {each["name"]: each["pid"] for each in found if each["pid"]}


def processes_of(project):
    """The processes of all services, with those that they have started."""
    leaders = [psutil.Process(pid) for pid in pids(project).values()]
    return [each for leader in leaders for each in (leader, *leader.children(recursive=True))]


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


def live_run(client, state=None, tags=(), **parameters):
    """The id of a run that a worker takes, or of one in a certain state."""
    return client.create_flow_run_from_deployment(
        deployment(client).id, parameters=parameters, state=state, tags=tags
    ).id


def ended(client, run):
    """The states of all flow runs of a run, when it has ended."""
    tags = {"any_": [f"try-{number}-of-{run}" for number in (2, 3, 4)]}
    tries = FlowRunFilter.model_validate({"tags": tags})

    def when_over():
        later = sorted(client.read_flow_runs(flow_run_filter=tries), key=lambda each: each.created)
        found = [each.state.type.value for each in (client.read_flow_run(run), *later)]
        last = len(found) == liveness.TRIES or found[-1] != "CRASHED"
        return last and {*found} <= {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"} and found

    return until(when_over, 240)


@pytest.fixture
def messages(sent):
    """What people are sent by a run."""
    sent.clear()
    return sent


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
    project, client, messages, deaths, by, states, message
):
    (project.root / "vmstat").write_text("oom_kill 0")
    workload = f"{by}-{deaths}"
    run = live_run(client, workload=workload, deaths=deaths, by=by)
    assert ended(client, run) == states
    [sent] = until(lambda: messages)
    assert sent["text"].startswith(f"{workload}: {message}\n")
    parameters = begun(project, workload)
    assert parameters == parameters[:1] * len(states)
    until(lambda: deployment(client).global_concurrency_limit.active_slots == 0)


def test_a_run_that_a_person_cancels_is_not_run_again(project, client, messages):
    run = live_run(client, workload="cancelled", deaths=9, by="a person")
    until(lambda: begun(project, "cancelled"), 60)
    client.set_flow_run_state(run, Cancelling())
    assert ended(client, run) == ["CANCELLED"]
    assert messages == []


def test_a_worker_that_is_killed_comes_back_by_itself_and_so_do_its_runs(project, client, messages):
    run = live_run(client, workload="worker", deaths=1, by="a person")
    until(lambda: begun(project, "worker"), 60)
    before = pids(project)
    of_the_run = psutil.Process(before["worker"]).children(recursive=True)
    assert of_the_run
    with chdir(project.root):
        for other in ("another", "local-worker"):  # a second worker that starts harms no live run
            program.end_runs_of_dead_worker(other)
            assert client.read_flow_run(run).state.is_running()
    waiting = live_run(client)  # one run at a time: a worker that took it and was killed leaves
    client.set_flow_run_state(waiting, Pending(), force=True)  # this
    os.kill(before["worker"], signal.SIGKILL)

    for each in (run, waiting):
        assert ended(client, each) == ["CRASHED", "COMPLETED"]
    until(lambda: not any(process.is_running() for process in of_the_run))
    assert {name for name, pid in pids(project).items() if pid != before[name]} == {"worker"}
    until(lambda: len(messages) == 2)  # the end of each


def test_a_run_of_a_machine_that_is_gone_goes_on_at_a_worker_that_sees_its_store(
    project, client, messages
):
    later = Scheduled(scheduled_time=datetime(2999, 1, 1, tzinfo=UTC))
    run = live_run(client, later, ["process-gone"], workload="gone")
    (project.store / liveness.LOCKS / "process-gone.lock").touch()  # which nobody holds
    client.set_flow_run_state(run, Running(), force=True)
    assert ended(client, run) == ["CRASHED", "COMPLETED"]
    [sent] = until(lambda: messages)
    assert sent["event"] == "promoted"


def test_what_was_killed_with_all_servers_goes_on_after_the_next_start(project, client, messages):
    run = live_run(client, workload="machine", deaths=1, by="a person")
    until(lambda: begun(project, "machine"), 60)
    supervisor = psutil.Process(services._supervisor(project).getPID())
    killed = [supervisor, *supervisor.children(recursive=True)]
    for process in killed:
        process.kill()
    psutil.wait_procs(killed)
    services.up(project)
    with client_of(project) as again:  # at another port
        assert ended(again, run) == ["CRASHED", "COMPLETED"]
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


def are_active(client, name):
    return [each.active for each in deployment(client, name).schedules]


def test_what_a_person_paused_stays_so_and_what_left_the_file_is_removed(project, client, capsys):
    file = project.root / "prefect.yaml"
    text = file.read_text()
    file.write_text(text + ANOTHER)
    services.up(project)
    other = deployment(client, "another")
    client.pause_deployment(other.id)
    for each in (*deployment(client).schedules, *other.schedules[:2]):
        client.update_deployment_schedule(each.deployment_id, each.id, active=False)
    was = are_active(client, "another")
    assert sorted(was) == [False, False, True]

    file.write_text(text + ANOTHER.replace("rrule", "slug: daily\n        rrule"))
    services.up(project)
    assert are_active(client, "vit") == [False]
    assert are_active(client, "another") == was
    assert deployment(client, "another").paused

    bare = ANOTHER.partition("    schedules")[0] + ANOTHER[ANOTHER.index("    work_pool") :]
    file.write_text(text + bare)
    mine = DeploymentScheduleCreate(schedule=CronSchedule(cron="0 7 * * *"), slug="of-mine")
    client.create_deployment_schedules(other.id, [mine])
    services.up(project)
    assert [each.slug for each in deployment(client, "another").schedules] == ["of-mine"]

    file.write_text(text.replace("0 3 * * 1", "0 6 * * 1").replace("slug: weekly", "slug: mondays"))
    with console.shown_on(sys.stdout):
        assert services.up(project)[1] == ["small/vit"]
    assert "small/another is no longer in prefect.yaml, and is removed." in capsys.readouterr().out
    [mondays] = deployment(client).schedules
    assert (mondays.slug, mondays.active) == ("mondays", True)
    assert [each.name for each in client.read_deployments()] == ["vit"]
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
    until(lambda: not any(process.is_running() for process in left))
    until(lambda: serving.version_at(url) == 1, 240)

    params.write_text(f"workloads: {{toy: {entry}, other: {entry}}}\n")
    with pytest.raises(UsageError, match=r"two workloads have the same serve\.port"):
        services.up(project)


def test_all_that_listens_is_on_loopback(project):
    listening = {
        connection.laddr.ip.removeprefix("::ffff:")
        for process in processes_of(project)
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}


def test_down_leaves_nothing_alive(project):
    processes = processes_of(project)
    assert set(services.down(project)) == {"prefect", "mlflow", "worker", "serve-toy"}
    left = [process for process in processes if process.is_running()]
    assert all(process.status() == psutil.STATUS_ZOMBIE for process in left)  # none but ended ones
    assert services.running(project) == {}
    assert services.down(project) == []
    assert (project.root / ".env").read_text() == "TOKEN=mine\n"
    assert services.server_api(project) == ""


@pytest.mark.parametrize("is_in_file", [True, False])
def test_a_clone_that_uses_another_server_starts_none(tmp_path, monkeypatch, is_in_file):
    project = make_project(tmp_path, monkeypatch)
    theirs = "http://prefect.example:4200/api"
    if is_in_file:
        (tmp_path / ".env").write_text(f"PREFECT_API_URL={theirs}\n")
    else:
        monkeypatch.setenv("PREFECT_API_URL", theirs)
    with pytest.raises(UsageError, match=r"prefect\.example"):
        services.up(project)
    assert services.running(project) == {}
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
        (process.info["environ"] or {}).get(program.MARK, "").startswith(str(project.state))
        for process in psutil.process_iter(["environ"])
    )
