"""Where the reference of a version comes from."""

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
from pyarrow import Table

from retrain import tracking
from retrain.project import Project
from retrain.registry.versions import ModelVersion
from tasks.data.image_facts import FACTS, schema
from tasks.data.reference import find_reference, keep_reference
from tasks.evaluate.predictions import write_features
from tests import templates
from tests.at_once import run_two

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


# Both have found that there is no file yet.
FIND = """
from pathlib import Path
from pyarrow import parquet
from tests.tasks.data.test_reference import find_of

write = parquet.write_table

def slow(table, file):
    write(table, file)
    halfway()

parquet.write_table = slow
assert len(find_of(Path(sys.argv[1]), sys.argv[2])) == 1
"""


def find_of(root: Path, run_id: str):
    return find_reference(Project(root), replace(VERSION, run_id=run_id))


def test_two_processes_may_be_the_first_to_ask_for_one_in_mlflow(tmp_path):
    templates.place_mlflow_database(tmp_path)
    project = Project(tmp_path)
    run_id = tracking.start_run(project, "toy", "key", {}, "digest").run_id
    row = {"sha256": "0" * 64, "label": "ant", "confidence": 0.5, **dict.fromkeys(FACTS, 1.0)}
    row["features"] = [1.0, 2.0]
    keep_reference(project, replace(VERSION, run_id=run_id), Table.from_pylist([row], schema()))
    assert run_two(FIND, tmp_path, run_id) == ["", ""]
    assert find_of(tmp_path, run_id).to_pylist() == [row]
    [kept] = (project.state / "drift" / "toy").iterdir()
    assert kept.name == f"reference-{'0' * 16}.parquet"
