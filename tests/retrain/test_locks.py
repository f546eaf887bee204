"""Locks, and what a person is told who waits for one."""

import os
import socket
from contextlib import ExitStack

import pytest
from filelock import Timeout

from retrain.locks import locked


def test_a_wait_says_which_process_has_the_lock_and_since_when(tmp_path, monkeypatch):
    monkeypatch.setattr("retrain.locks.QUIET_SECONDS", 0.05)
    monkeypatch.setattr("sys.argv", ["/bin/retrain", "train", "vit"])
    file, holding, waited = tmp_path / "a.lock", ExitStack(), []

    def say(line):
        waited.append(line)
        holding.close()

    holding.enter_context(locked(file))
    monkeypatch.setattr("retrain.runs.console.say", say)
    with pytest.raises(Timeout), locked(file, wait=False):  # which says nothing
        pass
    with locked(file, purpose="It waits"):
        pass
    [line] = waited
    process = f"process {os.getpid()} on {socket.gethostname()} (retrain train vit)"
    assert line.startswith(f"It waits: {process} has it since 20")
