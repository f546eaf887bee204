"""Runs whose process was killed are ended in Prefect and MLflow: real processes, a real server."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest
from prefect.client.orchestration import get_client

from retrain.project import Project
from retrain.registry import tracking
from retrain.runs import flow_runs
from retrain.store import Store

# Begins a flow with a task and a training in MLflow, and is killed there if it is told to.
BEGUN = textwrap.dedent(
    """
    import os, signal, sys
    from pathlib import Path
    from prefect import flow, task, runtime
    from retrain.registry import tracking
    from retrain.project import Project
    from retrain.store import Store

    project = Project(Path(sys.argv[1]))
    store = Store(project.store)

    @task
    def train():
        with store.lock("train", "lost key"):
            if sys.argv[2] == "killed":
                tracking.start_run(project, "digits", "lost key", {}, "ab" * 32)
                os.kill(os.getpid(), signal.SIGKILL)

    @flow
    def lose():
        with store.runs.holding(str(runtime.flow_run.id)):
            train()

    lose()
    """
)


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.delenv("RETRAIN_STORE", raising=False)
    return Project(tmp_path)


def begin(project, how):
    from prefect.settings import PREFECT_API_URL

    return subprocess.run(
        [sys.executable, "-c", BEGUN, str(project.root), how],
        env=os.environ | {"PREFECT_API_URL": str(PREFECT_API_URL.value())},
        check=False,
    ).returncode


def last_states():
    """The state of the last flow run, and those of its tasks."""
    with get_client(sync_client=True) as client:
        runs = [
            run for run in client.read_flow_runs() if client.read_flow(run.flow_id).name == "lose"
        ]
        last = max(runs, key=lambda run: run.created)
        tasks = [task for task in client.read_task_runs() if task.flow_run_id == last.id]
        return last.state.name, [task.state.name for task in tasks]


def test_a_run_that_was_killed_is_ended_as_soon_as_the_servers_answer(
    project, prefect_session, monkeypatch
):
    assert begin(project, "killed") == -signal.SIGKILL
    assert last_states() == ("Running", ["Running"])
    with monkeypatch.context() as unreachable:
        unreachable.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        unreachable.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        flow_runs.end_lost_runs(project)
    assert len(Store(project.store).runs.killed()) == 1  # to be tried again
    flow_runs.end_lost_runs(project)
    assert last_states() == ("Crashed", ["Crashed"])
    client = tracking.client(project)
    [run] = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
    assert run.info.status == "KILLED"
    assert Store(project.store).runs.killed() == set()


def test_runs_that_go_on_or_have_ended_are_left_alone(project, prefect_session):
    assert begin(project, "not at all") == 0
    with Store(project.store).runs.holding("a run"):
        assert Store(project.store).runs.killed() == set()
        flow_runs.end_lost_runs(project)
    assert last_states() == ("Completed", ["Completed"])
