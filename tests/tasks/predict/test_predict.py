"""Predictions of a registered version: by its own code, and in order."""

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retrain.errors import UsageError
from retrain.project import Project
from retrain.registry.versions import ModelVersion
from retrain.store import Store
from tasks.data import package
from tasks.data.champion import RegisteredVersion
from tasks.predict.predict import Source, open_source, predict, sample
from tasks.promote.package import write_package
from tests.tasks.toy_data import png as picture, write_files, write_parquet
from tests.tasks.toy_model import LABELS, pixels, plain_probabilities, png, write_model

ROWS = 50
BAD = {"10.png": b"", "25.png": b"no image", "26.png": png(pixels(1)[0])[:40]}
UNREADABLE = "30.png"  # it is gone after the input has been listed


def registered(folder: Path, number: int) -> RegisteredVersion:
    """A package as the registry would give it."""
    version = ModelVersion(
        name="toy", weights="", package_digest=package.digest_of_folder(folder), train_digest="",
        family="vit", images={}, classes="", metrics={}, run_id="", version=number, aliases=(),
        verdict=None, created="",
    )  # fmt: skip
    found = RegisteredVersion(Project(folder.parent), version)
    found.__dict__["package"] = folder  # as if it had been downloaded
    return found


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> tuple[Path, RegisteredVersion]:
    """A network, and a package with it whose own decoder inverts each image."""
    root = tmp_path_factory.mktemp("project")
    model = write_model(root / "train").folder / "model"
    write_package(model, "fp32", dict.fromkeys(LABELS, 12), root / "older")
    decoder = root / "older" / "code" / "models" / "image.py"
    text, last = decoder.read_text(), "return np.asarray(image).reshape(size, size, channels)"
    assert last in text
    decoder.write_text(text.replace(last, last.replace("return ", "return 255 - ")))
    return model, registered(root / "older", 2)


def images() -> dict[str, bytes]:
    files = {f"{row:02}.png": png(image) for row, image in enumerate(pixels(ROWS))}
    return files | BAD


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    write_files(folder, images())
    return folder


def source(folder: Path) -> Source:
    """The images of a folder."""
    (folder / UNREADABLE).write_bytes(b"")
    opened = open_source(folder, "images", None)
    (folder / UNREADABLE).unlink()
    return opened


@pytest.fixture(scope="module")
def first(toy, folder, tmp_path_factory):
    """What the older package answers, whose code differs from this clone's; and the file."""
    place = tmp_path_factory.mktemp("first")
    written, _ = predict(toy[1], source(folder), place / "out.parquet", Store(place / "store"))
    assert [path.name for path in place.iterdir() if path.is_file()] == ["out.parquet"]
    assert not list((place / "store").rglob("*.parquet"))
    return written, place / "out.parquet"


def test_the_package_answers_with_its_own_code_for_each_image_in_order(toy, first):
    _, file = first
    table = pq.read_table(file)
    assert table.column_names == [
        "path", "label", "probabilities", "sha256", "error"
    ]  # fmt: skip
    assert table["path"].to_pylist() == sorted(images())
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in images().items()}
    digests[UNREADABLE] = None
    assert table["sha256"].to_pylist() == [digests[name] for name in sorted(digests)]
    expected = plain_probabilities(toy[0], 255 - pixels(ROWS), 256)
    for row, name in enumerate(sorted(images())):
        label, probabilities, error = (
            table[column][row].as_py() for column in ("label", "probabilities", "error")
        )
        if name in BAD or name == UNREADABLE:
            assert (label, probabilities) == (None, None)
            assert error
            assert "\n" not in error
        else:
            assert error is None
            assert np.abs(np.array(probabilities) - expected[row]).max() < 1e-6
            assert label == LABELS[expected[row].argmax()]
    assert table["error"][10].as_py() == "the image does not decode: empty"
    assert table["error"][30].as_py() == "No such file or directory"


def test_the_file_says_what_made_it(toy, first):
    written, file = first
    labels = [label for label in pq.read_table(file)["label"].to_pylist() if label]
    assert (written["rows"], written["errors"]) == (ROWS, len(BAD) + 1)
    assert written["labels"] == {label: labels.count(label) for label in sorted(set(labels))}
    metadata = pq.read_metadata(file).metadata
    assert json.loads(metadata[b"labels"]) == list(LABELS)
    assert metadata[b"retrain.model"] == b"toy"
    assert metadata[b"retrain.version"] == b"2"
    assert metadata[b"retrain.package"].decode() == toy[1].version.package_digest


def test_the_answers_for_a_file_that_has_changed_are_not_taken(folder):
    before = source(folder).state()
    assert source(folder).state() == before
    (folder / "00.png").write_bytes((folder / "00.png").read_bytes())
    assert source(folder).state() != before


def test_a_sample_has_the_facts_and_features_of_images_that_have_a_label(toy, folder, tmp_path):
    found = sample(toy[1], source(folder), tmp_path)
    assert len(found) == ROWS - len(BAD) - 1
    assert found["features"].null_count == 0
    assert set(found["side"].to_pylist()) == {8.0}


def read(folder, column=None):
    """The name and the content of each image."""
    source = open_source(folder, "photos", column)
    return list(zip(source.paths, source.files.read(source.places), strict=True))


def test_a_folder_is_read_at_any_depth_whatever_its_folders_are_named(tmp_path, caplog):
    files = {
        "train/a/1.png": picture(1),
        "b.png": picture(2),
        "c/d/e/f.JPG": b"no image",
        "b/9": picture(3),
    }
    write_files(tmp_path, files | {"notes.txt": b"", ".hidden.png": picture(4)})
    write_files(tmp_path, {os.fsdecode(b"caf\xe9.png"): picture(5)})  # a name that is no UTF-8
    files["caf\N{REPLACEMENT CHARACTER}.png"] = picture(5)
    assert sorted(read(tmp_path)) == sorted(files.items())
    assert "Left out as no images (1): notes.txt" in caplog.text


def test_parquet_needs_no_classes_and_its_names_mean_no_splits(tmp_path):
    named = [{"bytes": picture(0), "path": "a.png"}, {"bytes": picture(1), "path": None}]
    write_parquet(tmp_path / "test.parquet", named, ["ant", "bee"])
    pq.write_table(pa.table({"image": [picture(2), None]}), tmp_path / "x.parquet")
    assert read(tmp_path) == [
        ("a.png", picture(0)),
        ("test.parquet#1", picture(1)),
        ("x.parquet#0", picture(2)),
        ("x.parquet#1", b""),
    ]


def test_another_column_is_named_by_an_option(tmp_path):
    pq.write_table(pa.table({"jpg": [picture(2)], "id": [7]}), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match="but jpg, id: set --image-column to one of them"):
        read(tmp_path)
    assert read(tmp_path, "jpg") == [("x.parquet#0", picture(2))]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((), "photos: holds no images"),
        (("notes.txt", ".a.png"), "photos: holds no images"),
        (("a.png", "b/c.parquet"), "photos: holds Parquet files and images"),
    ],
)
def test_what_is_no_input_is_refused(tmp_path, names, message):
    write_files(tmp_path, dict.fromkeys(names, b""))
    with pytest.raises(UsageError, match=f"--input {message}"):
        open_source(tmp_path, "photos", None)
