"""Ends runs at random moments; the next run brings everything to the same end.

    make soak TRIALS=80 AIMED=20 SERVED=60

A trial has a clone for itself. A run is ended at a moment drawn over the length of an undisturbed
one, in one of four ways; in half of the trials a file of the store is damaged then. Then a run goes
to its end, which must be that of the undisturbed one, to the bit, and must leave nothing behind.
Trials that are aimed end the run by SIGKILL while it carries out its decision, from the entry in
the ledger to the alias `champion`, and damage nothing. Trials that are served end the run of a
deployment by SIGKILL: its process, with its worker, or with all servers, which are started again.
It must go to the same end by itself, and people must not get more than that message.
"""

import json
import os
import random
import signal
import sqlite3
import subprocess
import time
from contextlib import closing, contextmanager, suppress

import psutil
import pytest

from retrain.servers import program
from tests import templates
from tests.flows.conftest import RETRAIN, copy_clone, make_clone, until

pytestmark = pytest.mark.slow

TRIALS = int(os.environ.get("TRIALS", "2"))
AIMED = int(os.environ.get("AIMED", "1"))
SERVED = int(os.environ.get("SERVED", "1"))
SEED = int(os.environ.get("SEED", "0"))
WAYS = ("SIGKILL to all", "SIGKILL", "SIGTERM", "Ctrl-C")
MARK = "RETRAIN_SOAK"  # in the environment of all processes of a clone; its value is the folder
TRAIN = ("train", "vit", "--json")
# Files that are being written, and marks of processes, which all have ended.
PARTIAL = (".*.partial", ".*.lock", ".retrain/**/.*.partial", ".retrain/store/.holds/*")
DOUBLED = "SELECT key, step FROM metrics GROUP BY run_uuid, key, step HAVING count(*) > 1"
# The entries of the ledger, whose run has the tag; the alias moves some tenths of a second later.
DECIDED = "SELECT * FROM params JOIN tags USING (run_uuid) WHERE tags.key = 'retrain.ledger'"
ALIAS_SECONDS = 0.4
PREFECT = ".retrain/prefect/prefect.db"
FINAL = {"COMPLETED", "CRASHED", "FAILED", "CANCELLED"}


def start(clone):
    """Starts a run in a session of its own; what it prints goes to files."""
    with (clone.root / "out.json").open("wb") as output, (clone.root / "log").open("ab") as errors:
        return subprocess.Popen(
            [*RETRAIN, *TRAIN], cwd=clone.root, start_new_session=True,
            env=clone.environment | {MARK: str(clone.root)}, stdout=output, stderr=errors,
        )  # fmt: skip


def processes(root):
    """The processes of the runs in a clone that are still there."""
    return [
        process
        for process in psutil.process_iter(["environ", "status"])
        if (process.info["environ"] or {}).get(MARK) == str(root)
        and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


def end(run, way, root):
    """Ends a run in one of the ways."""
    if way == "SIGKILL to all":
        for process in processes(root):
            with suppress(psutil.NoSuchProcess):
                process.kill()
    elif way == "Ctrl-C":
        with suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGINT)  # as a terminal does
    else:
        run.send_signal(getattr(signal, way))


def disturb(clone, way, after):
    """Starts a run and ends it after some seconds, unless it is over by then."""
    run = start(clone)
    # Python drops the exception of Ctrl-C where nothing can raise it; a person presses once more.
    for patience in (after, 60, 60):
        with suppress(subprocess.TimeoutExpired):
            run.wait(patience)
            return
        end(run, way, clone.root)
    run.wait(1)


def disturb_the_decision(clone, after):
    """Starts a run and kills all of it some seconds after its decision was entered."""
    run = start(clone)
    while not query(clone.root / "mlflow.db", DECIDED):
        assert run.poll() is None
        time.sleep(0.002)
    time.sleep(after)
    end(run, "SIGKILL to all", clone.root)
    run.wait(10)


def damage_a_file(root, rng):
    """Changes a byte in the middle of a file of the store."""
    store = root / ".retrain" / "store"
    files = [path for path in store.rglob("*") if path.is_file() and path.stat().st_size]
    outputs = [path for path in files if "scratch" not in path.parts]
    if outputs:
        file = rng.choice(sorted(outputs))
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 0xFF
        file.write_bytes(content)


def query(database, text):
    with closing(sqlite3.connect(database, timeout=30)) as connection:
        return connection.execute(text).fetchall()


def finish(clone):
    """Lets a run go to its end; what must be the same after a disturbed run."""
    assert start(clone).wait(600) == 0, (clone.root / "log").read_text()
    document = json.loads((clone.root / "out.json").read_text())
    database = clone.root / "mlflow.db"
    return {
        "weights": document["model"]["digest"],
        "versions": query(database, "SELECT version FROM model_versions"),
        "aliases": query(database, "SELECT alias, version FROM registered_model_aliases"),
        "decisions": [(each["action"], each["version"]) for each in clone.json("history", "vit")],
    }


def assert_nothing_is_left(root, damaged):
    until(lambda: not processes(root), 20)
    statuses = {status for (status,) in query(root / "mlflow.db", "SELECT status FROM runs")}
    assert damaged or statuses == {"FINISHED"}
    assert query(root / "mlflow.db", DOUBLED) == []
    for table in ("flow_run WHERE NOT auto_scheduled", "task_run"):
        states = query(root / PREFECT, f"SELECT state_type FROM {table}")
        assert {state for (state,) in states} <= FINAL
    assert [path for pattern in PARTIAL for path in root.glob(pattern)] == []


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A clone before its first run, what that leads to, and how long it takes."""
    place = tmp_path_factory.mktemp("soak")
    empty = make_clone(place / "empty", "")
    empty.edit("params.yaml", "epochs: 2\n", "epochs: 4\n")
    empty.edit("params.yaml", "scale:\n", "scale:\n      checkpoint_seconds: 0.1\n")
    templates.place_prefect_database(empty.root)
    templates.place_mlflow_database(empty.root)
    clone, began = copy_clone(empty, place / "undisturbed"), time.monotonic()
    outcome = finish(clone)
    seconds = time.monotonic() - began
    assert_nothing_is_left(clone.root, damaged=False)
    assert ("champion", 1) in outcome["aliases"]
    return empty, outcome, seconds


@pytest.mark.parametrize("number", range(TRIALS))
def test_after_a_run_that_was_ended_the_next_one_leads_to_the_same(undisturbed, tmp_path, number):
    empty, outcome, seconds = undisturbed
    rng, clone = random.Random(f"{SEED} {number}"), copy_clone(empty, tmp_path / "clone")
    disturb(clone, WAYS[number % len(WAYS)], rng.uniform(0, seconds))
    if damaged := rng.random() < 0.5:
        damage_a_file(clone.root, rng)
    assert finish(clone) == outcome
    assert_nothing_is_left(clone.root, damaged)


@pytest.mark.parametrize("number", range(AIMED))
def test_a_decision_that_was_cut_off_is_carried_out_by_the_next_run(undisturbed, tmp_path, number):
    empty, outcome, _ = undisturbed
    rng, clone = random.Random(f"{SEED} aimed {number}"), copy_clone(empty, tmp_path / "clone")
    disturb_the_decision(clone, rng.uniform(0, ALIAS_SECONDS))
    assert finish(clone) == outcome
    assert_nothing_is_left(clone.root, damaged=False)


VICTIMS = ("the run", "the worker and the run", "everything")


@contextmanager
def served(clone):
    """The servers of a clone, to which a run of its deployment was given."""

    def call(*command):
        clone.run(*command, **{MARK: str(clone.root)})

    try:
        call(*RETRAIN, "up")
        # Which reads the address of the server in `.env`.
        call("env", "-u", "PREFECT_API_URL", "prefect", "deployment", "run", "train/vit")
        yield lambda: call(*RETRAIN, "up")
    finally:
        call(*RETRAIN, "down")


def victims(clone, who):
    """The processes to kill."""
    there = processes(clone.root)
    run = [each for each in there if program.RUN in each.info["environ"]]
    worker = [
        each for each in there if each.info["environ"].get(program.MARK, "").endswith(":worker")
    ]
    return {"the run": run, "the worker and the run": worker, "everything": there}[who]


def states(clone):
    """Those of the flow runs of the deployment, when its run is over."""
    text = "SELECT state_type FROM flow_run WHERE NOT auto_scheduled ORDER BY created"
    found = [state for (state,) in query(clone.root / PREFECT, text)]
    return found if {*found} <= FINAL and (found[-1] == "COMPLETED" or len(found) == 3) else None


@pytest.mark.parametrize("number", range(SERVED))
def test_the_run_of_a_deployment_that_was_killed_ends_by_itself(
    undisturbed, tmp_path_factory, webhook, number
):
    empty, outcome, seconds = undisturbed
    place = tmp_path_factory.mktemp("up")  # a Unix socket's path is short
    rng, clone = random.Random(f"{SEED} served {number}"), copy_clone(empty, place / "clone")
    # It needs no server of its own.
    who, after = VICTIMS[number % len(VICTIMS)], rng.uniform(0, 0.7 * seconds)
    with served(clone) as up:
        until(lambda: victims(clone, "the run"), 120)
        time.sleep(after)
        for process in victims(clone, who):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        if who == "everything":
            up()
        found = until(lambda: states(clone), 400)
    print(f"{who} killed {after:.1f} s after its start: {found}, {webhook}")
    assert [message["event"] for message in webhook] in (["promoted"], [])
    assert finish(clone) == outcome
    assert json.loads((clone.root / "out.json").read_text())["unchanged"]
    assert_nothing_is_left(clone.root, damaged=False)
