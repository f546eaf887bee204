"""What the tests of several steps share."""

import os
import secrets
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def steps(monkeypatch):
    """The optimizer steps that trainings in this process have taken, by number, as they go."""
    from tasks.train import train

    taken = []
    learning_rate = train.learning_rate

    def recorded(step, *others):
        taken.append(step)
        return learning_rate(step, *others)

    monkeypatch.setattr(train, "learning_rate", recorded)
    return taken


@pytest.fixture
def ending_before(monkeypatch, steps):
    """A block in which a training ends before a step, by Ctrl-C; afterwards `steps` is empty."""
    from tasks.train import train

    @contextmanager
    def ending(end):
        recorded = train.learning_rate

        def failing(step, *others):
            if step == end:
                raise KeyboardInterrupt
            return recorded(step, *others)

        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(train, "learning_rate", failing)
            yield
        steps.clear()

    return ending


@pytest.fixture
def nodes(tmp_path):
    """Two nodes of Ray; gives their address, and what kills the second one."""
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.nodes", str(tmp_path)],
        cwd=ROOT,
        env=kept | token | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    address = process.stdout.readline().strip()

    def kill():
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"

    yield token | {"RAY_ADDRESS": address}, kill
    family = psutil.Process(process.pid).children(recursive=True)
    process.stdin.close()
    process.wait(60)
    for each in psutil.wait_procs(family, 5)[1]:
        each.kill()
