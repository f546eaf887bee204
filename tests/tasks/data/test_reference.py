"""Where the reference of a version comes from, and what a version has learnt."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from pyarrow import Table

from retrain import tracking
from retrain.outputs import Plan, digest_of_output, list_files
from retrain.project import Project
from retrain.store import Store
from tasks.data.image_facts import FACTS, schema
from tasks.data.predictions import LEARNT, learnt_images
from tasks.data.reference import find_evaluated, find_reference, keep_reference
from tests import templates
from tests.tasks.toy_data import write_files
from tests.tasks.toy_model import VERSION


@pytest.fixture
def project(tmp_path):
    templates.place_mlflow_database(tmp_path)
    return Project(tmp_path)


@pytest.fixture
def version(project):
    """A version with a run in MLflow."""
    return replace(VERSION, run_id=tracking.start_run(project, "toy", "key", {}, "digest").run_id)


def test_a_reference_is_kept_with_the_run_of_the_training(project, version):
    assert find_reference(project, version) is None
    row = {"sha256": "0" * 64, "label": "ant", "confidence": 0.5, **dict.fromkeys(FACTS, 1.0)}
    row["features"] = [1.0, 2.0]
    keep_reference(project, version, Table.from_pylist([row], schema()))
    assert find_reference(project, version).to_pylist() == [row]


def test_one_of_the_time_before_there_were_features_has_none(project, version):
    row = {"label": "ant", "confidence": 0.5, **dict.fromkeys(FACTS, 1.0)}
    keep_reference(project, version, Table.from_pylist([row]))
    found = find_reference(project, version)
    assert found.schema == schema()
    assert found.to_pylist() == [{"sha256": None} | row | {"features": None}]


def test_what_a_version_has_learnt_comes_from_its_run_and_is_kept(
    project, version, tmp_path, monkeypatch
):
    (tmp_path / "report").mkdir()
    np.save(tmp_path / "report" / LEARNT, np.array([1, 2], np.uint64))
    tracking.log_artifacts(project, version.run_id, tmp_path / "report", "evaluate")
    gone = replace(version, run_id="0" * 32)
    assert np.load(learnt_images(project, version)).tolist() == [1, 2]
    assert learnt_images(project, gone) is None
    monkeypatch.delattr(tracking, "read_artifact")
    assert np.load(learnt_images(project, version)).tolist() == [1, 2]
    assert learnt_images(project, gone) is None  # known by now not to be known


ROWS = 40


def put(store, step, inputs=None, **facts) -> str:
    """Writes an artifact with the files that lie in `step`; returns its digest."""
    plan = Plan(step, {}, inputs or {}, {}, {})
    folder = store.folder(step, plan.key)
    folder.mkdir(parents=True)
    write_files(folder, {"data/a.txt": step.encode()})
    files = list_files(folder)
    manifest = {
        "digest": digest_of_output(facts, files), "facts": facts, "files": files,
        "plan": asdict(plan), "provenance": {"run": "r"},
    }  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return str(manifest["digest"])


def evaluate(store, embedded: bool) -> None:
    """The outputs of a run up to `evaluate`, and of another package."""
    pulled = put(store, "pull", image_column=None)
    validated = put(store, "validate", {"pull": pulled})
    images = {"pull": pulled, "validate": validated}
    prepared = {"preprocess": put(store, "preprocess", images)}
    if embedded:
        prepared = {"embed": put(store, "embed", prepared)}
    put(store, "evaluate", prepared | {"train": "other"}, package="other")
    put(store, "evaluate", prepared | {"train": "t"}, package=VERSION.package_digest)


@pytest.mark.parametrize("embedded", [False, True])
def test_the_data_of_an_evaluation_is_found_in_the_store(tmp_path, embedded):
    store = Store(tmp_path)
    assert find_evaluated(store, VERSION) is None
    evaluate(store, embedded)
    found = find_evaluated(store, VERSION)
    manifest = json.loads((found.predictions / "manifest.json").read_text())
    assert manifest["facts"]["package"] == VERSION.package_digest
    assert (found.validated.parent.name, found.files.root.parts[-3]) == ("validate", "pull")
    (found.validated / "data" / "a.txt").unlink()
    assert find_evaluated(store, VERSION) is None
