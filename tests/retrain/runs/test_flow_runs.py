"""The server of a run, its name and its state, who is told, and runs that were killed."""

import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from prefect import Flow

from retrain.project import Project
from retrain.runs import flow_runs
from tests import templates


@pytest.mark.parametrize(("name", "shown"), [("Rejected", "Rejected"), (None, "Completed")])
def test_a_document_is_the_final_state(prefect_session, name, shown):
    document = {"outcome": "It is what it is.", "state": name}
    state = Flow(flow_runs.ending_in_a_state(lambda: document), "toy")(return_state=True)
    assert (state.type.value, state.name) == ("COMPLETED", shown)
    assert (state.message, state.result()) == ("It is what it is.", document)


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ({"workload": "vit", "as_name": None}, "toy-vit"),
        ({"workload": "vit", "as_name": "mine"}, "toy-mine"),
        ({"workload": "vit", "version": "champion"}, "toy-vit-champion"),
    ],
)
def test_a_flow_run_is_named_after_what_it_is_about(monkeypatch, parameters, name):
    monkeypatch.setattr("prefect.runtime.flow_run.parameters", parameters, raising=False)
    assert flow_runs.name_of("toy") == name


ROOT = Path(__file__).parents[3]

RUN = """
import os
import shutil
import urllib.request
from pathlib import Path
from retrain.runs.flow_runs import start_ephemeral_server
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
    templates.place_prefect_database(tmp_path)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        cwd=tmp_path,
        env=kept | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    url, *answers = done.stdout.split()
    assert answers == ["200", "failed", "next"]
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"{url}/health")


def test_a_server_that_ends_at_its_start_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(RuntimeError, match="did not start"):
        flow_runs.start_ephemeral_server(Project(tmp_path), [])
