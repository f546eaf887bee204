"""Predictions of a registered version: by its own code, in order, and the same after a kill."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from time import sleep

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retrain.errors import UsageError
from retrain.project import Project
from retrain.registry.versions import ModelVersion
from retrain.store import Store
from tasks.compute import package_client, package_worker
from tasks.data import package
from tasks.data.champion import Registered
from tasks.predict.predict import Source, open_source, predict, sample
from tasks.promote.package import write_package
from tests.tasks.toy_data import png as picture, write_files, write_parquet
from tests.tasks.toy_model import LABELS, pixels, plain_probabilities, png, write_model

ROOT = Path(__file__).parents[3]
ROWS, BATCH = 50, 16
WAITS = """
    import time
    time.sleep(1.0 * bool(first))
"""
BAD = {"10.png": b"", "25.png": b"no image", "26.png": png(pixels(1)[0])[:40]}
UNREADABLE = "30.png"  # it is gone after the input has been listed
# Classifies with the program that is named.
CLASSIFIES = """
import sys
from pathlib import Path
from retrain.store import Store
from tasks.compute import package_client
from tasks.predict.predict import predict
from tests.tasks.predict.test_predict import registered, source

package, images, store = map(Path, sys.argv[1:4])
package_client.PROGRAM = Path(sys.argv[4])
predict(registered(package, 2), source(images), package.parent / "killed.parquet", Store(store))
"""


@dataclass(frozen=True)
class Toy:
    """A network that is registered twice.

    Attributes:
        model: The network's folder.
        champion: Its package as it is.
        older: A package with the same network, whose own decoder inverts each image.
    """

    model: Path
    champion: Registered
    older: Registered


def registered(folder: Path, number: int) -> Registered:
    """A package as the registry would give it."""
    version = ModelVersion(
        name="toy", weights="", package_digest=package.digest_of_folder(folder), train_digest="",
        family="vit", images={}, classes="", metrics={}, run_id="", version=number, aliases=(),
        verdict=None, created="",
    )  # fmt: skip
    found = Registered(Project(folder.parent), version)
    found.__dict__["package"] = folder  # as if it had been downloaded
    return found


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> Toy:
    root = tmp_path_factory.mktemp("project")
    model = write_model(root / "train").folder / "model"
    write_package(model, "fp32", dict.fromkeys(LABELS, 12), root / "package")
    shutil.copytree(root / "package", root / "older")
    decoder = root / "older" / "code" / "models" / "image.py"
    text, last = decoder.read_text(), "return np.asarray(image).reshape(size, size, channels)"
    assert last in text
    decoder.write_text(text.replace(last, last.replace("return ", "return 255 - ")))
    return Toy(model, registered(root / "package", 1), registered(root / "older", 2))


@pytest.fixture(scope="module", autouse=True)
def small_batches(tmp_path_factory):
    """The program that answers, with batches of a few images, of which each but the first waits."""
    folder = tmp_path_factory.mktemp("clone") / "tasks" / "compute"
    folder.mkdir(parents=True)
    text = Path(package_worker.__file__).read_text(encoding="utf-8")
    for before, after in (
        ("parents[2]\n", f"parents[2]\nCLONE = {str(ROOT)!r}\n"),
        ("sys.path.insert(0, str(PROJECT))", "sys.path.insert(0, CLONE)"),
        ("MAX_ROWS, MAX_BYTES = 256,", f"MAX_ROWS, MAX_BYTES = {BATCH},"),
        (
            "    first, images = batch\n",
            f"    first, images = batch\n{WAITS}",
        ),
    ):
        assert text.count(before) == 1
        text = text.replace(before, after)
    (folder / "package_worker.py").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(package_client, "PROGRAM", folder / "package_worker.py")
        yield


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
def first(toy, folder, small_batches, tmp_path_factory):
    """What the older package answers, whose code differs from this clone's; and the file."""
    place = tmp_path_factory.mktemp("first")
    written, _ = predict(toy.older, source(folder), place / "out.parquet", Store(place / "store"))
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
    expected = plain_probabilities(toy.model, 255 - pixels(ROWS), 256)
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
    assert metadata[b"retrain.package"].decode() == toy.older.version.package_digest


@pytest.mark.slow
def test_a_killed_run_goes_on_and_the_file_is_the_same(toy, folder, first, tmp_path):
    store = tmp_path / "store"
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            CLASSIFIES,
            toy.older.package,
            folder,
            store,
            package_client.PROGRAM,
        ],
        cwd=ROOT,
    )
    while not (parts := [*store.rglob("answers/*.parquet")]):
        assert process.poll() is None
        sleep(0.05)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    predict(toy.older, source(folder), tmp_path / "out.parquet", Store(store))
    assert (tmp_path / "out.parquet").read_bytes() == first[1].read_bytes()
    assert not any(path.exists() for path in parts)


def test_the_answers_for_a_file_that_has_changed_are_not_taken(folder):
    before = source(folder).state()
    assert source(folder).state() == before
    (folder / "00.png").write_bytes((folder / "00.png").read_bytes())
    assert source(folder).state() != before


def test_a_sample_has_the_facts_and_features_of_images_that_have_a_label(toy, folder, tmp_path):
    found = sample(toy.older, source(folder), tmp_path)
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
