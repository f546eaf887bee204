"""Folders and files of this machine."""

import os
from pathlib import Path

import pytest

from retrain.errors import UsageError
from tasks.pull import file_sources
from tasks.pull.file_sources import LocalSource
from tests.tasks.pull.pulling import make_files, pulled, version_of


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


def test_only_regular_files_that_are_not_hidden_are_data(project, tmp_path):
    root = tmp_path / "odd"
    make_files(root, "cat/1.png", "dog/1.png", ".git/x", "cat/.DS_Store")
    make_files(tmp_path / "there", "1.png")
    os.mkfifo(root / "cat/pipe.png")
    for link, to in {
        "cat/zero.png": Path("/dev/zero"),
        "dog/pipe.png": root / "cat/pipe.png",
        "dog/up": root,
        "dog/round": root / "dog",
        "dog/1 again.png": root / "dog/1.png",
        "ant": tmp_path / "there",
    }.items():
        (root / link).symlink_to(to)
    version, files, facts = pulled(project, root)
    assert (facts["format"], version.tracked) == ("folders", False)
    assert files["cat/1.png"] == "cat/1.png"
    assert set(files) == {"ant/1.png", "cat/1.png", "dog/1.png", "dog/1 again.png"}


@pytest.mark.parametrize("to", ["nowhere", "1.png"])  # or round in a circle
def test_a_link_to_nothing_is_named(project, tmp_path, to):
    make_files(tmp_path / "odd", "cat/2.png")
    (tmp_path / "odd" / "cat" / "1.png").symlink_to(to)
    with pytest.raises(ValueError, match=rf"^cat/1\.png is a link to {to}, which is not there"):
        pulled(project, tmp_path / "odd")


@pytest.mark.parametrize("name", [b"odd/k\xe4tze/1.png", b"odd/cat/\xff.png"])
def test_a_name_that_is_not_utf_8_is_shown(project, tmp_path, name):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    path.parent.mkdir(parents=True)
    path.touch()
    with pytest.raises(ValueError, match=r"^The name '.*\\udc(e4|ff).*' is not UTF-8"):
        pulled(project, tmp_path / "odd")


def test_a_file_that_goes_while_it_is_read_is_an_error_in_one_sentence(
    project, tmp_path, monkeypatch
):
    def listed(root, **_):
        yield "cat/1.png", 9
        yield "cat/gone.png", 9

    make_files(tmp_path / "pets", "cat/1.png")
    monkeypatch.setattr(file_sources, "list_files", listed)
    with pytest.raises(ValueError, match=r"pets has changed .*cat/gone\.png.*: run it again\.$"):
        pulled(project, tmp_path / "pets")
