"""What is no longer needed goes, and nothing else: real stores, locks and an MLflow registry."""

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from retrain import gc
from retrain.disk import write_json
from retrain.errors import UsageError
from retrain.project import Project
from retrain.registry import decisions, versions
from retrain.store import Store
from tests import templates
from tests.retrain.registry.helpers import candidate_of, decision, register
from tests.retrain.registry.test_lineage import output, record
from tests.retrain.test_store import make_toy, with_lr
from tests.running import RunContext

# A run that is killed while it trains: it holds what it has used.
KILLED = """
import os, signal, sys
from pathlib import Path
from retrain.project import Project
from retrain.store import Store

store = Store(Project(Path(sys.argv[1])).store)
with store.runs.holding("run-9"):
    store.use("toy", sys.argv[2])
    (store.scratch("toy", "killed") / "checkpoint").write_text("12345")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.delenv("RETRAIN_STORE", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return make_project(tmp_path)


def make_project(root):
    root.mkdir(exist_ok=True)
    (root / "params.yaml").write_text("workloads: {vit: {}, cnn: {}}\n")
    return Project(root)


@pytest.fixture
def store(project):
    return Store(project.store)


def age(root, hours=25):
    """Lets a folder and everything below be older by as many hours."""
    for path in (root, *root.rglob("*")):
        when = path.stat().st_mtime - hours * 3600
        os.utime(path, (when, when))


def keep_run(project, number, *made, flow="train", workload="vit", **more):
    folder = project.state / "runs" / flow / workload
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        "run": f"run-{number}",
        "time": f"2026-11-{number:02}T00:00:00+00:00",
        "steps": [{"step": "toy", "key": each.key} for each in made],
        **more,
    }
    write_json(folder / f"run-{number}.json", document)
    write_json(folder / "latest.json", document)


def made_with(project, store, lr):
    """An output of the day before yesterday."""
    made = make_toy(store, RunContext("run", project), with_lr(lr))
    age(made.folder, 48)
    return store.find("toy", made.key)


def collected(project, kind, **options):
    return [each.name for each in gc.collect(project, **options) if each.kind == kind]


def test_what_the_last_runs_of_each_flow_and_workload_have_is_kept(project, store):
    made = [made_with(project, store, lr) for lr in (0.1, 0.2, 0.3, 0.4, 0.5)]
    for number in range(3):
        keep_run(project, number + 1, made[number])
    keep_run(project, 1, made[3], workload="cnn")
    assert collected(project, "artifact", keep=2) == sorted(
        f"toy {each.key}" for each in (made[0], made[4])
    )
    assert [each.folder.exists() for each in made] == [False, True, True, True, False]
    runs = project.state / "runs"
    assert {path.relative_to(runs).as_posix() for path in runs.rglob("run-*")} == {
        "train/vit/run-2.json", "train/vit/run-3.json", "train/cnn/run-1.json"
    }  # fmt: skip
    assert (runs / "train" / "vit" / "latest.json").exists()
    assert [f".{each.key}.lock" in names(store) for each in made] == [
        False, True, True, True, False
    ]  # fmt: skip
    assert gc.collect(project, keep=2) == []


def test_the_document_of_a_failed_run_stays_as_long_as_its_report(project, store):
    for workload in ("vit", "other"):  # a name that is not in params.yaml ends with its last run
        keep_run(project, 1, workload=workload, error="no such class")
        keep_run(project, 2, workload=workload)
        keep_run(project, 3, workload=workload)
    removed = ["train/other/run-2", "train/other/run-1", "train/vit/run-2"]
    assert collected(project, "run", keep=1, dry_run=True) == removed
    assert collected(project, "run", keep=1) == removed
    age(project.state / "runs", 89 * 24)
    assert collected(project, "run", keep=1) == []
    age(project.state / "runs", 2 * 24)
    assert collected(project, "run", keep=1) == ["train/vit/run-1"]


def names(store):
    return {path.name for path in (store.root / "toy").iterdir()}


def test_a_dry_run_lists_the_same_and_removes_nothing(project, store):
    with pytest.raises(UsageError, match="at least the last run"):
        gc.collect(project, 0)
    made = made_with(project, store, 0.1)
    (store.scratch("toy", "killed") / "checkpoint").write_text("12345")
    age(store.root / "scratch")
    would = gc.collect(project, dry_run=True)
    assert made.folder.exists()
    assert [(each.kind, each.bytes) for each in would if each.kind == "scratch"] == [("scratch", 5)]
    size = sum(path.stat().st_size for path in made.folder.rglob("*") if path.is_file())
    assert gc.Garbage("artifact", f"toy {made.key}", size) in would
    assert gc.collect(project) == would
    assert not made.folder.exists()
    assert not (store.root / "scratch" / "toy" / "killed").exists()


def test_nothing_is_removed_when_the_registry_does_not_answer(project, store, monkeypatch):
    made = made_with(project, store, 0.1)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(Exception, match=r"127\.0\.0\.1"):
        gc.collect(project)
    assert made.folder.exists()


def test_what_a_run_that_goes_on_has_taken_or_is_making_stays(project, store):
    taken, making = made_with(project, store, 0.1), made_with(project, store, 0.2)
    store.scratch("toy", making.key)
    store.partial("toy", making.key).mkdir()
    with store.runs.holding("run-9"):
        with store.lock("toy", making.key):
            assert make_toy(store, RunContext("run-9", project), with_lr(0.1)) == taken
            assert gc.collect(project) == []
        store.use("toy", making.key)
        age(store.root, 48)  # it goes on for long, and waits to try again: nobody has the lock
        assert collected(project, "artifact") == collected(project, "scratch") == []
    assert sorted(collected(project, "artifact")) == sorted(
        f"toy {each.key}" for each in (taken, making)
    )
    assert names(store) == set()


def test_what_killed_runs_left_goes(project, store):
    made = made_with(project, store, 0.1)
    keep_run(project, 1, made)
    store.partial("toy", "a").mkdir()
    (store.root / "toy" / ".b.discarded").mkdir()
    assert sorted(collected(project, "leftover")) == ["toy a", "toy b"]
    assert names(store) == {made.key, f".{made.key}.lock"}


def test_what_was_used_or_made_in_the_last_day_stays(project, store):
    made = make_toy(store, RunContext("run", project), with_lr(0.1))
    used = made_with(project, store, 0.2)
    assert make_toy(store, RunContext("run", project), with_lr(0.2)) == used
    assert gc.collect(project) == []
    age(store.root, 23)
    assert gc.collect(project) == []
    age(store.root, 2)
    assert len(collected(project, "artifact")) == 2
    assert not made.folder.exists()


def test_what_a_killed_run_goes_on_from_stays_until_another_run_has_begun(project, store):
    used = made_with(project, store, 0.1)
    program = [sys.executable, "-c", KILLED, str(project.root), used.key]
    assert subprocess.run(program, check=False).returncode == -signal.SIGKILL
    age(store.root, 48)  # it had worked for long: its checkpoint is old, too
    assert gc.collect(project) == []
    assert (store.scratch("toy", "killed") / "checkpoint").exists()
    store.runs.forget_killed()
    assert collected(project, "scratch") == ["toy killed"]
    assert not used.folder.exists()


def test_old_files_of_runs_go_but_for_those_of_the_last_runs(project):
    keep_run(project, 1)
    old = [
        *("logs/20261101-120000-train-vit.log", "searches/vit/1/trials", "drift/vit/run-0.json"),
        *("production/vit/answers/a.parquet", "champions/package/model", "learnt_pixels/a.npy"),
        *("../reports/vit/run-0.html", "../reports/vit/run-1.html", "../reports/vit/latest.html"),
        "logs/prefect.log",
    ]
    for name in old:
        path = project.state / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("12345")
    age(project.root, 31 * 24)
    (project.logs / "20261102-120000-train-vit.log").write_text("young")
    assert gc.collect(project) == []
    garbage = gc.collect(project, days=30)
    assert {each.kind for each in garbage} == set(gc.OF_RUNS)
    assert {each.bytes for each in garbage} == {5}
    left = [name for name in old if (project.state / name).exists()]
    assert left == ["../reports/vit/run-1.html", "../reports/vit/latest.html", "logs/prefect.log"]


def test_what_the_champion_came_from_stays(project, store):
    templates.place_mlflow_database(project.root)
    made = [made_with(project, store, lr) for lr in (0.1, 0.2, 0.3)]
    for number, each in enumerate(made[:2], 1):
        first = register(project, "vit", f"m{number}", project.root)
        of_each = record(first.run_id, steps=[output("toy", each.digest, each.key)])
        again = replace(candidate_of(first), package_digest=f"p{number}")
        package = project.root / f"package-m{number}"
        version = versions.register(project, again, package, of_each)
        previous = None if number == 1 else 2
        decisions.apply(project, version, decision(version.version, previous=previous))
    assert len(collected(project, "artifact")) == 2
    assert [each.folder.exists() for each in made] == [False, True, False]


def test_a_file_that_has_another_name_too_is_not_counted(project, store):
    made = made_with(project, store, 0.5)
    size = gc.size_of(made.folder)
    (project.root / "cached").write_text("12345")
    (made.folder / "linked").hardlink_to(project.root / "cached")
    age(store.root, 48)
    assert [piece.bytes for piece in gc.collect(project)] == [size]
