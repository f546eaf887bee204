"""Predictions of a registered version: by its own code, in order, and the same after a kill."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import models
from flows.compare import compare_on
from flows.predict import find_model_of
from models.network import Observed
from retrain.errors import UsageError
from retrain.runs.records import FlowRun
from retrain.store import Store
from tasks.compute.served import PackageProcess
from tasks.data import image_facts, raw_dataset
from tasks.predict import predict as module
from tasks.predict.inputs import Source, open_labelled, open_source
from tasks.predict.origin import read_origin
from tasks.predict.parts import Job, Worker
from tasks.predict.predict import predict, sample
from tests.tasks.toy_data import write_files
from tests.tasks.toy_model import LABELS, pixels, plain_probabilities, png

ROOT = Path(__file__).parents[3]
ROWS, UNIT = 50, 20  # three units
BAD = {"10.png": b"", "25.png": b"no image", "26.png": png(pixels(1)[0])[:40]}
UNREADABLE = "30.png"  # no process may read so much as its first byte

# Classifies with one worker, and ends like a killed process when it has written two units.
KILLED = """
import os, signal, sys
from dataclasses import replace
from pathlib import Path
from retrain.project import Project
from retrain.registry import versions
from retrain.store import Store
from tasks.data import raw_dataset
from tasks.data.champion import Registered
from tasks.predict.inputs import open_source
from tasks.predict.parts import Worker
from tasks.predict.predict import predict

raw_dataset.WORTH_ROWS = int(sys.argv[4])
write = Worker.__call__

def killed(self, unit):
    if len([*store.rglob("*.parquet")]) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return write(self, unit)

Worker.__call__ = killed
root, images, store = map(Path, sys.argv[1:4])
project = Project(root)
older = Registered(project, versions.find(project, "toy", "2"))
source = replace(open_source(images, "images", None), state="")
predict(older, source, root / "killed.parquet", Store(store))
"""


@pytest.fixture(autouse=True)
def small_units(monkeypatch):
    monkeypatch.setattr(raw_dataset, "WORTH_ROWS", UNIT)


def images() -> dict[str, bytes]:
    files = {f"{row:02}.png": png(image) for row, image in enumerate(pixels(ROWS))}
    return files | BAD


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    write_files(folder, images())
    (folder / UNREADABLE).unlink()
    (folder / UNREADABLE).symlink_to("/proc/self/mem")
    return folder


def source(folder: Path) -> Source:
    return open_source(folder, "images", None)


@pytest.fixture(scope="module")
def first(toy, folder, tmp_path_factory):
    """What the older package answers, whose code differs from this clone's; and the file."""
    place = tmp_path_factory.mktemp("first")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(raw_dataset, "WORTH_ROWS", UNIT)
        written, _ = predict(
            toy.older, source(folder), place / "out.parquet", Store(place / "store")
        )
    assert [path.name for path in place.iterdir() if path.is_file()] == ["out.parquet"]
    assert not list((place / "store").rglob("*.parquet"))
    return written, place / "out.parquet"


def test_the_package_answers_with_its_own_code_for_each_image_in_order(toy, first):
    _, file = first
    table = pq.read_table(file)
    assert table.column_names == ["path", "label", "probabilities", "sha256", "error"]
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
    assert table["error"][30].as_py() == "Input/output error"


def test_the_file_says_what_made_it_and_what_is_in_it(toy, first):
    written, file = first
    metadata = {
        key.decode(): value.decode() for key, value in pq.read_metadata(file).metadata.items()
    }
    assert json.loads(metadata["labels"]) == list(LABELS)
    assert metadata["retrain.model"] == "toy"
    assert metadata["retrain.version"] == "2"
    assert metadata["retrain.package"] == toy.older.version.package_digest
    assert metadata["retrain.images"] == written.images
    assert (written.rows, written.errors, written.reused) == (ROWS, len(BAD) + 1, 0)
    labels = [label for label in pq.read_table(file)["label"].to_pylist() if label]
    assert written.labels == {label: labels.count(label) for label in sorted(set(labels))}


def test_a_file_leads_to_the_version_that_wrote_it(toy, first, tmp_path):
    written, file = first
    origin, version = find_model_of(toy.project, file)
    assert version == toy.older.version
    assert (origin["rows"], origin["images"], origin["unchanged"]) == (ROWS, written.images, True)
    table = pq.read_table(file)
    copy, paths = tmp_path / "copy.parquet", table["path"].to_pylist()
    pq.write_table(table, copy)
    assert (read_origin(copy)["version"], read_origin(copy)["unchanged"]) == (2, None)
    table = table.replace_schema_metadata(metadata_of(file))
    column = pa.array(["x", *paths[1:]], pa.string())
    pq.write_table(table.set_column(0, table.field(0), column), copy)
    assert read_origin(copy)["unchanged"] is False


def metadata_of(file: Path) -> dict[bytes, bytes]:
    """All metadata, also what was added at the end."""
    metadata = pq.read_metadata(file).metadata
    return {key: value for key, value in metadata.items() if key != b"ARROW:schema"}


def test_a_file_of_something_else_is_refused(toy, first, tmp_path):
    file = tmp_path / "other.parquet"
    table = pq.read_table(first[1])
    pq.write_table(table.replace_schema_metadata({}), file)
    with pytest.raises(UsageError, match="does not say which model wrote it"):
        read_origin(file)
    metadata = metadata_of(first[1]) | {b"retrain.package": b"of another registry"}
    pq.write_table(table.replace_schema_metadata(metadata), file)
    with pytest.raises(ValueError, match="package of another r, but toy version 2 of"):
        find_model_of(toy.project, file)
    metadata[b"retrain.version"] = b"9"
    pq.write_table(table.replace_schema_metadata(metadata), file)
    with pytest.raises(UsageError, match="toy has no version '9'"):
        find_model_of(toy.project, file)
    file.write_bytes(b"PAR1 and no more")
    with pytest.raises(UsageError, match="is no Parquet file"):
        read_origin(file)


def test_a_killed_run_goes_on_and_the_file_is_the_same(toy, folder, first, tmp_path):
    store = tmp_path / "store"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, toy.project.root, folder, store, str(UNIT)],
        cwd=ROOT,
        env=os.environ | {"LOKY_MAX_CPU_COUNT": "1"},
        capture_output=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    parts = [*store.rglob("*.parquet")]
    assert len(parts) == 2
    images = replace(source(folder), state="")  # for each process, its own memory is another file
    again, _ = predict(toy.older, images, tmp_path / "out.parquet", Store(store))
    assert again.reused == 2
    assert (tmp_path / "out.parquet").read_bytes() == first[1].read_bytes()
    assert not any(path.exists() for path in parts)


def test_units_of_another_package_and_of_files_that_have_changed_are_others(toy, folder, tmp_path):
    copy = tmp_path / "images"
    shutil.copytree(folder, copy, symlinks=True)

    def key(registered):
        opened = source(copy)
        return module._key(registered, opened, opened.units())

    keys = [key(toy.older), key(toy.champion)]
    (copy / "03.png").write_bytes((copy / "03.png").read_bytes())  # of the same size
    keys.append(key(toy.older))
    (copy / "99.png").write_bytes(b"")
    keys.append(key(toy.older))
    assert key(toy.older) == keys[-1]
    assert len(set(keys)) == 4


def test_a_sample_is_decided_by_the_images_and_nothing_else_is_classified(
    toy, folder, first, tmp_path, monkeypatch
):
    monkeypatch.setattr(image_facts, "SAMPLE", 20)
    monkeypatch.setattr(image_facts, "WITH_FEATURES", 8)
    found = sample(toy.older, source(folder), Store(tmp_path))
    table = pq.read_table(first[1])
    rows = table.filter(
        [
            label is not None and image_facts.is_sampled(image_facts.lot(path, sha256), ROWS)
            for label, path, sha256 in zip(
                *(table[n].to_pylist() for n in ("label", "path", "sha256")), strict=True
            )
        ]
    )
    assert 5 < len(rows) < 35
    assert found["label"] == rows["label"]
    most = [max(given) for given in rows["probabilities"].to_pylist()]
    assert np.abs(found["confidence"].to_numpy() - most).max() < 1e-6
    assert set(found["side"].to_pylist()) == {8.0}
    # What the last layer of the package's network, which inverts the images, takes.
    place = [sorted(images()).index(path) for path in rows["path"].to_pylist()]
    network = Observed(models.load(toy.model).module)
    inverted = torch.from_numpy(255 - pixels(ROWS)[place])
    _, expected = network.answer(inverted, "fp32")
    named = zip(rows["path"].to_pylist(), rows["sha256"].to_pylist(), strict=True)
    kept = [image_facts.has_features(image_facts.lot(*each), ROWS) for each in named]
    assert 1 < sum(kept) < len(kept)
    for given, wanted, is_kept in zip(found["features"].to_pylist(), expected, kept, strict=True):
        assert (given is not None) == is_kept
        if is_kept:
            assert np.abs(np.array(given) - wanted.numpy()).max() < 1e-5


def test_a_package_that_cannot_tell_its_features_only_classifies(toy, tmp_path):
    package = tmp_path / "package"
    shutil.copytree(toy.champion.package, package)
    for code in package.rglob("serving.py"):  # two: that which MLflow runs is a copy
        code.write_text(code.read_text().replace("predict_with_features", "_not_in_old_ones"))
    process = PackageProcess(package, tmp_path)
    try:
        given = process.classify([png(image) for image in pixels(2)], [True, True])
    finally:
        process.close()
    assert given["features"].null_count == 2
    assert given["error"].null_count == 2


def test_actors_write_the_same_file(toy, folder, first, tmp_path, monkeypatch, ray_session):
    monkeypatch.setattr(module, "_seconds", lambda *_: 1e6)
    predict(toy.older, source(folder), tmp_path / "out.parquet", Store(tmp_path / "store"))
    assert (tmp_path / "out.parquet").read_bytes() == first[1].read_bytes()


def test_two_versions_are_compared_by_what_each_answers(toy, tmp_path, monkeypatch):
    monkeypatch.setattr(raw_dataset, "WORTH_ROWS", 1000)  # one process for each
    files = {f"{LABELS[row % 4]}/{row:02}.png": png(image) for row, image in enumerate(pixels(40))}
    write_files(tmp_path / "images", files | {"ant/bad.png": b"no image"})
    (toy.project.root / "params.yaml").write_text("workloads: {}\n")
    source = open_labelled(tmp_path / "images", "images", None, None)
    store, models = Store(tmp_path / "store"), (toy.champion.version, toy.older.version)
    with store.holding("run"):
        found, differences = compare_on(
            FlowRun(toy.project, store, "run", "compare"), models, source
        )
    rows = [int(name[4:6]) for name in sorted(files)]
    a, b = (
        plain_probabilities(toy.model, images, 256)[rows].argmax(1)
        for images in (pixels(40), 255 - pixels(40))
    )
    labels = np.array(rows) % 4
    assert (found["shown"], found["unanswered"], found["images"]) == (41, 1, 40)
    assert found["same"] == (a == b).sum() < 40
    accuracy = found["metrics"]["accuracy"]
    assert (accuracy["a"], accuracy["b"]) == ((a == labels).mean(), (b == labels).mean())
    names = [name for name, differs in zip(sorted(files), a != b, strict=True) if differs]
    assert differences["path"].to_pylist() == names
    assert differences["b_label"].to_pylist() == [LABELS[n] for n in b[a != b]]
    assert not list((tmp_path / "store").rglob("*.parquet"))


def test_a_package_that_does_not_load_ends_the_run_with_its_reason(toy, folder, tmp_path):
    copy = tmp_path / "package"
    shutil.copytree(toy.champion.package, copy)
    (copy / "code" / "models" / "__init__.py").write_text("raise RuntimeError('too old')\n")
    opened = source(folder)
    worker = Worker(Job("toy version 9", copy, opened, ROWS, False, tmp_path), "cpu")
    with pytest.raises(ValueError, match=r"toy version 9: .*too old"):
        worker(opened.units()[0])
    assert not list(tmp_path.glob("*.parquet"))
