"""Locks, and what a person is told who waits for one."""

import logging
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import Timeout

from retrain import locks
from retrain.locks import locked
from retrain.runs import console

HOLD = """
import sys
from pathlib import Path
from retrain.locks import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_wait_says_which_process_has_the_lock_and_since_when(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(locks, "QUIET_SECONDS", 0.05)
    caplog.set_level(logging.INFO, "retrain")
    file, waited = tmp_path / "a.lock", []

    def say(line):
        waited.append(line)
        holding.communicate()  # it ends

    with subprocess.Popen(
        [sys.executable, "-c", HOLD, file],
        cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as holding:  # fmt: skip
        assert holding.stdout.readline() == b"held\n"
        with pytest.raises(Timeout), locked(file, wait=False):
            pass
        assert caplog.messages == []
        monkeypatch.setattr(console, "say", say)
        with locked(file, purpose="It waits"):
            pass
    process = (
        f"It waits: process {holding.pid} on {socket.gethostname()} (-c {file}) has it since 20"
    )
    [line] = waited
    assert line.startswith(process)


STARTING = """
import sys
from pathlib import Path
from retrain.locks import Runs
with Runs(Path(sys.argv[1])).holding("starting"):
    print("begun", flush=True)
    sys.stdin.read()
"""


def test_a_run_is_lost_that_no_process_holds_or_may_be_about_to_hold(tmp_path):
    runs = locks.Runs(tmp_path / "holds")
    with runs.holding(locks.STARTING), runs.holding("a"):
        assert runs.lost(["a", "b"]) == {"b"}
        assert len(runs.under_way()) == 1
        with subprocess.Popen(
            [sys.executable, "-c", STARTING, runs.folder],
            cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        ) as other:  # fmt: skip
            assert other.stdout.readline() == b"begun\n"
            assert runs.lost(["b"]) == set()
            other.kill()
        assert runs.lost(["b"]) == {"b"}
    assert runs.killed() == set()


def test_processes_with_the_same_number_in_two_containers_do_not_wait_for_each_other(tmp_path):
    runs = locks.Runs(tmp_path / "holds")
    program = [sys.executable, "-c", f"import os; os.getpid = lambda: {os.getpid()}\n{STARTING}"]
    with subprocess.Popen(
        [*program, runs.folder],
        cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as other:  # fmt: skip
        assert other.stdout.readline() == b"begun\n"
        with runs.holding(locks.STARTING):
            assert len([*runs.folder.glob("starting-*.lock")]) == 2
        other.kill()
