"""Where the reference of a version comes from, and what a version has learnt."""

from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyarrow import Table

from retrain.project import Project
from retrain.registry import tracking
from tasks.data.image_facts import FACTS
from tasks.data.predictions import (
    LEARNT,
    REFERENCE,
    SAMPLE_SCHEMA,
    find_reference,
    keep_reference,
    learnt_images,
)
from tests import templates
from tests.tasks.toy_model import VERSION


@pytest.fixture
def project(tmp_path):
    templates.place_mlflow_database(tmp_path)
    return Project(tmp_path)


@pytest.fixture
def version(project):
    """A version with a run in MLflow."""
    return replace(VERSION, run_id=tracking.start_run(project, "toy", "key", {}, "digest"))


def test_a_reference_is_kept_with_the_run_of_the_training(project, version, tmp_path):
    assert find_reference(project, version) is None
    row = {"sha256": "0" * 64, "label": "ant", "confidence": 0.5, **dict.fromkeys(FACTS, 1.0)}
    row["features"] = [1.0, 2.0]
    pq.write_table(Table.from_pylist([row], SAMPLE_SCHEMA), tmp_path / REFERENCE)
    keep_reference(project, version, tmp_path)
    found = find_reference(project, version)
    assert (found.schema, found.to_pylist()) == (SAMPLE_SCHEMA, [row])


def test_what_a_version_has_learnt_comes_from_its_run_and_is_kept(
    project, version, tmp_path, monkeypatch
):
    (tmp_path / "report").mkdir()
    np.save(tmp_path / "report" / LEARNT, np.array([1, 2], np.uint64))
    tracking.log_artifacts(project, version.run_id, tmp_path / "report", "evaluate")
    assert np.load(learnt_images(project, version)).tolist() == [1, 2]
    monkeypatch.delattr(tracking, "read_artifact")
    assert np.load(learnt_images(project, version)).tolist() == [1, 2]
