"""Data under DVC, with real repositories, remotes and caches."""

import hashlib
import json
import os
import shutil
from pathlib import PurePath

import pytest
from dvc.repo import Repo

from retrain.errors import UsageError
from retrain.project import Project
from retrain.runs.task import is_transient
from retrain.workload import Data, Model, Workload
from tasks.pull.dvc_source import DvcSource
from tasks.pull.step import data_version, pull
from tests.tasks.pull.pulling import dvc, git, make_files, pulled, read_files

REMOTE = ".dvc/remote/files/md5"
CACHE = ".dvc/cache/files/md5"
DIGITS = Data(path="data/digits")
OLD = {"cat/1.png": "digits/cat/1.png", "dog/1.png": "digits/dog/1.png"}
NEW = {**OLD, "dog/2.png": "digits/dog/2.png"}


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A project with two versions of its data, the first with the tag `old`, all of it pushed."""
    root = tmp_path_factory.mktemp("template")
    git(root, "init", "-q")
    dvc(root, "init", "-q")
    remote = "[core]\n    remote = here\n['remote \"here\"']\n    url = remote\n"
    (root / ".dvc" / "config").write_text(remote)
    make_files(root / "data", "digits/cat/1.png", "digits/dog/1.png", "other/a.png")
    commit(root, "old")
    make_files(root / "data", "digits/dog/2.png")
    commit(root, "new")
    return root


def commit(root, tag):
    dvc(root, "add", "-q", "data")
    dvc(root, "push", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", tag)
    git(root, "tag", tag)


@pytest.fixture
def working(template, tmp_path, monkeypatch):
    """A clone whose `data/` and cache are there."""
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(tmp_path / "site"))
    shutil.copytree(template, tmp_path / "clone")
    return Project(tmp_path / "clone")


@pytest.fixture
def project(working):
    """A fresh clone: nothing in DVC's cache, and no `data/`."""
    shutil.rmtree(working.root / "data")
    shutil.rmtree(working.root / ".dvc" / "cache")
    return working


def objects(project, below):
    """The files of DVC in a remote or a cache, by their content."""
    return {path.read_text(): path for path in (project.root / below).glob("*/*")}


def overwrite(path, content):
    path.chmod(0o644)
    path.write_text(content)


def warning(project, path="data/digits"):
    return data_version(Data(path=path), project).warning


def test_what_is_wanted_of_the_pinned_version_is_fetched_from_the_remote(project):
    _, files, _ = pulled(project, "data/digits/cat", format="folders")
    assert files == {"1.png": "digits/cat/1.png"}
    assert not objects(project, CACHE).keys() & {"digits/dog/1.png", "other/a.png"}
    version, files, facts = pulled(project, "data/digits")
    assert (files, facts, version.tracked) == (NEW, {"format": "folders"}, True)
    assert version.pin in (project.root / "data.dvc").read_text()
    shutil.rmtree(project.root / ".dvc" / "remote")
    assert pulled(project, "data/digits") == (version, files, facts)


def test_all_of_it_or_a_single_file_can_be_named(project):
    version, files, _ = pulled(project, "data")
    assert files == {f"digits/{name}": text for name, text in NEW.items()} | {
        "other/a.png": "other/a.png"
    }
    assert version.digest == version.pin
    single = project.root / "data" / "other" / "a.png"
    assert pulled(project, single, format="folders")[1] == {"a.png": "other/a.png"}


def test_data_that_nobody_else_can_know_of_is_told(working, monkeypatch):
    workload = Workload(name="toy", data=DIGITS, model=Model(family="vit"))
    version, pin = data_version(DIGITS, working), working.root / "data.dvc"
    assert [*pull.notices(workload, working, version)] == []
    pin.write_text(f"{pin.read_text()}\n")
    [uncommitted] = pull.notices(workload, working, version)
    assert uncommitted.startswith("data.dvc is not committed, so nobody else knows of this version")
    assert not DvcSource(working, PurePath("digits"), "HEAD").uncommitted()
    # A repository that git refuses, which is told before a run, stops none.
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    assert DvcSource(Project(working.root), PurePath("digits"), None).uncommitted() is None


def test_the_working_trees_data_is_neither_read_nor_changed(project):
    make_files(project.root / "data", "digits/cat/mine.png", "digits/dog/1.png")
    overwrite(project.root / "data" / "digits" / "dog" / "1.png", "not added to DVC yet")
    before = read_files(project.root / "data")
    assert pulled(project, "data/digits")[1] == NEW
    assert read_files(project.root / "data") == before
    assert git(project.root, "status", "--porcelain") == ""


def test_a_remote_that_is_gone_is_named_and_tried_again(project):
    (project.root / ".dvc" / "remote").rename(project.root / "away")
    with pytest.raises(ConnectionError, match=r"DVC remote 'here' \(.*/\.dvc/remote\)") as error:
        pulled(project, "data/digits")
    assert is_transient(error.value)


@pytest.mark.parametrize("below", [REMOTE, CACHE])
def test_a_damaged_file_is_not_taken_and_mended_from_the_remote(project, below):
    if below == CACHE:
        pulled(project, "data/digits")
    path = objects(project, below)["digits/dog/2.png"]
    overwrite(path, "digits/dog/X.png")
    with pytest.raises(OSError, match=r"1 of 3 files is damaged.*another try fetches it") as error:
        pulled(project, "data/digits")
    assert is_transient(error.value)
    if below == REMOTE:
        overwrite(path, "digits/dog/2.png")
    assert pulled(project, "data/digits")[1] == NEW


def test_another_version_is_that_of_a_git_revision_that_has_data(project):
    git(project.root, "rm", "-q", "data.dvc")
    git(project.root, "commit", "-qm", "none")
    for revision in ("nowhere", "HEAD"):
        with pytest.raises(UsageError, match=rf"no data\.dvc in the git revision '{revision}'"):
            pulled(project, "data/digits", revision=revision)
    with pytest.raises(UsageError, match=r"Put it under DVC \(dvc add data\), or set data\.path"):
        pulled(project, "data/digits")
    old, files, _ = pulled(project, "data/digits", revision="old")
    assert (files, old.revision) == (OLD, "old")


PIN = f"outs:\n- path: data\n  hash: md5\n  md5: {'1' * 32}.dir"
NO_FOLDER = "does not pin the folder data/ by an MD5.*dvc pull data\\.dvc, dvc remove"


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("data.dvc", None, r"no data\.dvc in this clone .* git checkout -- data\.dvc brings it"),
        ("data.dvc", "<<<<<<< HEAD\nouts:", "marks of a merge .*--ours .*--theirs.* dvc pull"),
        ("data.dvc", f"outs:\n<<<<<<< HEAD\n- md5: {'1' * 32}.dir\n", "marks of a merge"),
        ("data.dvc", "outs: 3", NO_FOLDER),
        ("data.dvc", PIN.replace("1" * 32, "../out"), NO_FOLDER),
        ("data.dvc", PIN.replace("path: data", "path: data/a"), NO_FOLDER),
        (
            "data.dvc",
            PIN.replace("hash: md5", "size: 1"),
            "is of DVC 2, .*dvc cache migrate --dvc-",
        ),
        (
            "data.dvc",
            f"deps:\n- path: data\n{PIN}",
            r"made by dvc import, .*: dvc fetch data\.dvc$",
        ),
        (".dvc/config", "", "DVC has no default remote: dvc remote add -d NAME URL"),
    ],
)
def test_a_pin_that_is_broken_or_leads_to_nothing_is_an_error(project, name, text, fault):
    (project.root / name).unlink()
    if text is not None:
        (project.root / name).write_text(text)
    with pytest.raises(UsageError, match=fault):
        pulled(project, "data/digits")


def test_a_path_that_the_version_has_not_is_answered_with_what_it_has(working):
    with pytest.raises(UsageError, match=r"has no digts, but digits, other\. .*dvc add data"):
        pulled(working, "data/digts")


@pytest.mark.parametrize(
    ("change", "advice"),
    [
        (lambda data: make_files(data, "digits/cat/2.png"), "data to"),
        (lambda data: (data / "digits/dog/2.png").unlink(), "data/digits drops"),
        (
            lambda data: (data / "digits/dog/2.png").rename(data / "digits/cat/2.png"),
            "data/digits drops",
        ),
        (lambda data: overwrite(data / "other/a.png", "longer than it was"), "data to"),
        (lambda data: (data / "digits/dog/3.png").symlink_to("nowhere"), "data/digits"),
    ],
    ids=["added", "deleted", "moved", "overwritten", "link"],
)
def test_data_that_was_changed_without_dvc_add_is_said(working, change, advice):
    assert warning(working) is warning(working, "data") is None
    change(working.root / "data")
    assert f"dvc add {advice}" in warning(working)
    assert "dvc add data" in warning(working, "data")
    assert DvcSource(working, PurePath("digits"), "HEAD").warning() is None
    shutil.rmtree(working.root / "data")
    assert warning(working) is None


def test_what_others_have_in_data_is_not_dropped_by_what_is_advised(working):
    data, before = working.root / "data", data_version(Data(path="data/other"), working)
    shutil.rmtree(data / "other")
    assert warning(working) is None
    make_files(data, "digits/cat/2.png")
    assert warning(working).endswith("data.dvc: dvc add data/digits to use what is there.")
    dvc(working.root, "add", "-q", "data/digits")
    assert pulled(working, "data/digits")[1] == {**NEW, "cat/2.png": "digits/cat/2.png"}
    other = data_version(Data(path="data/other"), working)
    assert (other.digest, other.warning) == (before.digest, None)  # its images are the same
    assert other.pin != before.pin
    (data / "digits/dog/2.png").unlink()
    said = warning(working)
    assert "1 files are not there, such as dog/2.png. dvc pull data.dvc brings them" in said
    assert said.endswith("dvc add data/digits drops them for everybody.")
    shutil.rmtree(data / "digits")  # it was never here, or another workload's alone is
    assert warning(working) is None


def test_a_cache_in_another_place_is_found(working, tmp_path):
    before = data_version(DIGITS, working).digest
    (working.root / ".dvc" / "cache").rename(tmp_path / "shared")
    (working.root / ".dvc" / "config.local").write_text("[cache]\n    dir = ../../shared\n")
    shutil.rmtree(working.root / ".dvc" / "remote")
    assert data_version(DIGITS, working).digest == before


def test_a_lock_that_dvc_push_holds_meanwhile_does_no_harm(project):
    with Repo(str(project.root)).lock:
        assert pulled(project, "data/digits")[1] == NEW


def test_a_version_that_changes_during_the_run_is_an_error(working):
    digest = DvcSource(working, PurePath("digits"), None).digest()
    git(working.root, "checkout", "-q", "old", "data.dvc")
    with pytest.raises(ValueError, match="has changed since the run started"):
        DvcSource(working, PurePath("digits"), None).fetch(digest, working.root, working.root)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"relpath": "digits/../../../out.png"}, "leads out of its folder"),
        ({"relpath": "digits//out.png"}, "leads out of its folder"),
        ({"md5": "aa/../../../../../data.dvc"}, "listing of data/ is damaged"),
    ],
)
def test_a_listing_that_leads_elsewhere_is_refused(working, entry, said):
    pin, old = working.root / "data.dvc", data_version(DIGITS, working).pin
    entries = json.loads((working.root / CACHE / old[:2] / old[2:]).read_text())
    written = json.dumps([*entries, entries[0] | entry])
    new = f"{hashlib.md5(written.encode()).hexdigest()}.dir"
    (working.root / CACHE / new[:2]).mkdir(exist_ok=True)
    (working.root / CACHE / new[:2] / new[2:]).write_text(written)
    overwrite(pin, pin.read_text().replace(old, new))
    with pytest.raises(ValueError, match=said):
        pulled(working, "data/digits")
    assert pin.exists()


def test_an_unpacked_archive_without_git_has_its_data(project):
    shutil.rmtree(project.root / ".git")
    assert pulled(project, "data/digits")[1] == NEW
