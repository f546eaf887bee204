import pytest

from retrain.errors import UsageError
from retrain.project import REMOTE, Project


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.delenv(REMOTE, raising=False)
    return Project(tmp_path)


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
