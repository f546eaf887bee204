"""The server that a run brings along: it comes up beside other work, and ends with the run."""

import os
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from retrain.project import Project
from retrain.servers import ephemeral
from tests import templates

ROOT = Path(__file__).parents[3]

RUN = """
import os
import shutil
import urllib.request
from pathlib import Path
from retrain.servers.ephemeral import start_ephemeral_server
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
    templates.place_prefect_database(tmp_path, "home/prefect.db")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        cwd=tmp_path,
        env=kept | {"PREFECT_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)},
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
        ephemeral.start_ephemeral_server(Project(tmp_path), [])
