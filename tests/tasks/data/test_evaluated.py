"""Which images a version was evaluated on, and how they are read again."""

import json
from dataclasses import asdict

import pyarrow.parquet as pq
import pytest

from retrain.outputs import Plan, digest_of_output, list_files
from retrain.store import Store
from retrain.workload import Data
from tasks.data import image_table
from tasks.data.evaluated import EvaluatedImages, find_evaluated
from tasks.data.image_table import read_images
from tasks.data.raw_dataset import open_raw_dataset
from tasks.predict.inputs import Source, read
from tests.tasks.toy_data import write_files
from tests.tasks.toy_model import VERSION, write_data

COLUMNS = Data(path="data")
ROWS = 40


def put(store, step, inputs=None, config=None, **facts) -> str:
    """Writes an artifact with the files that lie in `step`; returns its digest."""
    plan = Plan(step, config or {}, inputs or {}, {}, {})
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
    pulled = put(store, "pull", format="folders")
    validated = put(store, "validate", {"pull": pulled})
    config = {"data.image_column": None, "data.label_column": None}
    images = {"pull": pulled, "validate": validated}
    prepared = {"preprocess": put(store, "preprocess", images, config)}
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
    places = (found.validated.parent.name, found.source.format, found.source.root.parts[-3])
    assert places == ("validate", "folders", "pull")
    (found.validated / "data" / "a.txt").unlink()
    assert find_evaluated(store, VERSION) is None


def test_the_test_images_are_read_in_order_and_no_others(tmp_path):
    pulled, validated = write_data(tmp_path, ROWS)
    file = validated.folder / image_table.FILE_NAME
    table = pq.read_table(file)
    kept = [row for row, place in enumerate(table["row"].to_pylist()) if place % 3 != 1]
    pq.write_table(table.take(kept), file)  # the others were set aside
    data = open_raw_dataset(COLUMNS, pulled)
    source = Source("parquet", EvaluatedImages(data, validated.folder))
    images = [image for unit in source.units() for image in read(source, unit)]
    expected = list(read_images(data, validated.folder, "test"))
    assert len(expected) == 27
    assert [(each.sha256, each.label) for each in images] == [
        (each.sha256, each.label) for each in expected
    ]
