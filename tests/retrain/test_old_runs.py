"""What old runs have left beside the store: a real MLflow database, files and locks."""

import os
from time import time

import pytest

from retrain import gc, old_runs, tracking
from retrain.gc import DAY, Garbage
from retrain.locks import locked
from retrain.project import Project
from retrain.search import JOURNAL, LOCK
from tests import templates

SINCE = time() - 90 * DAY


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return Project(tmp_path)


def write(path, days):
    """A file of five bytes that is some days old."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("12345")
    os.utime(path, (time() - days * DAY,) * 2)
    return path


def removed(found):
    return list(gc.take(found, dry_run=False))


def run_of(project, key, days, parent=None):
    """The run of a training that has ended some days ago, with an artifact; its id."""
    run_id = tracking.start_run(project, "vit", key, {}, "digest", parent=parent).run_id
    client = tracking.client(project)
    client.log_text(run_id, "12345", "folder/report.html")
    client.set_terminated(run_id, "FINISHED", round((time() - days * DAY) * 1000))
    return run_id


def test_old_trials_of_searches_that_are_over_go(project):
    templates.place_mlflow_database(project.root)
    client = tracking.client(project)
    search, going_on = (run_of(project, key, 100) for key in ("search", "going on"))
    client.update_run(going_on, "RUNNING")
    old = run_of(project, "old", 100, search)
    registered = run_of(project, "registered", 100, search)
    client.create_registered_model("other")
    client.create_model_version("other", "somewhere", registered)
    others = {
        search, going_on, registered,
        run_of(project, "young", 80, search),
        run_of(project, "of a search that goes on", 100, going_on),
        run_of(project, "no trial", 100),
    }  # fmt: skip
    folder = tracking.local_path(client.get_run(old).info.artifact_uri)
    garbage = [Garbage("trial", f"vit {old[:8]}", 5)]
    assert list(gc.take(old_runs.trials(project, ["vit"], SINCE), dry_run=True)) == garbage
    assert (folder / "folder" / "report.html").exists()
    assert removed(old_runs.trials(project, ["vit", "never run"], SINCE)) == garbage
    assert not (folder / "folder").exists()
    experiment = client.get_experiment_by_name("vit").experiment_id
    assert {run.info.run_id for run in client.search_runs([experiment])} == others
    assert removed(old_runs.trials(project, ["vit"], SINCE)) == []


def test_no_database_is_made_to_find_nothing(project):
    assert removed(old_runs.trials(project, ["vit"], SINCE)) == []
    assert list(project.root.iterdir()) == []


def test_old_searches_go_unless_somebody_works_at_them(project):
    searches = project.state / "searches" / "vit"
    for name, days in (("old", 100), ("young", 80), ("begun again", 100)):
        write(searches / name / JOURNAL, days)
        write(searches / name / "report" / "trials.csv", 100)
        os.utime(searches / name / "report", (SINCE - DAY,) * 2)
    with locked(searches / "begun again" / LOCK):
        [garbage] = removed(old_runs.searches(project, SINCE))
    assert garbage.name == ".retrain/searches/vit/old"
    assert {path.name for path in searches.iterdir()} == {"young", "begun again"}


def test_old_files_and_folders_go(project):
    old, young = write(project.root / "a" / "old", 100), write(project.root / "a" / "young", 80)
    inside = write(project.root / "b" / "folder" / "file", 0)
    os.utime(inside.parent, (SINCE - DAY,) * 2)
    assert removed(old_runs.files(project, "copy", [young, inside.parent, old], SINCE)) == [
        Garbage("copy", "a/old", 5),
        Garbage("copy", "b/folder", 5),
    ]
    assert [old.exists(), young.exists(), inside.parent.exists()] == [False, True, False]
