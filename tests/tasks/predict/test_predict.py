"""Predictions of a registered version: one for each image, in order."""

import hashlib
import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from retrain.errors import UsageError
from retrain.project import Project
from retrain.store import Store
from tasks.data import package
from tasks.data.champion import RegisteredVersion
from tasks.predict.predict import Source, open_source, predict, sample
from tasks.promote.package import write_package
from tests.tasks.toy_data import parquet, png as picture, write_files
from tests.tasks.toy_model import LABELS, VERSION, pixels, plain_probabilities, png, write_model

ROWS = 50
UNREADABLE = "30.png"  # it is gone after the input has been listed
BAD = {"10.png": b"", "25.png": b"no image", "26.png": png(pixels(1)[0])[:40], UNREADABLE: b""}
IMAGES = {f"{row:02}.png": png(image) for row, image in enumerate(pixels(ROWS))} | BAD


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> tuple[Path, RegisteredVersion]:
    """A network, and its package as the registry would give it."""
    root = tmp_path_factory.mktemp("project")
    model = write_model(root / "train").folder / "model"
    write_package(model, "fp32", dict.fromkeys(LABELS, 12), root / "package")
    digest = package.digest_of_folder(root / "package")
    registered = RegisteredVersion(Project(root), replace(VERSION, package_digest=digest))
    registered.__dict__["package"] = root / "package"  # as if it had been downloaded
    return model, registered


@pytest.fixture
def source(tmp_path) -> Source:
    write_files(tmp_path / "images", IMAGES)
    opened = open_source(tmp_path / "images", "images", None)
    (tmp_path / "images" / UNREADABLE).unlink()
    return opened


def test_each_image_has_an_answer_or_an_error_and_the_file_says_what_made_it(toy, source, tmp_path):
    model, registered = toy
    file, store = tmp_path / "out.parquet", tmp_path / "store"
    written, sampled = predict(registered, source, file, Store(store))
    assert not list(store.rglob("*.parquet"))
    assert len(sampled) == ROWS - len(BAD)
    table = pq.read_table(file)
    assert table["path"].to_pylist() == sorted(IMAGES)
    expected = plain_probabilities(model, pixels(ROWS), 256)
    good = [row for row, name in enumerate(sorted(IMAGES)) if name not in BAD]
    assert table.take(good).to_pylist() == [
        {
            "path": f"{row:02}.png",
            "label": LABELS[expected[row].argmax()],
            "probabilities": pytest.approx(expected[row].tolist(), abs=1e-6),
            "sha256": hashlib.sha256(IMAGES[f"{row:02}.png"]).hexdigest(),
            "error": None,
        }
        for row in good
    ]
    for answer in table.filter(pc.is_valid(table["error"])).to_pylist():
        assert (answer["label"], answer["probabilities"]) == (None, None)
        assert "\n" not in answer["error"]
    labels = dict(sorted(Counter(table["label"].drop_null().to_pylist()).items()))
    assert written == {"rows": ROWS, "errors": len(BAD), "reused": 0, "labels": labels}
    metadata = pq.read_metadata(file).metadata
    assert json.loads(metadata[b"labels"]) == list(LABELS)
    made_by = [metadata[f"retrain.{name}".encode()] for name in ("model", "version", "package")]
    assert made_by == [b"toy", b"1", registered.version.package_digest.encode()]


def test_the_answers_for_a_file_that_has_changed_are_not_taken(source):
    before = source.state()
    assert source.state() == before
    (source.files.root / "00.png").write_bytes(IMAGES["00.png"])
    assert source.state() != before


def test_a_sample_has_the_facts_and_features_of_images_that_have_a_label(toy, source, tmp_path):
    found = sample(toy[1], source, tmp_path)
    assert len(found) == ROWS - len(BAD)
    assert found["features"].null_count == 0
    assert set(found["side"].to_pylist()) == {8.0}


FOLDERS = {
    "train/a/1.png": picture(1),
    "b.png": picture(2),
    "c/d/e/f.JPG": b"no image",
    "b/9": picture(3),
}
OTHERS = {"notes.txt": b"", ".hidden.png": picture(4), "c/1.nef": b""}
NO_UTF8 = {os.fsdecode(b"caf\xe9.png"): picture(5)}
NAMED = [{"bytes": picture(0), "path": "a.png"}, {"bytes": picture(1), "path": None}]


@pytest.mark.parametrize(
    ("files", "column", "expected", "said"),
    [
        (  # a folder is read at any depth, whatever its folders are named
            FOLDERS | OTHERS | NO_UTF8,
            None,
            FOLDERS | {"caf\N{REPLACEMENT CHARACTER}.png": picture(5)},
            "Left out as no images (2): c/1.nef, notes.txt",
        ),
        (  # the names of Parquet files mean no splits
            {
                "test.parquet": parquet({"image": NAMED}),
                "x.parquet": parquet({"image": [picture(2), None]}),
            },
            None,
            {
                "a.png": picture(0),
                "test.parquet#1": picture(1),
                "x.parquet#0": picture(2),
                "x.parquet#1": b"",
            },
            "",
        ),
        (
            {"x.parquet": parquet({"jpg": [picture(2)], "id": [7]})},
            "jpg",
            {"x.parquet#0": picture(2)},
            "",
        ),
    ],
)
def test_an_input_needs_no_classes(tmp_path, files, column, expected, said, caplog):
    write_files(tmp_path, files)
    source = open_source(tmp_path, "photos", column)
    found = dict(zip(source.paths, source.files.read(source.places), strict=True))
    assert [*found.items()] == sorted(expected.items())
    assert said in caplog.text


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "photos: holds no images"),
        ({"notes.txt": b"", ".a.png": b""}, "photos: holds no images"),
        ({"a.png": b"", "b/c.parquet": b""}, "photos: holds Parquet files and images"),
        (
            {"x.parquet": parquet({"jpg": [picture(2)], "id": [7]})},
            "photos: .*but jpg, id: set --image-column to one of them",
        ),
    ],
)
def test_what_is_no_input_is_refused(tmp_path, files, message):
    write_files(tmp_path, files)
    with pytest.raises(UsageError, match=f"--input {message}"):
        open_source(tmp_path, "photos", None)
