"""Copies of a commit beside the clone, which do not stay, however their process ends."""

import signal
import subprocess
import sys

import pytest

from retrain.project import Project
from retrain.worktree import checked_out

KILLED = """
import os, signal, sys
from pathlib import Path
from retrain.project import Project
from retrain.worktree import checked_out

with checked_out(Project(Path(sys.argv[1])), "HEAD") as copy:
    print(copy.root, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def project(tmp_path):
    """A project in a folder of a repository, with two commits."""
    project = Project(tmp_path / "project")
    project.root.mkdir()
    project.git("init", "-q", "..")
    (tmp_path / ".gitignore").write_text(".retrain\n")
    for text in ("first", "second"):
        (project.root / "params.yaml").write_text(text)
        project.git("add", "-A", "..")
        project.git("-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", text)
    return project


def left(project: Project) -> list[object]:
    """What is left of copies: folders, and what git knows."""
    known = project.git("worktree", "list").splitlines()[1:]
    return [*(project.state / "worktrees").iterdir(), *known]


def test_a_commit_is_there_in_the_block_and_gone_after_it(project):
    hook = project.root.parent / ".git" / "hooks" / "post-checkout"
    hook.write_text("#!/bin/sh\necho hook > hooked\n")
    hook.chmod(0o755)
    (project.root / "params.yaml").write_text("not committed")
    with checked_out(project, "HEAD~1") as copy:
        assert copy.params.read_text() == "first"
        assert copy.root != project.root
        (copy.root / "new").write_text("left over")
        (copy.root / "params.yaml").write_text("changed")
    assert left(project) == []
    assert not list(project.root.parent.rglob("hooked"))
    assert project.params.read_text() == "not committed"


def test_what_a_killed_process_left_goes_with_the_next(project):
    command = [sys.executable, "-c", KILLED, str(project.root)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL
    assert len(left(project)) == 2
    with checked_out(project, "HEAD") as copy:
        assert str(copy.root) != done.stdout.strip()
    assert left(project) == []


def test_a_commit_that_is_not_here_is_named(project):
    missing = "c0ffee" * 6 + "c0ff"
    with pytest.raises(ValueError, match=f"Commit {missing} is not in this clone. Fetch it"):
        checked_out(project, missing).__enter__()
    assert left(project) == []
