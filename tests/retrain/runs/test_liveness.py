"""Which processes are alive, and how the runs of those that were killed are ended."""

import os
import re
import signal
import subprocess
import sys
import time
from uuid import uuid4

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.settings import PREFECT_API_URL
from prefect.states import Crashed, State

from retrain.runs import liveness

# Holds the lock of its process, which has a number of its own container, and waits.
HELD = """
import os, sys
from pathlib import Path
from retrain.runs.liveness import Processes

os.getpid = lambda: int(sys.argv[2])
with Processes(Path(sys.argv[1])).hold():
    (Processes(Path(sys.argv[1])).temporary() / "package").mkdir()
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_killed_process_is_known_until_it_is_forgotten_with_its_temporary_files(tmp_path):
    processes, before = liveness.Processes(tmp_path), time.time()
    program = [sys.executable, "-c", HELD, tmp_path, str(os.getpid())]  # as in another container
    with processes.hold():
        with processes.hold():
            processes.temporary()
        with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdout.readline() == b"held\n"
            assert len(processes.alive()) == 2
            other.kill()
        assert processes.temporary().exists()
        [(name, words)] = processes.alive().items()
        assert name == liveness.PROCESS
        assert re.match(rf"process {os.getpid()} on .* \(.*\), since 20", words)
    began = time.time()
    assert processes.alive() == {}
    for _ in range(2):
        [words] = processes.killed().values()
        assert re.match(rf"process {os.getpid()} on .* \(-c .*\), since 20", words)
    assert before < processes.oldest() < began
    processes.forget(processes.killed())
    assert processes.killed() == {}
    assert list((tmp_path / liveness.LOCKS).iterdir()) == []


OWN = "this process"  # whose name is another one in each process of the tests


@pytest.mark.parametrize(
    ("kills", "boot", "name", "was_out"),
    [
        (3, "boot", OWN, False),
        (4, "boot", OWN, True),
        (4, "boot", "one that has noted nothing", False),
        (4, "another", OWN, False),  # start of the machine, or another machine
        (4, "", OWN, False),
        (None, "boot", OWN, False),  # another system
    ],
)
def test_memory_was_out_if_the_kernel_has_killed_for_it_since_the_process_began(
    tmp_path, monkeypatch, kills, boot, name, was_out
):
    processes, counts, start = liveness.Processes(tmp_path), tmp_path / "vmstat", tmp_path / "boot"
    monkeypatch.setattr(liveness, "VMSTAT", counts)
    monkeypatch.setattr(liveness, "BOOT", start)
    counts.write_text("nr_free_pages 7\noom_kill 3\n")
    start.write_text("boot")
    with processes.hold():
        processes.note_memory_kills()
        start.write_text(boot)
        counts.write_text(f"nr_free_pages 5\noom_kill {kills}\n")
        if kills is None:
            counts.unlink()
        named = liveness.PROCESS if name == OWN else name
        assert processes.memory_was_out(["other", named]) == was_out


# Begins a flow with a task, as `retrain.runs.flow_runs.Flow` does or as a worker, and is killed
# before its body or in its task.
BEGUN = """
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
def pull():
    pass

@task
def train():
    with Store(project.store).lock("train", "lost key"):
        die()

@flow
def lose():
    if when == "at its start":
        die()
    with Processes(project.store).hold():
        end_lost_runs(project)
        pull()
        train()

if starter == "worker":
    lose()
else:
    with Processes(project.store).hold(), tags(PROCESS):
        lose()
"""


@pytest.mark.parametrize(
    ("starter", "when", "completed"),
    [("person", "at its start", []), ("worker", "in a task", ["Completed"])],
)
def test_a_run_that_was_killed_is_ended_and_told_once(
    project, prefect_session, webhook, starter, when, completed
):
    begin = [sys.executable, "-c", BEGUN, str(project.root), starter, when]
    environment = os.environ | {"PREFECT_API_URL": str(PREFECT_API_URL.value())}
    assert subprocess.run(begin, env=environment, check=False).returncode == -signal.SIGKILL
    with get_client(sync_client=True) as client:
        lost = max(client.read_flow_runs(), key=lambda run: run.created)

        def states():
            its = [task for task in client.read_task_runs() if task.flow_run_id == lost.id]
            return sorted(each.state.name for each in (client.read_flow_run(lost.id), *its))

        assert states() == [*completed, *["Running"] * (1 + len(completed))]
        liveness.end_lost_runs(project)
        assert states() == sorted([*completed, *["Crashed"] * (1 + len(completed))])
    assert liveness.Processes(project.store).killed() == {}
    liveness.end_runs(project, [str(lost.id)])  # as the next start of a worker does
    text = f"retrain: the run crashed: {liveness.ENDED}\nrun: {lost.id}"
    assert webhook == [{"event": "failed", "text": text}]


SECOND, THIRD = "try-2-of-{first}", "try-3-of-a-run"
LAST = f"{liveness.ENDED} It was its third try, and there is no other."


@pytest.mark.parametrize(
    ("flow", "tag", "was", "state", "again", "told"),
    [
        ("small", "process-gone", "RUNNING", "CRASHED", SECOND, None),
        ("small", "process-gone", "PENDING", "CRASHED", SECOND, None),
        ("small", "process-gone", "CRASHED", "CRASHED", SECOND, None),  # half done
        ("small", "try-2-of-a-run", "RUNNING", "CRASHED", THIRD, None),
        ("small", "try-3-of-a-run", "RUNNING", "CRASHED", None, LAST),
        ("small", "try-3-of-a-run", "CRASHED", "CRASHED", None, None),  # its worker has told it
        ("small", "process-gone", "CANCELLING", "CANCELLED", None, None),  # by a person
        ("small", "process-gone", "COMPLETED", "COMPLETED", None, None),
        ("rollback", "process-gone", "RUNNING", "CRASHED", None, liveness.ENDED),
        ("small", OWN, "RUNNING", "RUNNING", None, None),  # which is alive
        # Another clone with the same store may have forgotten its process.
        ("small", "process-forgotten", "RUNNING", "RUNNING", None, None),
        ("small", liveness.OWN_SERVER, "RUNNING", "CRASHED", SECOND, None),
    ],
)
def test_a_deployment_s_run_whose_process_is_dead_is_run_again_at_most_twice(
    project, prefect_session, webhook, flow, tag, was, state, again, told
):
    (project.store / liveness.LOCKS).mkdir(parents=True)
    (project.store / liveness.LOCKS / "process-gone.lock").touch()  # which nobody holds
    tags = {OWN: [liveness.PROCESS]}.get(tag, [tag])
    if tag.startswith("try"):
        tags.append("process-gone")
    with get_client(sync_client=True) as client, liveness.Processes(project.store).hold():
        deployment = client.create_deployment(client.create_flow_from_name(flow), uuid4().hex)
        parameters = {"workload": "toy"}
        run = client.create_flow_run_from_deployment(
            deployment, parameters=parameters, tags=["mine", *tags]
        )
        client.set_flow_run_state(run.id, State(type=was), force=True)
        for _ in range(2):
            liveness.end_lost_runs(project)
        assert client.read_flow_run(run.id).state.type == state
        found = [
            (each.state.type, each.parameters, {*each.tags} - {liveness.OWN_SERVER})
            for each in client.read_flow_runs()
            if each.deployment_id == deployment and each.id != run.id
        ]
    tries = [("SCHEDULED", parameters, {"mine", again.format(first=run.id)})] if again else []
    assert found == tries
    said = [each["text"].splitlines()[0] for each in webhook]
    assert said == ([f"toy: the run crashed: {told}"] if told else [])


KILLED = "Process exited with status code: -9. SIGKILL"


@pytest.mark.parametrize(
    ("tag", "tries", "said"), [("mine", 2, liveness.ENDED), ("try-3-of-a-run", 1, LAST)]
)
def test_a_run_that_its_worker_finds_killed_is_run_again_or_told(
    prefect_session, webhook, tag, tries, said
):
    with get_client(sync_client=True) as client:
        deployment = client.create_deployment(client.create_flow_from_name("small"), uuid4().hex)
        run = client.create_flow_run_from_deployment(deployment, tags=[tag])
        client.set_flow_run_state(run.id, Crashed(message=KILLED), force=True)
        liveness.notify_of_crash(None, run, Crashed(message=KILLED))
        found = [each for each in client.read_flow_runs() if each.deployment_id == deployment]
        assert client.read_flow_run(run.id).state.message == said
    assert len(found) == tries
    assert len(webhook) == (tries == 1)


def test_a_run_that_was_killed_before_its_flow_was_known_is_run_again(
    project, prefect_session, webhook
):
    pool = f"pool-{uuid4().hex}"
    with get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name=pool, type="process"))
        deployment = client.create_deployment(
            client.create_flow_from_name("small"), uuid4().hex, work_pool_name=pool
        )
        for said in (KILLED, "It could not be submitted."):
            run = client.create_flow_run_from_deployment(deployment, tags=["mine"])
            client.set_flow_run_state(run.id, Crashed(message=said), force=True)
        liveness.run_crashed_again(pool, 60)  # its worker may be about to do it
        for _ in range(2):
            liveness.run_crashed_again(pool, 0)
        found = [each for each in client.read_flow_runs() if each.deployment_id == deployment]
    messages = [each.state.message for each in found]
    assert sum("Goes on from run" in message for message in messages) == 1
    assert {KILLED, "It could not be submitted."} < {*messages}
    assert list(webhook) == []
