"""Runs whose process was killed are ended in Prefect and MLflow: real processes, a real server."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest
from prefect.client.orchestration import get_client

from retrain import tracking
from retrain.project import Project
from retrain.runs import lost
from retrain.store import Store

# Begins a flow with a task and a training in MLflow, as a command or as a worker does.
BEGUN = textwrap.dedent(
    """
    import os, signal, sys
    from pathlib import Path
    from prefect import flow, task, runtime
    from retrain import tracking
    from retrain.project import Project
    from retrain.runs import lost
    from retrain.store import Store

    project = Project(Path(sys.argv[1]))
    store = Store(project.store)

    @task
    def train():
        with store.holding(str(runtime.flow_run.id)), store.lock("train", "lost key"):
            if sys.argv[2] == "killed in a step":
                tracking.start_run(project, "digits", "lost key", {}, "ab" * 32)
                os.kill(os.getpid(), signal.SIGKILL)

    @flow
    def lose():
        if sys.argv[2] == "killed at its start":
            os.kill(os.getpid(), signal.SIGKILL)
        train()

    if sys.argv[3] == "command":
        with lost.marked(project):
            print(lose(return_state=True).state_details.flow_run_id)
    else:
        lose()
    """
)


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.delenv("RETRAIN_STORE", raising=False)
    return Project(tmp_path)


def begin(project, point, where="command"):
    from prefect.settings import PREFECT_API_URL

    return subprocess.run(
        [sys.executable, "-c", BEGUN, str(project.root), point, where],
        env=os.environ | {"PREFECT_API_URL": str(PREFECT_API_URL.value())},
        capture_output=True,
        text=True,
    )


def states():
    """The states of the flow runs so far, and of their tasks, the last first."""
    with get_client(sync_client=True) as client:
        runs = [
            run for run in client.read_flow_runs() if client.read_flow(run.flow_id).name == "lose"
        ]
        runs.sort(key=lambda run: run.created, reverse=True)
        tasks = client.read_task_runs()
        return [
            (run.state.name, [task.state.name for task in tasks if task.flow_run_id == run.id])
            for run in runs
        ]


@pytest.mark.parametrize("where", ["command", "worker"])
def test_a_run_that_was_killed_in_a_step_is_ended(project, prefect_session, where, monkeypatch):
    assert begin(project, "killed in a step", where).returncode == -signal.SIGKILL
    assert states()[0] == ("Running", ["Running"])
    with monkeypatch.context() as unreachable:
        unreachable.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        unreachable.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        lost.end_lost_runs(project)
    assert lost.are_there(project)  # to be tried again
    lost.end_lost_runs(project)
    assert states()[0] == ("Crashed", ["Crashed"])
    [run] = tracking.client(project).search_runs(
        [tracking.client(project).get_experiment_by_name("digits").experiment_id]
    )
    assert run.info.status == "KILLED"
    assert not lost.are_there(project)
    assert Store(project.store).killed_runs() == set()


def test_a_command_that_was_killed_before_its_first_step_is_ended(project, prefect_session):
    assert begin(project, "killed at its start").returncode == -signal.SIGKILL
    lost.end_lost_runs(project)
    assert states()[0] == ("Crashed", [])
    assert not lost.are_there(project)
    assert not (project.root / "mlflow.db").exists()


def test_a_run_that_ends_by_itself_leaves_no_mark(project, prefect_session):
    done = begin(project, "not at all")
    assert done.returncode == 0, done.stderr
    assert states()[0] == ("Completed", ["Completed"])
    assert not lost.are_there(project)
    assert list((project.state / "processes").iterdir()) == []


def test_runs_that_go_on_are_left_alone(project, prefect_session):
    with lost.marked(project), Store(project.store).holding("a run"):
        assert not lost.are_there(project)
        lost.end_lost_runs(project)
        assert len(list((project.state / "processes").iterdir())) == 1
