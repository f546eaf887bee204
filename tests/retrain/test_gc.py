"""What is no longer needed goes, and nothing else: real stores, locks and an MLflow registry."""

import json

import pytest

from retrain import gc, tracking
from retrain.errors import UsageError
from retrain.project import Project
from retrain.store import RunContext, Store, write_json
from tests import templates
from tests.retrain.test_store import make_toy, with_lr


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.delenv("RETRAIN_STORE", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return Project(tmp_path)


@pytest.fixture
def store(project):
    return Store(project.store)


def keep_run(project, number, *made, flow="train", workload="vit"):
    folder = project.state / "runs" / flow / workload
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        "run": f"run-{number}",
        "time": f"2026-11-{number:02}T00:00:00+00:00",
        "steps": [{"step": "toy", "key": each.key} for each in made],
    }
    write_json(folder / f"run-{number}.json", document)
    write_json(folder / "latest.json", document)
    write_json(folder / "started.json", {"run": f"run-{number}"})


def made_with(project, store, lr):
    return make_toy(store, RunContext("run", project), with_lr(lr))


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


def names(store):
    return {path.name for path in (store.root / "toy").iterdir()}


def test_a_dry_run_lists_the_same_and_removes_nothing(project, store):
    made = made_with(project, store, 0.1)
    (store.scratch("toy", "killed") / "checkpoint").write_text("12345")
    would = gc.collect(project, dry_run=True)
    assert made.folder.exists()
    assert [(each.kind, each.bytes) for each in would if each.kind == "scratch"] == [("scratch", 5)]
    did = [each for each in gc.collect(project) if each.kind != "lock"]
    assert did == would
    assert not made.folder.exists()
    assert not (store.root / "scratch" / "toy" / "killed").exists()


def test_sizes_are_those_of_the_files(project, store):
    made = made_with(project, store, 0.1)
    size = sum(path.stat().st_size for path in made.folder.rglob("*") if path.is_file())
    assert gc.collect(project)[0] == gc.Garbage("artifact", f"toy {made.key}", size)


def test_a_registered_training_is_kept_however_old_it_is(project, store):
    templates.place_mlflow_database(project.root)
    made = [made_with(project, store, lr) for lr in (0.1, 0.2)]
    client = tracking.client(project)
    client.create_registered_model("vit")
    tags = {"retrain.train_digest": made[1].digest}
    client.create_model_version("vit", source="somewhere", tags=tags)
    assert collected(project, "artifact") == [f"toy {made[0].key}"]
    assert made[1].folder.exists()


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
    with store.holding("run-9"), store.lock("toy", making.key):
        assert make_toy(store, RunContext("run-9", project), with_lr(0.1)) == taken
        assert gc.collect(project) == []
        assert taken.folder.exists()
        assert making.folder.exists()
        assert store.partial("toy", making.key).exists()
    assert len(collected(project, "artifact")) == 2
    assert names(store) == set()


def test_what_killed_runs_left_goes(project, store):
    made = made_with(project, store, 0.1)
    keep_run(project, 1, made)
    store.partial("toy", "a").mkdir()
    (store.root / "toy" / ".b.discarded").mkdir()
    assert sorted(collected(project, "leftover")) == ["toy a", "toy b"]
    assert names(store) == {made.key, f".{made.key}.lock"}


def test_the_last_run_is_always_kept(project):
    with pytest.raises(UsageError, match="at least the last run"):
        gc.collect(project, 0)


def test_the_documents_of_runs_that_failed_count_too(project, store):
    made = made_with(project, store, 0.1)
    keep_run(project, 1, made)
    path = project.state / "runs" / "train" / "vit" / "run-1.json"
    write_json(path, json.loads(path.read_text()) | {"error": "no"})
    assert collected(project, "artifact") == []
    assert made == store.find("toy", made.key)
