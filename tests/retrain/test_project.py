"""What a project says of its commit, with and without git, and of the mirror of its store."""

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

import retrain
from flows.train import train
from retrain.cli.main import main
from retrain.errors import UsageError
from retrain.project import REMOTE, Project, find_project


@pytest.mark.parametrize("has_git", [True, False])
def test_an_unpacked_archive_has_no_commit(tmp_path, monkeypatch, has_git):
    project = Project(tmp_path)
    if not has_git:
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(FileNotFoundError, match="git is not installed"):
            project.git("status")
    assert (project.commit, project.uncommitted) == (None, None)
    assert not project.is_in_git()


def test_uncommitted_changes_are_named_and_their_digest_tells_them_apart(tmp_path):
    root = tmp_path / "project"  # in a folder of a repository
    root.mkdir()
    (root / "a.py").write_text("A = 1\n")
    (root / "notes.txt").write_text("notes\n")
    for command in ("init -q", "add -A", "-c user.name=t -c user.email=t@t commit -qm start"):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    clone = Project(root)
    commit = clone.commit
    (root / "photo.txt").write_text("new, but no code")
    (root.parent / "beside.py").write_text("B = 2, which is not in the project\n")
    assert clone.uncommitted is None
    seen = []
    for name, content in (
        ("a.py", b"A = 2\n"),
        ("a.py", b"A = 3\n"),
        ("new.py", b"N = 1\n"),
        ("new.py", b"N = 2\n"),
        ("a.py", None),
        ("notes.txt", b"\xff is no UTF-8"),
        (os.fsdecode(b"\xff.py"), b"X = 1\n"),
    ):
        (root / name).write_bytes(content) if content else (root / name).unlink()
        seen.append(Project(root).uncommitted)
    assert [len(each["files"]) for each in seen] == [1, 1, 2, 2, 2, 3, 4]
    assert seen[4]["files"] == ["a.py", "new.py"]
    assert len({each["sha256"] for each in seen}) == len(seen)
    content = hashlib.sha256(b"A = 2\n").hexdigest()
    listed = f'{{"a.py": "{content}"}}'
    assert seen[0]["sha256"] == hashlib.sha256(listed.encode()).hexdigest()
    # What is edited while a run goes on does not count.
    assert (clone.commit, clone.uncommitted) == (commit, None)
    assert Project(root).commit == f"{commit}+dirty"


def test_the_code_of_one_tree_does_not_run_in_another(tmp_path, monkeypatch, capsys):
    """As in a git worktree, which another clone's environment is for."""
    (tmp_path / "retrain").mkdir()
    (tmp_path / "params.yaml").write_text("workloads: {}\n")
    ours = Path(retrain.__file__).parents[1]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=f"The code of {ours} runs here"):
        train.run("vit")  # as a worker of Prefect does
    assert main(["step", "pull", "vit"]) == 2
    assert f"Run the code that is here: cd {tmp_path}; " in capsys.readouterr().err


def test_a_tree_s_own_code_runs_whatever_the_way_to_it(tmp_path):
    ours = Path(retrain.__file__).parents[1]
    (tmp_path / "link").symlink_to(ours)
    for root in (ours, tmp_path / "link"):
        assert find_project(root / "tests") == Project(root)


def test_the_environment_wins_over_the_file(project, monkeypatch):
    assert project.store_remote is None
    project.params.write_text("workloads: {}\n# x\nstore:\n\n  # ours\n  remote: s3://a/b/\nz: 1\n")
    assert project.store_remote == "s3://a/b"
    monkeypatch.setenv(REMOTE, "file:///mnt/store")
    assert project.store_remote == "file:///mnt/store"
    monkeypatch.setenv(REMOTE, "")
    assert project.store_remote is None


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("{remote: /mnt/store}", "params.yaml: store.remote: write it as s3://bucket/prefix"),
        ("{remote: 's3://me:secret@bucket'}", "without a login"),
        ("{remotes: 's3://bucket'}", "it has one key, remote"),
        ("s3://bucket", "it has one key, remote"),
    ],
)
def test_what_is_no_remote_store_is_refused(project, section, message):
    project.params.write_text(f"store: {section}\nworkloads: {{}}\n")
    with pytest.raises(UsageError, match=message) as refused:
        _ = project.store_remote
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("below", ["", "team"])
def test_the_copy_of_an_experiment_has_the_state_of_its_clone(tmp_path, monkeypatch, below):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    copied = Project(tmp_path / ".dvc/tmp/exps/tmpab12" / below)
    clone = Project(tmp_path)
    assert (copied.state, copied.tracking_uri) == (clone.state, clone.tracking_uri)
    assert copied.params != clone.params
