"""The checks of `retrain doctor`, on a real project with what may be wrong there."""

import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from time import monotonic

import pytest

from retrain.cli.main import main
from retrain.errors import UsageError
from retrain.messages import message_of
from retrain.project import Project
from retrain.runs import preflight
from tests.flows.conftest import free_port

ROOT = Path(__file__).parents[3]


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A project with a remote of DVC, where nothing is wrong."""
    for name in ("params.yaml", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path)
    project = Project(tmp_path)
    (tmp_path / ".dvc" / "remote").mkdir(parents=True)
    configure(project, "remote")
    for name in ("RETRAIN_STORE", "MLFLOW_TRACKING_URI", "RAY_ADDRESS", "PREFECT_API_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return project


def configure(project, url):
    text = f"[core]\n    remote = r\n['remote \"r\"']\n    url = {url}\n"
    (project.root / ".dvc" / "config").write_text(text)


def findings(capsys, code):
    assert main(["doctor", "--json"]) == code
    listed = json.loads(capsys.readouterr().out)
    return {one["check"]: (one["state"], one["says"]) for one in listed}


def test_a_machine_that_has_everything_has_only_ticks(clone, capsys):
    found = findings(capsys, 0)
    assert {state for state, _ in found.values()} == {"ok"}, found
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(found)
    assert all(line.startswith("\N{CHECK MARK} ") for line in lines)


def test_a_package_that_is_missing_or_another_is_named(clone, capsys):
    lock = clone.root / "requirements.lock"
    lock.write_text(
        lock.read_text(encoding="utf-8") + "no-such-package==1.0 \\\n", encoding="utf-8"
    )
    state, says = findings(capsys, 1)["packages"]
    assert state == "fault"
    assert says.endswith("; touch requirements-dev.lock && make setup")
    assert "no-such-package is missing" in says
    lock.write_text("rich==0.1\nno-such-package==1.0 ; python_version < '3'\n", encoding="utf-8")
    state, says = findings(capsys, 0)["packages"]
    assert state == "warning"
    assert f": rich {version('rich')};" in says


def test_a_remote_that_does_not_answer_is_waited_for_some_seconds(clone, capsys):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it takes the call and says nothing
        configure(clone, f"http://127.0.0.1:{silent.getsockname()[1]}/data")
        began = monotonic()
        state, says = findings(capsys, 1)["DVC remote"]
    assert monotonic() - began < 12  # 8 s, and the start of a process on a busy machine
    assert state == "fault"
    assert "timed out" in says or says == "no answer within 8 s: see .dvc/config and the network"


@pytest.mark.parametrize(
    ("url", "state", "says"),
    [
        ("nowhere", "warning", "nothing is at"),
        ("http://127.0.0.1:9/data", "fault", "127.0.0.1"),
        (None, "warning", "there is no default remote"),
    ],
)
def test_a_remote_that_is_wrong_is_said(clone, capsys, url, state, says):
    configure(clone, url)
    if url is None:
        (clone.root / ".dvc" / "config").write_text("")
    found = findings(capsys, int(state == "fault"))["DVC remote"]
    assert found[0] == state
    assert says in found[1]


def test_a_server_that_the_environment_names_and_that_is_down_is_a_fault(
    clone, capsys, monkeypatch
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_port()}")
    state, says = findings(capsys, 1)["servers"]
    assert state == "fault"
    assert says.startswith("MLFLOW_TRACKING_URI: nothing answers at")


@pytest.mark.parametrize("place", ["ray", "/dev/shm"])
def test_a_full_disk_of_rays_files_or_of_locks_is_a_fault(
    clone, capsys, monkeypatch, tmp_path, place
):
    full = tmp_path / place
    full.mkdir(exist_ok=True)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "ray"))
    usage = shutil.disk_usage(full)
    monkeypatch.setattr(
        shutil, "disk_usage", lambda place: usage._replace(free=10) if place == full else usage
    )
    state, says = findings(capsys, 1)["machine"]
    assert (state, says) == ("fault", f"0.0 GB are left in {full}: make room there")
    assert message_of(OSError("it failed")).startswith(f"The disk is full: make room in {full} ")


def test_a_user_without_a_name_is_a_fault_of_doctor_and_of_a_run(clone, capsys, monkeypatch):
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    state, says = findings(capsys, 1)["machine"]
    assert (state, says) == (
        "fault",
        "user 54321 has no name on this machine, which DVC needs: export USER=NAME",
    )
    with pytest.raises(UsageError, match=re.escape(says)):
        preflight.check_surroundings(clone)
    monkeypatch.setenv("USER", "me")
    assert findings(capsys, 0)["machine"][0] == "ok"


def test_a_folder_too_long_for_the_sockets_of_workers_is_told_where_they_train(
    clone, capsys, monkeypatch, tmp_path
):
    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    state, says = findings(capsys, 0)["machine"]
    assert state == "warning"
    fault = "is too long for a socket, which may have 107 bytes: export TMPDIR as a shorter path"
    assert says.startswith(f"scale.workers cannot be used: {long}/ray/session_")
    assert says.endswith(fault)
    preflight.check_surroundings(clone, workers=0)
    with pytest.raises(UsageError, match=fault):
        preflight.check_surroundings(clone, workers=2)
    connect = "from retrain.servers import ray_cluster; ray_cluster.connect()"
    process = subprocess.run(  # this process may have a Ray already
        [sys.executable, "-c", connect], cwd=ROOT, capture_output=True, text=True
    )
    assert process.returncode == 1 and process.stderr.strip().endswith(fault)
    monkeypatch.setenv("RAY_TMPDIR", "/tmp")
    preflight.check_surroundings(clone, workers=2)


def test_a_clone_too_long_for_the_socket_of_its_servers_is_told(
    clone, capsys, monkeypatch, tmp_path
):
    long = tmp_path / ("x" * 60)
    shutil.copytree(clone.root, long, ignore=lambda *_: [long.name])
    monkeypatch.chdir(long)
    state, says = findings(capsys, 0)["servers"]
    assert state == "warning"
    fault = "is too long for a socket, which may have 107 bytes: move the clone to a shorter path"
    assert says.startswith(f"retrain up cannot start them: {long}/.retrain/supervisor.sock.")
    assert says.endswith(fault)
    assert main(["up"]) == 2
    assert fault in " ".join(capsys.readouterr().err.split())


def test_a_database_of_a_newer_version_is_a_fault(clone, capsys):
    with closing(sqlite3.connect(clone.root / "mlflow.db")) as database, database:
        database.execute("CREATE TABLE alembic_version AS SELECT 'ffffffffffff' AS version_num")
    state, says = findings(capsys, 1)["servers"]
    assert state == "fault"
    assert "mlflow.db was made by a newer mlflow" in says
