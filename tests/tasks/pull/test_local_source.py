"""Folders and files of this machine."""

import os
import socket
from pathlib import Path

import pytest

from retrain.errors import UsageError
from retrain.project import Project
from retrain.workload import Data
from tasks.pull.local_source import LocalSource
from tasks.pull.step import data_version, pull
from tests.tasks.pull.pulling import make_files, make_workspace, pulled


@pytest.fixture
def project(tmp_path):
    (tmp_path / "clone").mkdir()
    return Project(tmp_path / "clone")


def version_of(project, path, **data):
    return data_version(Data(path=str(path), **data), project).digest


def test_a_folder_is_copied_without_what_is_hidden(project, tmp_path):
    make_files(tmp_path / "pets", "cat/1.png", "dog/1.png", ".git/x", "cat/.DS_Store")
    version, files, facts = pulled(project, tmp_path / "pets")
    assert files == {"cat/1.png": "cat/1.png", "dog/1.png": "dog/1.png"}
    assert facts == {"format": "folders"}
    assert not version.tracked


def test_a_relative_path_starts_at_the_project_and_a_tilde_at_home(project, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    make_files(tmp_path / "pets", "cat/1.png", "dog/1.png")
    assert pulled(project, "../pets") == pulled(project, "~/pets")


def test_a_folders_version_is_its_names_and_bytes_alone(project, tmp_path):
    make_files(tmp_path / "a", "cat/1.png", "dog/1.png")
    make_files(tmp_path / "b", "dog/1.png", "cat/1.png")
    os.utime(tmp_path / "b" / "dog" / "1.png", (0, 0))
    same = version_of(project, tmp_path / "a")
    assert version_of(project, tmp_path / "b") == same
    (tmp_path / "b" / "dog" / "1.png").write_text("dog/1.pnG")
    assert version_of(project, tmp_path / "b") != same
    (tmp_path / "a" / "dog" / "1.png").rename(tmp_path / "a" / "dog" / "2.png")
    assert version_of(project, tmp_path / "a") != same


def test_a_folder_that_changes_during_the_run_is_an_error(tmp_path):
    make_files(tmp_path / "pets", "cat/1.png")
    place = LocalSource(tmp_path / "pets")
    digest = place.digest()
    make_files(tmp_path / "pets", "cat/2.png")
    with pytest.raises(ValueError, match="has changed since the run started"):
        place.fetch(digest, tmp_path / "target", tmp_path)


def test_a_place_that_is_not_there_or_empty_is_named(project, tmp_path):
    with pytest.raises(UsageError, match="nowhere does not exist"):
        version_of(project, tmp_path / "nowhere")
    (tmp_path / "pipes").mkdir()
    os.mkfifo(tmp_path / "pipes/a.png")
    for path in ("pipes", "pipes/a.png"):
        with pytest.raises(UsageError, match="has no regular file"):
            version_of(project, tmp_path / path)


@pytest.fixture
def odd(tmp_path):
    """A folder with things that are no regular files beside two images."""
    root = tmp_path / "odd"
    make_files(root, "cat/1.png", "dog/1.png")
    os.mkfifo(root / "cat/pipe.png")
    (root / "cat/zero.png").symlink_to("/dev/zero")
    (root / "dog/pipe.png").symlink_to(root / "cat/pipe.png")
    (root / "dog/gone.png").symlink_to(root / "nowhere")
    (root / "dog/up").symlink_to(root)
    (root / "dog/round").symlink_to(root / "dog")
    (root / "dog/1 again.png").symlink_to(root / "dog/1.png")
    make_files(tmp_path / "there", "1.png")
    (root / "ant").symlink_to(tmp_path / "there")
    return root


def test_only_regular_files_are_data(project, odd):
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(odd / "dog/s"))
        _, files, _ = pulled(project, odd)
    assert set(files) == {"ant/1.png", "cat/1.png", "dog/1.png", "dog/1 again.png"}


def bytes_read():
    """What this process has read, from a disk or from memory, so far."""
    return int(Path("/proc/self/io").read_text(encoding="ascii").split()[1])


def test_a_run_reads_its_data_once_before_its_first_step_and_once_to_copy_it(project, tmp_path):
    size = 20_000_000
    make_files(tmp_path / "pets", "cat/1.png", "dog/1.png")
    (tmp_path / "pets/dog/2.png").write_bytes(bytes(size))
    config = Data(path=str(tmp_path / "pets"))
    before = bytes_read()
    # The command's dry run, the flow's own, and the run itself.
    [version] = {data_version(config, project) for _ in range(3)}
    measured = bytes_read()
    pull(config, version, make_workspace(tmp_path / "work", project))
    assert size <= measured - before < 1.1 * size
    assert size <= bytes_read() - measured < 1.1 * size
