"""Projects without git."""

import pytest

from retrain.project import Project


def test_an_unpacked_archive_has_no_commit(tmp_path):
    project = Project(tmp_path)
    assert project.commit() is None
    assert not project.is_in_git()


def test_without_git_there_is_no_commit_and_who_needs_git_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    project = Project(tmp_path)
    assert project.commit() is None
    with pytest.raises(FileNotFoundError, match="git is not installed"):
        project.git("status")
