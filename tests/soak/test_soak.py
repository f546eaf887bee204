"""The soak finds what a run leaves behind; `make soak` runs it."""

import os

import pytest

from tests.soak import __main__ as soak

LEAVES_PROCESSES = """
import os, subprocess, time
if not os.fork():
    time.sleep(1000)
subprocess.Popen(["sleep", "1000"], start_new_session=True)
os._exit(7)
"""


@pytest.mark.slow
def test_processes_that_a_run_leaves_are_found_and_ended(tmp_path, monkeypatch):
    clone = tmp_path / "clone-1"
    (clone / "retrain").mkdir(parents=True)
    (clone / "retrain" / "__init__.py").touch()
    (clone / "retrain" / "cli.py").write_text(LEAVES_PROCESSES)
    environment = dict(os.environ) | {"PYTHONPATH": str(clone)}
    assert soak.start(clone, environment, epochs=1).wait(60) == 7
    assert len(soak.left_over(clone, 0)) == 2
    assert soak.left_over(tmp_path / "clone-10", 0) == []
    soak.end_all(clone)
    assert soak.left_over(clone, 0) == []
