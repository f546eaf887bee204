"""Which processes are alive, and how the runs of those that were killed are ended."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL
from prefect.states import Crashed

from retrain.project import Project
from retrain.runs import liveness
from retrain.runs.liveness import Processes

# Holds the lock of its process, and waits.
HELD = """
import sys
from pathlib import Path
from retrain.runs.liveness import Processes

with Processes(Path(sys.argv[1])).hold():
    (Processes(Path(sys.argv[1])).temporary() / "package").mkdir()
    print("held", flush=True)
    sys.stdin.read()
"""


def start(store, program=HELD):
    process = subprocess.Popen(
        [sys.executable, "-c", program, store],
        cwd=liveness.__file__.partition("/retrain/runs/")[0],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout.readline() == b"held\n"
    return process


def test_a_killed_process_is_known_until_it_is_forgotten_with_its_temporary_files(tmp_path):
    processes, before = Processes(tmp_path), time.time()
    with processes.hold():
        with processes.hold():
            processes.temporary()
        [words] = processes.alive().values()
        assert processes.temporary().exists()
        assert re.match(rf"process {os.getpid()} on .* \(.*\), since 20", words)
        assert [*processes.alive()] == [liveness.PROCESS]
        with start(tmp_path) as other:
            assert len(processes.alive()) == 2
            other.kill()
        assert [*processes.alive()] == [liveness.PROCESS]
    began = time.time()
    for _ in range(2):
        assert processes.alive() == {}
        [words] = processes.killed().values()
        assert re.match(rf"process {other.pid} on .* \(-c .*\), since 20", words)
        assert before < processes.oldest() < began
    processes.forget(processes.killed())
    assert processes.killed() == {}
    assert list((tmp_path / liveness.LOCKS).iterdir()) == []


def test_memory_was_out_if_the_kernel_has_killed_for_it_since_the_process_began(
    tmp_path, monkeypatch
):
    processes, counts = Processes(tmp_path), tmp_path / "vmstat"
    names = ["other", liveness.PROCESS]
    monkeypatch.setattr(liveness, "VMSTAT", counts)
    counts.write_text("nr_free_pages 7\noom_kill 3\n")
    with processes.hold():
        assert not processes.memory_was_out(names)
        processes.note_memory_kills()
        assert not processes.memory_was_out(names)
        counts.write_text("nr_free_pages 5\noom_kill 4\n")
        assert processes.memory_was_out(names)
        assert not processes.memory_was_out(["other"])
        monkeypatch.setattr(liveness, "BOOT", tmp_path / "boot")
        for boot in ("", "of another machine"):
            (tmp_path / "boot").write_text(boot)
            assert not processes.memory_was_out(names)
        counts.unlink()
        assert not processes.memory_was_out(names)


def test_processes_with_the_same_number_in_two_containers_do_not_wait_for_each_other(tmp_path):
    with start(tmp_path, f"import os; os.getpid = lambda: {os.getpid()}\n{HELD}") as other:
        with Processes(tmp_path).hold():
            assert len(Processes(tmp_path).alive()) == 2
        other.kill()


# Begins a flow with a task, as `retrain.runs.flow_runs.Flow` does or as a worker, and is killed
# before its body, in its task, or not at all.
BEGUN = textwrap.dedent(
    """
    import os, signal, sys, time
    from contextlib import nullcontext
    from pathlib import Path
    from prefect import flow, task, tags
    from retrain.project import Project
    from retrain.runs.liveness import PROCESS, Processes, end_lost_runs
    from retrain.store import Store

    project = Project(Path(sys.argv[1]))
    starter, when = sys.argv[2:]

    def die():
        time.sleep(1)  # Prefect sends the state of a task from a thread
        os.kill(os.getpid(), signal.SIGKILL)

    @task
    def train():
        with Store(project.store).lock("train", "lost key"):
            if when == "in a task":
                die()

    @flow
    def lose():
        if when == "at its start":
            die()
        with Processes(project.store).hold():
            end_lost_runs(project)
            train()

    if starter == "worker":
        lose()
    else:
        with Processes(project.store).hold(), tags(PROCESS):
            lose()
    """
)


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.delenv("RETRAIN_STORE", raising=False)
    return Project(tmp_path)


def begin(project, starter, when):
    return subprocess.run(
        [sys.executable, "-c", BEGUN, str(project.root), starter, when],
        env=os.environ | {"PREFECT_API_URL": str(PREFECT_API_URL.value())},
        check=False,
    ).returncode


def last_run(client):
    runs = [run for run in client.read_flow_runs() if client.read_flow(run.flow_id).name == "lose"]
    return max(runs, key=lambda run: run.created)


def last_states():
    """The state of the last flow run, and those of its tasks."""
    with get_client(sync_client=True) as client:
        last = last_run(client)
        tasks = [task for task in client.read_task_runs() if task.flow_run_id == last.id]
        return last.state.name, [task.state.name for task in tasks]


@pytest.mark.parametrize(
    ("starter", "when", "tasks"),
    [("person", "at its start", 0), ("person", "in a task", 1), ("worker", "in a task", 1)],
)
def test_a_run_that_was_killed_is_ended_and_told_once(
    project, prefect_session, webhook, starter, when, tasks
):
    assert begin(project, starter, when) == -signal.SIGKILL
    assert last_states() == ("Running", ["Running"] * tasks)
    with get_client(sync_client=True) as client:
        lost = last_run(client).id
    liveness.end_lost_runs(project)
    assert last_states() == ("Crashed", ["Crashed"] * tasks)
    assert Processes(project.store).killed() == {}
    liveness.end_runs(project, [str(lost)])  # as the next start of a worker does
    text = f"retrain: the run crashed: {liveness.ENDED}\nrun: {lost}"
    assert webhook == [{"event": "failed", "text": text}]


def test_a_run_that_was_killed_and_told_by_its_worker_is_not_told_again(
    project, prefect_session, webhook
):
    assert begin(project, "worker", "in a task") == -signal.SIGKILL
    with get_client(sync_client=True) as client:
        state = Crashed(message="status code -9")
        client.set_flow_run_state(UUID(str(last_run(client).id)), state, force=True)
    liveness.end_lost_runs(project)
    assert webhook == []


def test_a_run_whose_process_another_clone_has_forgotten_is_ended_on_its_own_server(
    project, prefect_session, webhook
):
    assert begin(project, "person", "in a task") == -signal.SIGKILL
    Processes(project.store).forget(Processes(project.store).killed())
    liveness.end_lost_runs(project)
    assert last_states() == ("Running", ["Running"])  # it may be one of another clone
    with get_client(sync_client=True) as client:
        client.update_flow_run(last_run(client).id, tags=[liveness.OWN_SERVER])
    liveness.end_lost_runs(project)
    assert last_states() == ("Crashed", ["Crashed"])


@pytest.mark.parametrize("starter", ["person", "worker"])
def test_runs_that_go_on_or_have_ended_are_left_alone(project, prefect_session, starter):
    assert begin(project, starter, "not at all") == 0
    with Processes(project.store).hold():
        assert Processes(project.store).killed() == {}
        liveness.end_lost_runs(project)
    assert last_states() == ("Completed", ["Completed"])
