"""The server of a run, its name and its state, who is told, and runs that were killed."""

import logging
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import urllib.request
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import pytest
from prefect import Flow
from prefect.client.orchestration import get_client
from prefect.states import Crashed

from retrain.project import Project
from retrain.runs import flow_runs
from retrain.store import Store
from tests import templates


def ended(body, *arguments):
    """The state of a flow run."""
    return Flow(flow_runs.ending_in_a_state(body), "toy")(*arguments, return_state=True)


@pytest.mark.parametrize(("name", "shown"), [("Rejected", "Rejected"), (None, "Completed")])
def test_a_document_is_the_final_state(prefect_session, name, shown):
    document = {"outcome": "It is what it is.", "state": name}
    state = ended(lambda: document)
    assert (state.type.value, state.name) == ("COMPLETED", shown)
    assert (state.message, state.result()) == ("It is what it is.", document)


def test_an_error_is_one_line_of_the_state_and_raised(prefect_session):
    def body(text: str):
        raise ValueError(text)

    state = ended(body, "no such data:\n  a\n  b")
    assert (state.type.value, state.name) == ("FAILED", "Failed")
    assert state.message == "no such data: a b"
    with pytest.raises(ValueError, match="no such data"):
        state.result()


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ({"workload": "vit", "as_name": None}, "toy-vit"),
        ({"workload": "vit", "as_name": "mine"}, "toy-mine"),
        ({"workload": "vit", "version": "champion"}, "toy-vit-champion"),
    ],
)
def test_a_flow_run_is_named_after_what_it_is_about(monkeypatch, parameters, name):
    monkeypatch.setattr("prefect.runtime.flow_run.parameters", parameters, raising=False)
    assert flow_runs.name_of("toy") == name


OUTCOME = "toy version 3 is what it is."


def ends(workload, how):
    """Runs a flow that ends in a certain way."""

    def body(workload: str, how: str | None):
        if how == "fails":
            raise ValueError("no such data:\n  a\n  b")
        if how == "is interrupted":
            raise KeyboardInterrupt
        return {"state": how, "outcome": OUTCOME}

    hooks = {f"on_{end}": [flow_runs.notify_of_end] for end in ("completion", "failure", "crashed")}
    with suppress(ValueError, KeyboardInterrupt):
        Flow(flow_runs.ending_in_a_state(body), "toy", **hooks)(workload, how)


@pytest.mark.parametrize(
    ("how", "event", "text"),
    [
        ("fails", "failed", "toy: the run failed: no such data: a b\nrun: "),
        ("is interrupted", "failed", "toy: the run crashed: Execution was aborted by an interrupt"),
        ("Rejected", "rejected", f"toy: {OUTCOME}\nrun: "),
        ("Drifted", "drift", f"toy: {OUTCOME}\nrun: "),
    ],
)
def test_people_are_notified_of_news(webhook, prefect_session, how, event, text):
    ends("toy", how)
    [body] = webhook
    assert body["event"] == event
    assert body["text"].startswith(text)


def test_a_run_without_news_is_not(webhook, prefect_session):
    ends("toy", "Compared")
    assert webhook == []


def test_the_report_is_a_file_of_the_project(webhook, prefect_session, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def body(workload: str):
        from prefect.runtime import flow_run

        page = tmp_path / "reports" / "toy" / f"{flow_run.id}.html"
        page.parent.mkdir(parents=True)
        page.touch()
        return {"state": "Rejected", "outcome": OUTCOME}

    Flow(flow_runs.ending_in_a_state(body), "toy", on_completion=[flow_runs.notify_of_end])("toy")
    [page] = tmp_path.glob("reports/toy/*.html")
    assert webhook[0]["text"].startswith(f"toy: {OUTCOME}\nreport: reports/toy/{page.name}\n")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:1/secret", "failed: ConnectionRefusedError."),
        ("secret", "failed: ValueError."),
        ("{server}/broken", "failed: 500."),
        ("{server}/slow", "failed: TimeoutError."),
    ],
)
def test_a_webhook_that_fails_is_a_warning_that_keeps_its_secret(
    webhook, monkeypatch, caplog, url, message
):
    server = os.environ[flow_runs.URL].removesuffix("/secret")
    monkeypatch.setattr(flow_runs, "SECONDS", 1.0)
    monkeypatch.setenv(flow_runs.URL, url.format(server=server))
    with caplog.at_level(logging.WARNING, logger="retrain"):
        flow_runs.notify("rejected", "toy", OUTCOME)
    [warning] = [each.getMessage() for each in caplog.records if each.name == "retrain"]
    assert message in warning
    assert "secret" not in caplog.text
    assert server not in caplog.text


def test_when_nothing_is_set_up_nothing_is_sent(monkeypatch, caplog):
    monkeypatch.delenv(flow_runs.URL, raising=False)
    flow_runs.notify("drift", "toy", "news")
    assert not [each for each in caplog.records if each.name == "retrain"]


ROOT = Path(__file__).parents[3]

RUN = """
import os
import shutil
import urllib.request
from pathlib import Path
from retrain.runs.flow_runs import start_ephemeral_server
from retrain.project import Project

done = []

def fails():
    done.append("failed")
    raise ImportError("not here")

url = start_ephemeral_server(Project(Path.cwd()), [fails, lambda: done.append("next")])
with urllib.request.urlopen(f"{url}/health") as answer:
    print(url, answer.status, *done)
"""


def test_it_comes_up_while_other_things_are_done_and_ends_with_the_process(tmp_path):
    (tmp_path / "prefect.toml").write_text((ROOT / "prefect.toml").read_text())
    templates.place_prefect_database(tmp_path)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        cwd=tmp_path,
        env=kept | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    url, *answers = done.stdout.split()
    assert answers == ["200", "failed", "next"]
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"{url}/health")


def test_a_server_that_ends_at_its_start_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(RuntimeError, match="did not start"):
        flow_runs.start_ephemeral_server(Project(tmp_path), [])


# Begins a flow with a task and a training in MLflow, and is killed there if it is told to.
BEGUN = textwrap.dedent(
    """
    import os, signal, sys, time
    from pathlib import Path
    from prefect import flow, task, runtime
    from retrain.project import Project
    from retrain.store import Store

    project = Project(Path(sys.argv[1]))
    store = Store(project.store)

    @task
    def train():
        with store.lock("train", "lost key"):
            if sys.argv[2] == "killed":
                time.sleep(1)  # Prefect sends the state of a task from a thread
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


def test_a_run_that_was_killed_is_ended_and_told_once(project, prefect_session, webhook):
    assert begin(project, "killed") == -signal.SIGKILL
    assert last_states() == ("Running", ["Running"])
    [lost] = Store(project.store).runs.killed()
    flow_runs.end_lost_runs(project)
    assert last_states() == ("Crashed", ["Crashed"])
    assert Store(project.store).runs.killed() == set()
    flow_runs.mark_crashed(flow_runs.ENDED, {lost})  # as the next start of a worker does
    text = f"retrain: the run crashed: {flow_runs.ENDED}\nrun: {lost}"
    assert webhook == [{"event": "failed", "text": text}]


def test_a_run_that_was_killed_and_told_by_its_worker_is_not_told_again(
    project, prefect_session, webhook
):
    assert begin(project, "killed") == -signal.SIGKILL
    [lost] = Store(project.store).runs.killed()
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(UUID(lost), Crashed(message="status code -9"), force=True)
    flow_runs.end_lost_runs(project)
    assert webhook == []


def test_runs_that_go_on_or_have_ended_are_left_alone(project, prefect_session):
    assert begin(project, "not at all") == 0
    with Store(project.store).runs.holding("a run"):
        assert Store(project.store).runs.killed() == set()
        flow_runs.end_lost_runs(project)
    assert last_states() == ("Completed", ["Completed"])
