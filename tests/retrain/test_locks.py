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
    monkeypatch.setattr(console, "QUIET_SECONDS", 0.05)
    monkeypatch.setattr(locks, "AGAIN_SECONDS", 0.05)
    caplog.set_level(logging.INFO, "retrain")
    file, waited = tmp_path / "a.lock", []

    def say(line):
        waited.append(line)
        if len(waited) == 3:
            holding.communicate()  # it ends, and the wait goes on for a moment

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
    assert len(waited) >= 3
    for line in waited[:3]:
        assert line.startswith(process)


@pytest.mark.parametrize("content", [b"", b"\xff"])
def test_a_lock_that_does_not_say_who_has_it_is_waited_for_all_the_same(tmp_path, content):
    file = tmp_path / "a.lock"
    file.write_bytes(content)
    assert locks._holder(file) == locks._holder(tmp_path / "gone") == "another process has it"


def test_a_lock_that_is_taken_keeps_the_time_of_its_file(tmp_path):
    file = tmp_path / "a.lock"
    file.write_text("of an earlier process, whose text was longer" * 20)
    before = file.stat().st_mtime_ns
    with locked(file, wait=False):
        assert file.read_text().startswith(f"process {os.getpid()} on ")
        assert "earlier" not in file.read_text()
        assert file.stat().st_mtime_ns == before
