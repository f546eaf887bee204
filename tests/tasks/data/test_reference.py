"""Where the reference of a version comes from."""

from dataclasses import replace

import pyarrow.parquet as pq
from pyarrow import Table

from retrain import tracking
from retrain.project import Project
from retrain.registry.versions import ModelVersion
from tasks.data.image_facts import FACTS, schema
from tasks.data.reference import find_reference, keep_reference
from tasks.evaluate.predictions import write_features
from tests import templates

VERSION = ModelVersion(
    name="toy", weights="w", package_digest="0" * 64, train_digest="t", train_key=None, start=None,
    family="vit", images={}, classes=None, metrics={}, data=None, commit=None, run_id="r",
    version=1, aliases=(), verdict=None, created="",
)  # fmt: skip


def test_without_the_evaluation_in_the_store_there_is_no_reference(tmp_path):
    templates.place_mlflow_database(tmp_path)
    assert find_reference(Project(tmp_path), VERSION) is None
    assert not list(tmp_path.rglob("*.parquet"))


def test_one_that_was_kept_before_there_were_features_has_none(tmp_path):
    kept = tmp_path / ".retrain" / "drift" / "toy" / f"reference-{'0' * 16}.parquet"
    kept.parent.mkdir(parents=True)
    row = {"label": "ant", "confidence": 0.5, **dict.fromkeys(FACTS, 1.0)}
    pq.write_table(Table.from_pylist([row]), kept)
    found = find_reference(Project(tmp_path), VERSION)
    assert found.schema == schema()
    assert found.to_pylist() == [{"sha256": None} | row | {"features": None}]


def test_the_features_of_a_network_whose_last_layer_is_not_known_are_none(tmp_path):
    write_features(["ab", "cd"], [], tmp_path)
    assert pq.read_table(tmp_path / "features.parquet").num_rows == 0


def test_one_in_mlflow_is_found_and_kept_here(tmp_path, monkeypatch):
    templates.place_mlflow_database(tmp_path)
    project = Project(tmp_path)
    run_id = tracking.start_run(project, "toy", "key", {}, "digest").run_id
    row = {"sha256": "0" * 64, "label": "ant", "confidence": 0.5, **dict.fromkeys(FACTS, 1.0)}
    row["features"] = [1.0, 2.0]
    version = replace(VERSION, run_id=run_id)
    keep_reference(project, version, Table.from_pylist([row], schema()))
    assert find_reference(project, version).to_pylist() == [row]
    monkeypatch.delattr(tracking, "read_artifact")
    assert find_reference(project, version).to_pylist() == [row]
