"""A program answers for a package: what it reads, when it ends, and what its answers are."""

import hashlib
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.compute import scoring_client, scoring_worker
from tasks.compute.scoring_client import as_matrix, classify
from tasks.data.raw_images import ImageFiles
from tasks.promote.package import write_package
from tests.tasks.toy_data import write_files
from tests.tasks.toy_model import LABELS, pixels, plain_probabilities, png, write_model

ROWS = 20


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("train")).folder / "model"


@pytest.fixture(scope="module")
def package(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("package") / "package"
    write_package(model, "fp32", dict.fromkeys(LABELS, 12), folder)
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Images in files and in two Parquet files; then one that is broken, and one that is gone."""
    root = tmp_path_factory.mktemp("images")
    encoded = [png(image) for image in pixels(ROWS)]
    write_files(root, {f"{row:02}.png": data for row, data in enumerate(encoded[:10])})
    write_files(root, {"bad.png": b"no image"})
    pq.write_table(pa.table({"jpg": encoded[10:]}), root / "x.parquet", row_group_size=3)
    places = [(f"{row:02}.png", 0) for row in range(10)]
    places += [("x.parquet", row) for row in range(10)]
    return ImageFiles(root, "jpg"), [*places, ("bad.png", 0), ("gone.png", 0)], encoded


@pytest.fixture(scope="module")
def answered(package, images, tmp_path_factory):
    """What the package says of them, and the folder with the answers."""
    files, places, _ = images
    folder, shown = tmp_path_factory.mktemp("answered"), []
    wanted = [row == 3 for row in range(len(places))]
    answers = pa.concat_tables(classify(package, files, places, folder, shown.append, wanted))
    assert sum(shown) == len(answers) == ROWS + 2
    return answers, folder


def test_it_says_what_a_plain_loop_says_of_files_and_of_rows_and_why_two_cannot_be_read(
    model, answered, images
):
    answers = answered[0].slice(0, ROWS)
    expected = plain_probabilities(model, pixels(ROWS), ROWS)
    assert np.abs(as_matrix(answers, "probabilities") - expected).max() < 1e-6
    assert answers["label"].to_pylist() == [LABELS[best] for best in expected.argmax(1)]
    digests = [hashlib.sha256(data).hexdigest() for data in images[2]]
    assert answers["sha256"].to_pylist() == digests
    assert answers["error"].null_count == ROWS
    assert [row for row, each in enumerate(answers["features"].to_pylist()) if each] == [3]
    bad, gone = answered[0].slice(ROWS).to_pylist()
    assert bad["error"].startswith("the image does not decode: not an image")
    assert gone["error"] == "No such file or directory"
    assert bad["label"] is gone["label"] is gone["sha256"] is None


def test_a_call_that_was_ended_goes_on_and_the_answers_are_the_same(package, images, answered):
    files, places, _ = images
    once, folder = answered
    [file] = (folder / scoring_client.ANSWERS).iterdir()
    pq.write_table(pq.read_table(file).slice(0, 7), file)
    again = pa.concat_tables(classify(package, files, places, folder))
    assert len([*(folder / scoring_client.ANSWERS).iterdir()]) == 2
    assert again["sha256"] == once["sha256"]
    of = [as_matrix(each.slice(0, ROWS), "probabilities") for each in (again, once)]
    assert np.abs(of[0] - of[1]).max() < 1e-6


@pytest.mark.slow
def test_the_machines_of_a_cluster_give_the_same_answers_to_the_bit(
    package, images, tmp_path, monkeypatch, ray_session
):
    import ray

    files, places, _ = images
    many = places[:ROWS] * (scoring_worker.PART // ROWS + 1)
    here = pa.concat_tables(classify(package, files, many, tmp_path / "here"))
    monkeypatch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)
    there = pa.concat_tables(classify(package, files, many, tmp_path / "there"))
    assert (tmp_path / "there/package").exists()  # for all machines
    assert len(there) == len(many)
    assert there == here


def test_batches_are_bounded_in_rows_and_bytes_wherever_a_program_begins(tmp_path, monkeypatch):
    monkeypatch.setattr(scoring_worker, "MAX_ROWS", 3)
    monkeypatch.setattr(scoring_worker, "MAX_BYTES", 10)
    monkeypatch.setattr(scoring_worker, "PART", 6)
    sizes = [1, 1, 1, 1, 6, 6, 20, 1]
    write_files(tmp_path, {str(row): b"x" * size for row, size in enumerate(sizes)})
    names = [str(row).encode() for row in range(len(sizes))]
    request = pa.table({"file": names, "row": [0] * len(sizes)})

    def lengths(first, end):
        batches = scoring_worker.batches(ImageFiles(tmp_path), request, first, end)
        return [[len(image) for image, _ in batch] for _, batch in batches]

    assert lengths(0, 8) == [[1, 1, 1], [1, 6], [6], [20], [1]]
    assert lengths(0, 6) + lengths(6, 8) == lengths(0, 3) + lengths(3, 8) == lengths(0, 8)


def test_a_program_ends_when_the_process_that_asked_is_gone(package, images, tmp_path):
    fifo = tmp_path / "request.parquet"
    subprocess.run(["mkfifo", fifo], check=True)  # it waits for the request
    command = [sys.executable, "-I", "-B", scoring_client.PROGRAM, fifo, tmp_path, "1", "0", "9"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    process.stdin.close()
    assert process.wait(60) == 1


def test_a_network_that_tells_no_features_is_refused():
    features = pa.array([None, None], pa.list_(pa.float32()))
    nothing = pa.table({"features": features, "error": pa.nulls(2, pa.string())})
    with pytest.raises(ValueError, match="The model does not tell the embeddings of images"):
        as_matrix(nothing, "features")
