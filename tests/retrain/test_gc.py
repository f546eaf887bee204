"""What is no longer needed goes, and nothing else: real stores, locks and an MLflow registry."""

import os
from dataclasses import asdict, replace

import pytest

from retrain import gc
from retrain.errors import UsageError
from retrain.file_io import write_json
from retrain.registry import decisions, versions
from retrain.runs.liveness import LOCKS, Processes
from retrain.servers import serving
from retrain.store import Store
from tests import templates
from tests.retrain.registry.helpers import candidate_of, decision, register
from tests.retrain.registry.test_lineage import output, record
from tests.retrain.test_store import make_toy, with_lr
from tests.running import RunContext


@pytest.fixture(autouse=True)
def store(project):
    project.params.write_text("workloads: {vit: {}, cnn: {}}\n")
    return Store(project.store)


def age(root, days=91):
    """Lets a folder and everything below be older by as many days."""
    for path in (root, *root.rglob("*")):
        when = path.stat().st_mtime - days * 86400
        os.utime(path, (when, when))


def made_with(project, store, lr):
    """An output that was last used long ago."""
    made = make_toy(store, RunContext("run", project), with_lr(lr))
    age(made.folder)
    return store.find("toy", made.key)


def collected(project, kind, **options):
    return [each.name for each in gc.collect(project, **options) if each.kind == kind]


def names(store):
    return {path.name for path in (store.root / "toy").iterdir()}


def test_what_no_run_has_used_for_long_goes(project, store):
    made, used = (made_with(project, store, lr) for lr in (0.1, 0.2))
    assert make_toy(store, RunContext("run", project), with_lr(0.2)) == used
    store.partial("toy", "a").mkdir()
    age(store.partial("toy", "a"))
    assert collected(project, "artifact") == [f"toy {made.key}"]
    assert names(store) == {used.key, f".{used.key}.lock"}
    age(store.root, 89)
    assert gc.collect(project) == []
    assert collected(project, "artifact", days=88) == [f"toy {used.key}"]


def test_a_dry_run_lists_the_same_and_removes_nothing(project, store):
    with pytest.raises(UsageError, match="in the last day"):
        gc.collect(project, 0)
    made = made_with(project, store, 0.1)
    (store.scratch("toy", "killed") / "checkpoint").write_text("12345")
    age(store.root / "scratch")
    size = sum(path.stat().st_size for path in made.folder.rglob("*") if path.is_file())
    (project.root / "cached").write_text("which has another name too: it is not freed")
    (made.folder / "linked").hardlink_to(project.root / "cached")
    age(made.folder)
    would = gc.collect(project, dry_run=True)
    assert {*would} == {
        gc.Garbage("artifact", f"toy {made.key}", size),
        gc.Garbage("scratch", "toy killed", 5),
    }
    assert made.folder.exists()
    assert gc.collect(project) == would
    assert names(store) == set()
    assert not (store.root / "scratch" / "toy" / "killed").exists()


def test_nothing_is_removed_when_the_registry_cannot_be_read(project, store):
    made = made_with(project, store, 0.1)
    (project.root / "mlflow.db").write_text("no database")
    with pytest.raises(UsageError, match="database"):
        gc.collect(project)
    assert made.folder.exists()


def test_what_a_run_that_goes_on_has_taken_or_is_making_stays(project, store):
    taken, making = made_with(project, store, 0.1), made_with(project, store, 0.2)
    store.scratch("toy", making.key)
    store.partial("toy", making.key).mkdir()
    with Processes(store.root).hold():
        with store.lock("toy", making.key):
            assert make_toy(store, RunContext("run-9", project), with_lr(0.1)) == taken
            assert gc.collect(project) == []
        store.use("toy", making.key)
        age(store.root)  # it goes on for long, and waits to try again: nobody has the lock
        assert collected(project, "artifact") == collected(project, "scratch") == []
    assert sorted(collected(project, "artifact")) == sorted(
        f"toy {each.key}" for each in (taken, making)
    )
    assert names(store) == set()


def test_what_a_killed_run_goes_on_from_stays_until_another_run_has_begun(project, store):
    used = made_with(project, store, 0.1)
    (store.root / LOCKS).mkdir()
    (store.root / LOCKS / "process-killed.lock").touch()  # which nobody holds any more
    store.use("toy", used.key)
    (store.scratch("toy", "killed") / "checkpoint").write_text("12345")
    age(store.root)  # it had worked for long: its checkpoint is old, too
    assert gc.collect(project) == []
    Processes(store.root).forget(["process-killed"])
    assert collected(project, "scratch") == ["toy killed"]
    assert not used.folder.exists()


def test_old_files_of_runs_go_but_for_those_of_the_last_runs(project):
    old = [
        "logs/20261101-120000-train-vit.log",
        "searches/vit/1/trials",
        "drift/vit/run-0.json",
        "production/vit/answers/a.parquet",
        "champions/package/model",
        "learnt_pixels/a.npy",
        "../reports/vit/run-0.html",
        "../reports/vit/latest.html",
        "logs/prefect.log",
        "runs/train/vit/run-0.json",
        "runs/train/vit/latest.json",
        "runs/train/a/latest.json",
    ]
    for name in old:
        path = project.state / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("12345")
    age(project.root, 31)
    (project.logs / "20261102-120000-train-vit.log").write_text("young")
    assert gc.collect(project) == []
    garbage = gc.collect(project, days=30)
    assert {each.kind for each in garbage} == set(gc.OF_RUNS)
    assert {each.bytes for each in garbage} == {5}
    left = [name for name in old if (project.state / name).exists()]
    assert left == ["../reports/vit/latest.html", "logs/prefect.log", "runs/train/vit/latest.json"]


def test_what_models_in_use_came_from_stays_whatever_its_age(project, store):
    """The first champion is the reference no more; the third version waits for approval.

    A server keeps to a package while the champion cannot be served.
    """
    templates.place_mlflow_database(project.root)
    made = [made_with(project, store, lr) for lr in (0.1, 0.2, 0.3, 0.4)]
    for number, each in enumerate(made[:3], 1):
        first = register(project, "vit", f"m{number}", project.root)
        of_each = record(first.run_id, steps=[output("toy", each.digest, each.key)])
        again = replace(candidate_of(first), package_digest=f"p{number}")
        package = project.root / f"package-m{number}"
        version = versions.register(project, again, package, of_each)
        previous = decisions.read(project, "vit").champion
        action = "waiting" if number == 3 else "promoted"
        decided = decision(version.version, action=action, previous=previous)
        decisions.apply(project, version, decided)
    for name in ("served", "another"):
        (project.state / "champions" / name).mkdir(parents=True)
    age(project.state / "champions")
    served = serving.ServedModel(package=str(project.state / "champions" / "served"))
    (project.state / "served").mkdir()
    write_json(project.state / "served" / "vit.json", asdict(served))
    assert collected(project, "package", dry_run=True) == [".retrain/champions/another"]
    assert len(collected(project, "artifact")) == 2
    assert [each.folder.exists() for each in made] == [False, True, True, False]
