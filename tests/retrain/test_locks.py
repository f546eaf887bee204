"""Locks, and what a person is told who waits for one."""

import logging
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
