"""The checks of `retrain doctor`, on a real project with what may be wrong there."""

import json
import shutil
import socket
import sqlite3
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from time import monotonic

import pytest

from retrain.cli.main import main
from retrain.project import Project
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


def test_a_full_disk_of_rays_files_is_a_fault(clone, capsys, monkeypatch, tmp_path):
    full = tmp_path / "ray"
    full.mkdir()
    monkeypatch.setenv("RAY_TMPDIR", str(full))
    usage = shutil.disk_usage(full)
    monkeypatch.setattr(
        shutil, "disk_usage", lambda place: usage._replace(free=10) if place == full else usage
    )
    state, says = findings(capsys, 1)["disk"]
    assert (state, says) == ("fault", f"0.0 GB are left in {full}: make room there")


def test_a_database_of_a_newer_version_is_a_fault(clone, capsys):
    with closing(sqlite3.connect(clone.root / "mlflow.db")) as database, database:
        database.execute("CREATE TABLE alembic_version AS SELECT 'ffffffffffff' AS version_num")
    state, says = findings(capsys, 1)["servers"]
    assert state == "fault"
    assert "mlflow.db was made by a newer mlflow" in says
