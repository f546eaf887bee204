"""A run takes the newest commit where nothing can be lost; with real repositories of git."""

import subprocess
import sys
from uuid import uuid4

import pytest

from retrain.errors import UsageError
from retrain.project import Project
from retrain.servers.newest import is_for_newest, take_newest
from retrain.store import Store

# A run that is killed.
KILLED = """
import os, sys
from pathlib import Path
from retrain.holds import Runs
with Runs(Path(sys.argv[1])).holding("killed"):
    os._exit(9)
"""
WHO = ("-c", "user.name=t", "-c", "user.email=t@localhost")


def git(folder, *arguments):
    done = subprocess.run(["git", *WHO, *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def commit(folder, name, text="text"):
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    git(folder, "add", name)
    git(folder, "commit", "-qm", name)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def team(tmp_path):
    """The repository of a team."""
    folder = tmp_path / "team"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    commit(folder, "params.yaml", "workloads: {}\n")
    commit(folder, "ledger/vit.json", "{}")
    return folder


@pytest.fixture
def project(team, tmp_path, monkeypatch):
    """The clone of it that a worker stands in."""
    monkeypatch.delenv("RETRAIN_STORE", raising=False)
    git(tmp_path, "clone", "-q", "team", "clone")
    git(tmp_path / "clone", "config", "user.name", "t")
    return Project(tmp_path / "clone")


def head(project):
    return git(project.root, "rev-parse", "HEAD")


def test_the_commits_of_the_branch_are_taken_forward(team, project):
    assert take_newest(project) is None  # nothing is newer
    before, new = head(project), commit(team, "data.dvc")
    (project.root / "ledger" / "vit.json").write_text("a decision")  # what runs themselves write
    assert take_newest(project) == f"1 commit of origin/main taken: {before[:8]} to {new[:8]}."
    assert head(project) == new
    assert (project.root / "ledger" / "vit.json").read_text() == "a decision"
    commit(team, "a.py")
    newest = commit(team, "requirements.lock")
    assert take_newest(project) == (
        f"2 commits of origin/main taken: {new[:8]} to {newest[:8]}. requirements.lock is another "
        "one, and the packages are as before: make setup."
    )


def test_local_changes_and_commits_stay_as_they_are(team, project):
    before = head(project)
    commit(team, "data.dvc", "theirs")
    stays = "1 commit of origin/main not taken, and the run takes what is here:"
    (project.root / "mine.py").write_text("mine")
    assert take_newest(project) == f"{stays} mine.py differs from the commit."
    (project.root / "mine.py").unlink()
    (project.root / "params.yaml").write_text("mine")
    assert take_newest(project) == f"{stays} params.yaml differs from the commit."
    git(project.root, "checkout", "-q", "params.yaml")
    (project.root / "data.dvc").write_text("not under git yet")
    assert take_newest(project).startswith(f"{stays} git merge --quiet --ff-only origin/main: ")
    assert (project.root / "data.dvc").read_text() == "not under git yet"
    (project.root / "data.dvc").unlink()
    assert head(project) == before
    own = commit(project.root, "own")
    assert take_newest(project) == (
        f"{stays} the clone has commits of its own. Bring them together: git pull."
    )
    assert head(project) == own


def test_while_another_run_goes_on_its_code_does_not_change(team, project):
    new = commit(team, "a.py")
    with Store(project.store).runs.holding("other"):
        assert take_newest(project).endswith(
            "here: another run goes on, whose code must not change."
        )
    folder = str(Store(project.store).runs.folder)
    subprocess.run([sys.executable, "-c", KILLED, folder])
    assert Store(project.store).runs.killed() == {"killed"}
    assert take_newest(project).startswith("1 commit of origin/main taken")
    assert head(project) == new


def test_a_network_that_is_away_is_told_and_a_clone_without_upstream_has_nothing_newer(
    team, project
):
    before = head(project)
    commit(team, "a.py")
    git(project.root, "checkout", "-q", "--detach")
    assert take_newest(project) is None
    git(project.root, "checkout", "-q", "main")
    team.rename(team.with_name("away"))
    assert take_newest(project) == (
        "origin/main could not be fetched, so the run takes the commit that is here; git fetch "
        "says why."
    )
    assert head(project) == before


@pytest.mark.parametrize(
    ("run", "is_taken"),
    [
        ({"auto_scheduled": True}, True),
        ({"created_by": {"type": "AUTOMATION"}}, True),  # by an event, such as a drift
        ({}, False),  # by hand
        ({"tags": ["newest"]}, True),
        ({"auto_scheduled": True, "run_count": 1}, False),  # it was suspended, or is tried again
    ],
)
def test_only_a_run_that_nobody_has_started_takes_it_unless_it_is_asked_to(run, is_taken):
    from prefect.client.schemas.objects import FlowRun

    assert is_for_newest(FlowRun(flow_id=uuid4(), **run)) is is_taken


def test_it_can_be_switched_off(project):
    assert project.schedule.newest
    (project.root / "params.yaml").write_text("schedule:\n  newest: false\n")
    assert not project.schedule.newest
    (project.root / "params.yaml").write_text("schedule:\n  newset: false\n")
    with pytest.raises(UsageError, match=r"^params\.yaml: schedule\.newset: "):
        _ = project.schedule
