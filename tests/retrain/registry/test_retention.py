"""The packages of old versions go, and nothing that may be needed again: a real registry."""

import signal
import subprocess
import sys
from datetime import timedelta

import pytest

from retrain import gc, tracking
from retrain.gc import Garbage
from retrain.project import Project
from retrain.registry import decisions, ledger, packages, retention, versions
from tests.retrain.registry.helpers import WEIGHTS, decision, register

# Removes a package, and is killed before the first file is deleted.
KILLED = """
import os, signal, sys
from pathlib import Path
from retrain import artifacts
from retrain.project import Project
from retrain.registry import retention, versions

artifacts.delete = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
project = Project(Path(sys.argv[1]))
[(_, remove)] = retention.findings(project, [versions.get(project, sys.argv[2], 1)])
remove()
"""


@pytest.fixture(autouse=True)
def old(monkeypatch):
    """All versions are older than a day."""
    monkeypatch.setattr(retention, "YOUNG", timedelta(days=-1))


def make(project, name, root, models):
    """Versions with an example beside each package, by number."""
    made = {}
    for number, model in enumerate(models, 1):
        made[number] = register(project, name, model, root)
        example = root / f"package-{model}.parquet"
        example.write_bytes(b"images")
        client = tracking.client(project)
        client.log_artifact(made[number].run_id, str(example), packages.EXAMPLES)
    return made


def beyond(project, name, newest):
    return [version.version for version in retention.beyond(project, name, newest)]


def remove(project, old):
    return list(gc.take(retention.findings(project, old), dry_run=False))


def kept_files(project, version):
    run = tracking.find_run(project, version.run_id)
    folder = tracking.local_path(run.info.artifact_uri)
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_what_may_be_served_again_stays(project, name, tmp_path, monkeypatch):
    made, client = make(project, name, tmp_path, "abcdefgh"), tracking.client(project)
    decisions.apply(project, made[1], decision(1))
    decisions.apply(project, made[2], decision(2, previous=1))
    decisions.apply(project, made[1], decision(1, "rolled back", previous=2))
    decisions.apply(project, made[6], decision(6, "rejected", previous=1))
    decisions.apply(project, made[3], decision(3, "waiting", previous=1))
    client.set_registered_model_alias(name, "ours", "4")
    client.set_model_version_tag(name, "8", "retrain.start", made[5].weights)
    assert beyond(project, name, 2) == [6]
    assert beyond(project, name, 3) == []
    decisions.apply(project, made[3], decision(3, "rejected", previous=1, reviews=5))
    client.delete_registered_model_alias(name, "ours")
    assert beyond(project, name, 1) == [7, 6, 4, 3]
    monkeypatch.setattr(retention, "YOUNG", timedelta(days=1))
    assert beyond(project, name, 1) == []


def test_the_package_goes_and_the_record_stays(project, name, tmp_path):
    made = make(project, name, tmp_path, "abc")
    decisions.apply(project, made[3], decision(3))
    client = tracking.client(project)
    client.log_text(made[1].run_id, "card", "card/package-a.md")
    sizes = [gc.size_of(tmp_path / f"package-{model}") for model in "ba"]
    old = retention.beyond(project, name, 1)
    garbage = [
        Garbage("version", f"{name} version {number}", size + len(b"images"))
        for number, size in zip((2, 1), sizes, strict=True)
    ]
    assert list(gc.take(retention.findings(project, old), dry_run=True)) == garbage
    assert versions.get(project, name, 1) == made[1]
    assert remove(project, old) == garbage
    assert kept_files(project, made[1]) == ["package-a.md"]
    assert "model.safetensors" in kept_files(project, made[3])
    removed = versions.get(project, name, 1)
    assert removed.removed
    assert removed.public() == made[1].public() | {"removed": removed.removed}
    day = removed.removed[:10]
    said = f"{name} version 1 was removed by the retention on {day}.*retrain reproduce {name}@1"
    for call in (packages.download, lambda *given: packages.fetch(*given, tmp_path)):
        with pytest.raises(ValueError, match=said):
            call(project, removed)
    assert versions.find_version(project, name, "package-a") is None
    assert versions.find_by_weights(project, name, made[1].weights) is None
    assert remove(project, retention.beyond(project, name, 1)) == []


def test_after_a_kill_between_the_mark_and_the_files_the_next_call_does_the_rest(
    project, name, tmp_path
):
    [made] = make(project, name, tmp_path, "a").values()
    program = [sys.executable, "-c", KILLED, str(project.root), name]
    assert subprocess.run(program, check=False).returncode == -signal.SIGKILL
    marked = versions.get(project, name, 1)
    assert marked.removed
    assert "model.safetensors" in kept_files(project, made)
    assert [piece.name for piece in remove(project, [marked])] == [f"{name} version 1"]
    assert kept_files(project, made) == []
    assert versions.get(project, name, 1).removed == marked.removed
    assert remove(project, [marked]) == []


def test_a_package_that_another_model_has_too_stays(project, name, tmp_path):
    [made] = make(project, name, tmp_path, "a").values()
    client, other = tracking.client(project), f"{name[:40]}-other"
    client.create_registered_model(other)
    source = client.get_model_version(name, "1").source
    tags = client.get_model_version(name, "1").tags
    client.create_model_version(other, source, made.run_id, tags=tags)
    twin = versions.get(project, other, 1)
    assert remove(project, [made]) == []
    assert packages.download(project, twin).is_dir()
    assert len(remove(project, [made, twin])) == 2
    assert kept_files(project, made) == []


def test_nothing_goes_that_a_changed_ledger_names(project, name, tmp_path):
    made = make(project, name, tmp_path, "ab")
    decisions.apply(project, made[1], decision(1))
    tracking.client(project).set_registered_model_tag(name, ledger.DONE, "1 0123")
    with pytest.raises(ValueError, match="entry 1 was changed since it was carried out"):
        retention.beyond(project, name, 1)


def test_a_package_is_put_back_from_where_it_was_made_again(project, name, tmp_path):
    [made] = make(project, name, tmp_path, "a").values()
    there = Project(tmp_path / "there")
    there.root.mkdir()
    [again] = make(there, "vit", there.root, "a").values()
    remove(project, [made])
    retention.put_back(project, versions.get(project, name, 1), there, again)
    assert versions.get(project, name, 1) == made
    package = packages.download(project, made)
    assert (package / packages.MODEL / packages.WEIGHTS).read_bytes() == WEIGHTS + b"a"
    assert "package-a.parquet" in kept_files(project, made)
