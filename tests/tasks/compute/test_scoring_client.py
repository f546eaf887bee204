"""A program answers for a package: what it reads, when it ends, and what its answers are."""

import hashlib
import shutil
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
    """Images in files and in two Parquet files; one has another name for its column of bytes."""
    root = tmp_path_factory.mktemp("images")
    encoded = [png(image) for image in pixels(ROWS)]
    write_files(root, {f"{row:02}.png": data for row, data in enumerate(encoded[:10])})
    pq.write_table(pa.table({"jpg": encoded[10:]}), root / "x.parquet", row_group_size=3)
    places = [(f"{row:02}.png", 0) for row in range(10)]
    places += [("x.parquet", row) for row in range(10)]
    return ImageFiles(root, "jpg"), places, encoded


def test_it_says_what_a_plain_loop_says_of_files_and_of_rows(model, package, images, tmp_path):
    files, places, encoded = images
    shown = []
    wanted = [row == 3 for row in range(ROWS)]
    answers = pa.concat_tables(classify(package, files, places, tmp_path, shown.append, wanted))
    expected = plain_probabilities(model, pixels(ROWS), ROWS)
    assert np.abs(as_matrix(answers, "probabilities") - expected).max() < 1e-6
    assert answers["label"].to_pylist() == [LABELS[best] for best in expected.argmax(1)]
    assert answers["sha256"].to_pylist() == [hashlib.sha256(data).hexdigest() for data in encoded]
    assert answers["error"].null_count == ROWS
    assert [row for row, each in enumerate(answers["features"].to_pylist()) if each] == [3]
    assert sum(shown) == ROWS


def test_a_call_that_was_ended_goes_on_and_the_answers_are_the_same(package, images, tmp_path):
    files, places, _ = images
    once = pa.concat_tables(classify(package, files, places, tmp_path))
    [file] = (tmp_path / scoring_client.ANSWERS).iterdir()
    pq.write_table(pq.read_table(file).slice(0, 7), file)
    again = pa.concat_tables(classify(package, files, places, tmp_path))
    assert len([*(tmp_path / scoring_client.ANSWERS).iterdir()]) == 2
    assert again["sha256"].to_pylist() == once["sha256"].to_pylist()
    assert np.abs(as_matrix(again, "probabilities") - as_matrix(once, "probabilities")).max() < 1e-6


def test_a_bad_image_and_a_file_that_is_gone_are_errors_of_their_rows(package, images, tmp_path):
    encoded = images[2]
    write_files(tmp_path, {"0.png": encoded[0], "1.png": b"no image", "3.png": encoded[3]})
    some = [(f"{row}.png", 0) for row in range(4)]
    answers = pa.concat_tables(classify(package, ImageFiles(tmp_path), some, tmp_path / "asked"))
    errors = answers["error"].to_pylist()
    assert errors[0] is errors[3] is None
    assert errors[1].startswith("the image does not decode: not an image")
    assert errors[2] == "No such file or directory"
    assert answers["sha256"].to_pylist()[2] is None
    assert [label is None for label in answers["label"].to_pylist()] == [False, True, True, False]


def changed(package, folder, name, before, after):
    """A copy of a package with other code."""
    shutil.copytree(package, folder)
    file = folder / "code/models" / name
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))
    return folder


@pytest.mark.slow
def test_packages_with_other_code_answer_in_turns_and_a_broken_one_says_why(
    model, package, images, tmp_path
):
    files, places, _ = images
    last = "np.asarray(image).reshape(size, size, channels)"
    other = changed(package, tmp_path / "other", "image.py", last, f"255 - {last}")
    broken = changed(package, tmp_path / "broken", "image.py", "import io", "raise OSError('old')")
    requests = ((package, pixels(ROWS)), (other, 255 - pixels(ROWS)), (package, pixels(ROWS)))
    for number, (each, seen) in enumerate(requests):
        folder = tmp_path / str(number)
        answers = pa.concat_tables(classify(each, files, places, folder))
        expected = plain_probabilities(model, seen, ROWS)
        assert np.abs(as_matrix(answers, "probabilities") - expected).max() < 1e-6
    with pytest.raises(ValueError, match="Error: old"):
        [*classify(broken, files, places, tmp_path / "3")]
    assert pa.concat_tables(classify(package, files, places, tmp_path / "4")) == answers


@pytest.mark.slow
def test_the_machines_of_a_cluster_give_the_same_answers_to_the_bit(
    package, images, tmp_path, monkeypatch, ray_session
):
    import ray

    files, places, _ = images
    many = places * (scoring_worker.PART // ROWS + 1)
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
