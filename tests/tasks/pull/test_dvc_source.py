"""Data under DVC, with real repositories, remotes and caches."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import PurePath

import pytest

from retrain.errors import UsageError
from retrain.project import Project
from retrain.runs.task import is_transient
from retrain.workload import Data, Model, Workload
from tasks.pull.dvc_source import DvcSource
from tasks.pull.step import data_version, pull
from tests.tasks.pull.pulling import (
    dvc,
    failing_write,
    git,
    make_files,
    pulled,
    read_files,
)

REMOTE = ".dvc/remote/files/md5"
CACHE = ".dvc/cache/files/md5"
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


@pytest.fixture
def project(template, tmp_path):
    """A fresh clone: nothing in DVC's cache, and no `data/`."""
    root = tmp_path / "clone"
    shutil.copytree(template, root)
    shutil.rmtree(root / "data")
    shutil.rmtree(root / ".dvc" / "cache")
    return Project(root)


@pytest.fixture(autouse=True)
def site_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(tmp_path / "site"))


def commit(root, tag):
    dvc(root, "add", "-q", "data")
    dvc(root, "push", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", tag)
    git(root, "tag", tag)


def objects(root, below):
    """The objects of DVC in a remote or a cache."""
    return list((root / below).glob("*/*"))


def object_of(project, content, below=REMOTE):
    """The file in a remote or a cache that holds some content."""
    [path] = [path for path in objects(project.root, below) if path.read_text() == content]
    return path


def configure(project, pattern, replacement):
    """Replaces a part of DVC's configuration, in which a line names the default remote."""
    file = project.root / ".dvc" / "config"
    file.write_text(re.sub(pattern, replacement, file.read_text()))


def overwrite(path, content):
    path.chmod(0o644)
    path.write_text(content)


def test_what_is_wanted_of_the_pinned_version_is_fetched_from_the_remote(project):
    _, files, _ = pulled(project, "data/digits/cat", format="folders")
    assert files == {"1.png": "digits/cat/1.png"}
    fetched = {path.read_text() for path in objects(project.root, CACHE)}
    assert not fetched & {"digits/dog/1.png", "other/a.png"}
    version, files, facts = pulled(project, "data/digits")
    assert (files, facts, version.tracked) == (NEW, {"format": "folders"}, True)
    assert version.pin in (project.root / "data.dvc").read_text()
    shutil.rmtree(project.root / ".dvc" / "remote")
    assert pulled(project, "data/digits") == (version, files, facts)


def test_all_of_it_or_a_single_file_can_be_named(project):
    all_of_it = {f"digits/{name}": text for name, text in NEW.items()}
    all_of_it["other/a.png"] = "other/a.png"
    version, files, _ = pulled(project, "data")
    assert (files, version.digest) == (all_of_it, version.pin)
    single = project.root / "data" / "other" / "a.png"
    assert pulled(project, single, format="folders")[1] == {"a.png": "other/a.png"}


def warnings(project):
    """What is told before a run on the data."""
    workload = Workload(name="toy", data=Data(path="data/digits"), model=Model(family="vit"))
    return [*pull.notices(workload, project, data_version(workload.data, project))]


def test_data_that_nobody_else_can_know_of_is_told(project):
    shutil.copytree(project.root / ".dvc" / "remote", project.root / ".dvc" / "cache")
    assert warnings(project) == []
    make_files(project.root / "data", "digits/cat/2.png")
    dvc(project.root, "add", "-q", "data")
    [uncommitted] = warnings(project)
    assert uncommitted.startswith("data.dvc is not committed, so nobody else knows of this version")
    git(project.root, "commit", "-qam", "more")
    assert warnings(project) == []


def test_a_repository_that_git_refuses_stops_no_run(project, monkeypatch):
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    assert project.git_fault()  # which is told before a run, whatever its data
    assert DvcSource(project, PurePath("digits"), None).uncommitted() is None


def test_the_working_trees_data_is_neither_read_nor_changed(project):
    make_files(project.root / "data", "digits/cat/mine.png")
    overwrite(project.root / "data" / "digits" / "cat" / "mine.png", "not added to DVC yet")
    before = read_files(project.root / "data")
    _, files, _ = pulled(project, "data/digits")
    assert files == NEW
    assert read_files(project.root / "data") == before
    assert git(project.root, "status", "--porcelain") == ""


def test_a_remote_that_is_gone_is_named_and_tried_again(project):
    remote = project.root / ".dvc" / "remote"
    remote.rename(project.root / "away")
    with pytest.raises(ConnectionError, match=r"DVC remote 'here' \(.*/\.dvc/remote\)") as error:
        pulled(project, "data/digits")
    assert is_transient(error.value)
    (project.root / "away").rename(remote)
    assert pulled(project, "data/digits")[1] == NEW


@pytest.mark.parametrize("below", [REMOTE, CACHE])
def test_a_damaged_file_is_not_taken_and_mended_from_the_remote(project, below):
    if below == CACHE:
        pulled(project, "data/digits")
    path = object_of(project, "digits/dog/2.png", below)
    overwrite(path, "digits/dog/X.png")
    with pytest.raises(OSError, match=r"1 of 3 files is damaged.*another try fetches it") as error:
        pulled(project, "data/digits")
    assert is_transient(error.value)
    if below == REMOTE:
        overwrite(path, "digits/dog/2.png")
    assert pulled(project, "data/digits")[1] == NEW


def test_a_path_that_the_version_has_not_is_answered_with_what_it_has(project):
    with pytest.raises(UsageError, match=r"has no digts, but digits, other\. .*dvc add data"):
        pulled(project, "data/digts")


def test_another_version_is_that_of_a_git_revision_that_has_data(project):
    git(project.root, "rm", "-q", "data.dvc")
    git(project.root, "commit", "-qm", "none")
    for revision in ("nowhere", "HEAD"):
        with pytest.raises(UsageError, match=rf"no data\.dvc in the git revision '{revision}'"):
            pulled(project, "data/digits", revision=revision)
    old, files, _ = pulled(project, "data/digits", revision="old")
    assert (files, old.revision) == (OLD, "old")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (None, r"no data\.dvc in this clone .* git checkout -- data\.dvc brings it back"),
        ("<<<<<<< HEAD\nouts:", "marks of a merge .* git checkout --ours .*--theirs.* dvc pull"),
        (f"outs:\n<<<<<<< HEAD\n- md5: {'1' * 32}.dir\n", "marks of a merge"),
        ("outs: 3", r"does not pin the folder data/ by an MD5.*dvc pull data\.dvc, dvc remove"),
        ("outs:\n- path: data\n  md5: ../out.dir", "does not pin the folder data/ by an MD5"),
        (
            f"outs:\n- path: data/a\n  md5: {'0' * 32}.dir",
            "does not pin the folder data/ by an MD5",
        ),
        (
            f"outs:\n- md5: {'0' * 32}.dir\n  path: data",
            "data.dvc is of DVC 2, .*dvc cache migrate --dvc-files",
        ),
    ],
)
def test_a_pin_that_is_missing_or_broken_is_an_error(project, text, fault):
    pin = project.root / "data.dvc"
    pin.write_text(text) if text else pin.unlink()
    with pytest.raises(UsageError, match=fault):
        pulled(project, "data/digits")


def test_without_a_remote_dvc_says_how_to_add_one(project):
    configure(project, " remote = here", "")
    with pytest.raises(UsageError, match="dvc remote add"):
        pulled(project, "data/digits")


@pytest.fixture
def working(template, tmp_path):
    """A clone whose `data/` and cache are there."""
    shutil.copytree(template, tmp_path / "working")
    return Project(tmp_path / "working")


@pytest.mark.parametrize("path", ["data/digits", "data"])
@pytest.mark.parametrize(
    "change",
    [
        lambda data: make_files(data, "digits/cat/2.png"),
        lambda data: (data / "digits/dog/2.png").unlink(),
        lambda data: (data / "digits/dog/2.png").rename(data / "digits/cat/2.png"),
        lambda data: overwrite(data / "other/a.png", "longer than it was"),
        lambda data: (data / "digits/dog/3.png").symlink_to("nowhere"),
    ],
    ids=["added", "deleted", "moved", "overwritten", "link"],
)
def test_data_that_was_changed_without_dvc_add_is_said(working, change, path):
    def warning():
        return data_version(Data(path=path), working).warning

    assert warning() is None
    change(working.root / "data")
    assert "dvc add data" in warning()
    shutil.rmtree(working.root / "data")
    assert warning() is None


def test_what_others_have_in_data_is_not_dropped_by_what_is_advised(working):
    def warning():
        return data_version(Data(path="data/digits"), working).warning

    data = working.root / "data"
    shutil.rmtree(data / "other")
    assert warning() is None
    make_files(data, "digits/cat/2.png")
    assert warning().endswith("data.dvc: dvc add data/digits to use what is there.")
    dvc(working.root, "add", "-q", "data/digits")
    assert warning() is None
    everything = {**NEW, "cat/2.png": "digits/cat/2.png"}
    assert pulled(working, "data/digits")[1] == everything
    assert pulled(working, "data/other", format="folders")[1] == {"a.png": "other/a.png"}
    (data / "digits/dog/2.png").unlink()
    assert "1 files are not there, such as dog/2.png. dvc pull data.dvc brings" in warning()
    assert warning().endswith("dvc add data/digits drops them for everybody.")
    shutil.rmtree(data / "digits")  # it was never here, or another workload's alone is
    assert warning() is None


def test_data_that_is_imported_is_fetched_by_dvc(working, tmp_path):
    root = tmp_path / "importing"
    root.mkdir()
    git(root, "init", "-q")
    dvc(root, "init", "-q")
    dvc(root, "import", "-q", str(working.root), "data")
    importing = Project(root)
    assert pulled(importing, "data/digits")[1] == NEW
    shutil.rmtree(root / ".dvc/cache")
    with pytest.raises(UsageError, match=r"made by dvc import, .*: dvc fetch data\.dvc$"):
        pulled(importing, "data/digits")
    dvc(root, "fetch", "data.dvc")
    assert pulled(importing, "data/digits")[1] == NEW


def test_data_without_a_pin_comes_under_dvc(working):
    git(working.root, "rm", "-q", "data.dvc")
    with pytest.raises(UsageError, match=r"Put it under DVC \(dvc add data\), or set data\.path"):
        pulled(working, "data/digits")


def test_the_images_of_another_workload_change_nothing(working):
    before = data_version(Data(path="data/digits"), working)
    make_files(working.root / "data", "other/b.png")
    assert data_version(Data(path="data/digits"), working) == before
    dvc(working.root, "add", "-q", "data")
    after = data_version(Data(path="data/digits"), working)
    assert (after.digest, after.warning) == (before.digest, None)
    assert after.pin != before.pin
    assert data_version(Data(path="data/other"), working).digest != before.digest


@pytest.mark.parametrize("name", ["config", "config.local"])
def test_a_cache_in_another_place_is_found(working, tmp_path, name):
    (working.root / ".dvc" / "cache").rename(tmp_path / "shared")
    before = data_version(Data(path="data/digits"), working).digest  # from the remote
    shutil.rmtree(working.root / ".dvc" / "cache")
    with (working.root / ".dvc" / name).open("a") as file:
        file.write("[cache]\n    dir = ../../shared\n")
    shutil.rmtree(working.root / ".dvc" / "remote")
    assert data_version(Data(path="data/digits"), working).digest == before


def test_a_lock_that_dvc_push_holds_meanwhile_does_no_harm(project):
    program = (
        "import sys, zc.lockfile; lock = zc.lockfile.LockFile('.dvc/tmp/lock');"
        "print('held', flush=True); sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], cwd=project.root, **pipes) as holder:
        assert holder.stdout.readline() == b"held\n"
        done = subprocess.run(
            [sys.executable, "-m", "dvc", "fetch"], cwd=project.root, capture_output=True, text=True
        )
        assert "Unable to acquire lock" in done.stderr
        assert pulled(project, "data/digits")[1] == NEW
        holder.stdin.close()


def test_a_cache_that_takes_no_more_is_said_and_has_no_half_of_an_object(project):
    large = object_of(project, "digits/dog/1.png")
    before = large.read_bytes()
    overwrite(large, "x" * 2_000_000)
    assert failing_write(project, "data/digits").startswith("[Errno 27] File too large")
    whole = [path for path in objects(project.root, CACHE) if not path.name.startswith(".")]
    assert max(path.stat().st_size for path in whole) < 1000
    large.write_bytes(before)
    assert pulled(project, "data/digits")[1] == NEW


def test_a_version_that_changes_during_the_run_is_an_error(project):
    source = DvcSource(project, PurePath("digits"), None)
    digest = source.digest()
    git(project.root, "checkout", "-q", "old", "data.dvc")
    with pytest.raises(ValueError, match="has changed since the run started"):
        DvcSource(project, PurePath("digits"), None).fetch(digest, project.root, project.root)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"relpath": "digits/../../../out.png"}, "leads out of its folder"),
        ({"relpath": "digits//out.png"}, "leads out of its folder"),
        ({"md5": "aa/../../../../../data.dvc"}, "listing of data/ is damaged"),
    ],
)
def test_a_listing_that_leads_elsewhere_is_refused(project, tmp_path, entry, said):
    old = data_version(Data(path="data/digits"), project).pin
    listing = project.root / REMOTE / old[:2] / old[2:]
    entries = json.loads(listing.read_text())
    written = json.dumps([*entries, entries[0] | entry])
    new = f"{hashlib.md5(written.encode()).hexdigest()}.dir"
    (project.root / REMOTE / new[:2]).mkdir(exist_ok=True)
    (project.root / REMOTE / new[:2] / new[2:]).write_text(written)
    overwrite(project.root / "data.dvc", (project.root / "data.dvc").read_text().replace(old, new))
    with pytest.raises(ValueError, match=said) as error:
        pulled(project, "data/digits")
    assert "\n" not in str(error.value)
    assert (project.root / "data.dvc").exists()
    assert not list(tmp_path.rglob("out.png"))


def test_an_unpacked_archive_without_git_has_its_data(project):
    shutil.rmtree(project.root / ".git")
    assert pulled(project, "data/digits")[1] == NEW
