"""The checks of `retrain doctor`, on a real project with what may be wrong there."""

import json
import re
import shutil
import socket
import sqlite3
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

import pytest

from retrain.cli import maintenance
from retrain.cli.main import main
from retrain.errors import UsageError
from retrain.runs import preflight
from tests.flows.conftest import free_port

ROOT = Path(__file__).parents[3]


@pytest.fixture
def clone(project, tmp_path, monkeypatch):
    """A project with a remote of DVC, where nothing is wrong."""
    for name in ("params.yaml", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".dvc" / "remote").mkdir(parents=True)
    configure(project, "remote")
    for name in ("RAY_ADDRESS", "PREFECT_API_URL"):
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


def test_what_is_wrong_is_said_with_a_remedy(clone, capsys, monkeypatch):
    lock, server = clone.root / "requirements.lock", f"http://127.0.0.1:{free_port()}"
    text = lock.read_text(encoding="utf-8")
    lock.write_text(text + "no-such-package==1.0 \\\n", encoding="utf-8")
    configure(clone, "http://127.0.0.1:9/data")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 54321)
    found = findings(capsys, 1)
    unnamed = "user 54321 has no name on this machine, which DVC needs: export USER=NAME"
    for check, part in {
        "packages": "no-such-package is missing; touch requirements-dev.lock && make setup",
        "DVC remote": "127.0.0.1",
        "servers": f"MLFLOW_TRACKING_URI: nothing answers at {server}",
        "machine": unnamed,
    }.items():
        assert found[check][0] == "fault"
        assert part in found[check][1]
    with pytest.raises(UsageError, match=re.escape(unnamed)):  # a run is refused
        preflight.check_surroundings(clone)


def test_what_may_be_wrong_is_a_warning(clone, capsys):
    lock = clone.root / "requirements.lock"
    lock.write_text("rich==0.1\nno-such-package==1.0 ; python_version < '3'\n", encoding="utf-8")
    configure(clone, "nowhere")
    found = findings(capsys, 0)
    assert f": rich {version('rich')};" in found["packages"][1]
    assert "nothing is at" in found["DVC remote"][1]
    assert found["packages"][0] == found["DVC remote"][0] == "warning"
    (clone.root / ".dvc" / "config").write_text("")
    state, says = findings(capsys, 0)["DVC remote"]
    assert (state, "there is no default remote" in says) == ("warning", True)


def test_a_remote_that_does_not_answer_is_waited_for_some_seconds(clone, capsys, monkeypatch):
    with closing(sqlite3.connect(clone.root / "mlflow.db")) as database, database:
        database.execute("CREATE TABLE alembic_version AS SELECT 'ffffffffffff' AS version_num")
    monkeypatch.setattr(maintenance, "REMOTE_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it takes the call and says nothing
        configure(clone, f"http://127.0.0.1:{silent.getsockname()[1]}/data")
        found = findings(capsys, 1)
    waited = "no answer within 1 s: see .dvc/config and the network"
    assert found["DVC remote"] == ("fault", waited)
    assert found["servers"][0] == "fault"
    assert "mlflow.db was made by a newer mlflow" in found["servers"][1]


LONG = "is too long for a socket, which may have 107 bytes: "


def test_a_folder_too_long_for_sockets_is_told(clone, capsys, monkeypatch, tmp_path):
    long = tmp_path / ("x" * 60)
    shutil.copytree(clone.root, long, ignore=lambda *_: [long.name])
    monkeypatch.setenv("TMPDIR", str(long))
    monkeypatch.chdir(long)
    found, workers = findings(capsys, 0), f"{LONG}export TMPDIR as a shorter path"
    for check, start, end in (
        ("machine", f"scale.workers cannot be used: {long}/ray/session_", workers),
        ("servers", "retrain up cannot start them: ", f"{LONG}move the clone to a shorter path"),
    ):
        state, says = found[check]
        assert state == "warning"
        assert says.startswith(start)
        assert says.endswith(end)
    assert main(["up"]) == 2
    assert LONG in " ".join(capsys.readouterr().err.split())
    preflight.check_surroundings(clone, workers=0)
    with pytest.raises(UsageError, match=workers):
        preflight.check_surroundings(clone, workers=2)
    monkeypatch.setenv("RAY_TMPDIR", "/tmp")
    preflight.check_surroundings(clone, workers=2)
