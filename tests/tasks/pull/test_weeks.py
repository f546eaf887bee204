"""The weeks in which images came, by real repositories of git and DVC."""

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retrain.errors import UsageError
from retrain.project import Project
from retrain.store import Artifact
from retrain.workload import Data
from tasks.data import image_table
from tasks.data.slices import FILE
from tasks.pull.step import data_version
from tasks.pull.weeks import find_history, slice_week
from tests.tasks.pull.pulling import dvc, git, make_files, make_workspace

DATA = Data(path="data/photos", format="folders")
CACHE = ".dvc/cache"
FILES = ("cat/1.png", "dog/1.png", "cat/2.png", "dog/2.png", "cat/3.png")


def commit(root: Path, day: str, *names: str) -> None:
    """Adds files to the data, each with its name as its content, and commits that on a day."""
    make_files(root / "data" / "photos", *names)
    dvc(root, "add", "-q", "data")
    git(root, "add", "-A")
    commit_on(root, day)


def commit_on(root: Path, day: str, *command: str) -> None:
    git(root, *(command or ("commit", "-qm", "data")), date=f"{day}T12:00:00+0000")


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """Three weeks of data, of which one has two versions, and one came by a merge."""
    root = tmp_path_factory.mktemp("template")
    git(root, "init", "-q", "-b", "main")
    dvc(root, "init", "-q")
    dvc(root, "remote", "add", "-q", "-d", "here", ".dvc/remote")
    commit(root, "2026-10-05", "cat/1.png")
    commit(root, "2026-10-13", "dog/1.png")
    commit(root, "2026-10-14", "cat/2.png")
    git(root, "checkout", "-qb", "labels")
    commit(root, "2026-10-15", "dog/2.png")
    git(root, "checkout", "-q", "main")
    (root / "notes").write_text("")
    git(root, "add", "notes")
    commit_on(root, "2026-10-16")
    commit_on(root, "2026-10-29", "merge", "-q", "-m", "labels", "labels")
    shutil.copytree(root / CACHE, root / ".dvc" / "remote")  # as if each version had been pushed
    return root


@pytest.fixture
def project(template, tmp_path, monkeypatch):
    """A fresh clone: nothing in DVC's cache, and no `data/`."""
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(tmp_path / "site"))
    root = tmp_path / "clone"
    shutil.copytree(template, root)
    shutil.rmtree(root / "data")
    shutil.rmtree(root / CACHE)
    return Project(root)


def weeks(project: Project, folder: Path, files=FILES) -> list[str]:
    """The week of each of some test images."""
    (folder / "validate").mkdir(parents=True)
    rows = [{"unit": 0, "split": "test", "file": file, "sha256": file} for file in files]
    table = pa.Table.from_pylist(rows, image_table.schema())
    pq.write_table(table, folder / "validate" / image_table.FILE_NAME)
    validated = Artifact("validate", "k", "d", folder / "validate", {})
    history = find_history(DATA, project, data_version(DATA, project))
    workspace = make_workspace(folder, project)
    assert slice_week(DATA, history, validated, workspace) == {"limits": {}}
    written = pq.read_table(workspace.folder / FILE)
    assert written["sha256"].to_pylist() == list(files)
    return written["week"].to_pylist()


def test_an_image_has_the_week_of_the_first_version_with_its_content(project, tmp_path):
    committed = ["2026-W41", "2026-W42", "2026-W42", "2026-W44"]
    packed = "in/an/archive.png"
    assert weeks(project, tmp_path / "one", (*FILES[:4], packed)) == [*committed, "unknown"]
    assert not any(path.suffix == ".png" for path in (project.root / CACHE).rglob("*"))
    objects = [path for path in (project.root / CACHE).rglob("*") if path.is_file()]
    assert {path.suffix for path in objects} == {".dir"}  # no image was fetched

    dvc(project.root, "pull", "-q")
    folder = project.root / "data" / "photos"
    (folder / "cat" / "1.png").rename(folder / "dog" / "old.png")  # relabelled
    (folder / "cat" / "3.png").write_text("new")
    dvc(project.root, "add", "-q", "data")
    files = ("dog/old.png", *FILES[1:])
    assert weeks(project, tmp_path / "two", files) == [*committed, "uncommitted"]
    before = find_history(DATA, project, data_version(DATA, project)).digest
    git(project.root, "add", "data.dvc")
    commit_on(project.root, "2026-11-03")
    assert weeks(project, tmp_path / "three", files) == [*committed, "2026-W45"]
    history = find_history(DATA, project, data_version(DATA, project))
    assert before != history.digest
    (project.root / "notes").write_text("more")
    git(project.root, "commit", "-qam", "no data")
    assert find_history(DATA, project, data_version(DATA, project)).digest == history.digest


def test_a_revision_has_the_history_up_to_it(project):
    revision = git(project.root, "rev-parse", "HEAD~2").strip()
    history = find_history(DATA, project, data_version(DATA, project, revision))
    assert [name for name, _ in history.versions] == ["2026-W41", "2026-W42"]


def test_what_came_before_the_newest_weeks_is_one_slice(template, project, tmp_path):
    old, new = (git(template, "show", f"{each}:data.dvc") for each in ("HEAD~3", "HEAD"))
    git(project.root, "checkout", "-q", "--orphan", "long")
    for day in range(20):  # a version in each of so many weeks, the first of them without data.dvc
        path = project.root / "data.dvc"
        path.write_text((new if day % 2 else old) + f"# {day}\n")
        git(project.root, "add", "data.dvc")
        if day == 3:
            git(project.root, "rm", "-qf", "data.dvc")
        commit_on(project.root, f"2026-{1 + day // 4:02}-{1 + day % 4 * 7:02}")
    history = find_history(DATA, project, data_version(DATA, project))
    assert len(history.versions) == 13
    assert [name for name, _ in history.versions][:2] == ["earlier", "2026-W09"]
    assert set(weeks(project, tmp_path, FILES[:4])) == {"earlier"}


def test_without_the_whole_history_there_are_no_weeks(project, tmp_path):
    git(tmp_path, "clone", "-q", "--depth", "1", project.root.as_uri(), "shallow")
    shallow = Project(tmp_path / "shallow")
    with pytest.raises(
        UsageError, match="clone is shallow. Fetch it: git fetch --unshallow".replace(".", r"\.")
    ):
        find_history(DATA, shallow, data_version(DATA, shallow))
    shutil.rmtree(tmp_path / "shallow" / ".git")
    with pytest.raises(UsageError, match=r"The history of data\.dvc cannot be read"):
        find_history(DATA, shallow, data_version(DATA, shallow))
    with pytest.raises(UsageError, match=r"data.path .*/elsewhere is not under DVC. Put it into"):
        elsewhere = tmp_path / "elsewhere"
        make_files(elsewhere, "cat/1.png")
        data = Data(path=str(elsewhere))
        find_history(data, project, data_version(data, project))


def test_a_listing_that_is_gone_is_named(project, tmp_path):
    history = find_history(DATA, project, data_version(DATA, project))
    gone = history.versions[0][1]
    (project.root / ".dvc" / "remote" / "files" / "md5" / gone[:2] / gone[2:]).unlink()
    with pytest.raises(ConnectionError, match=f"does not give version {gone[:8]} of data/"):
        weeks(project, tmp_path)
