"""What is read from the predictions of a model."""

import numpy as np
import pyarrow as pa
import pytest
from scipy.special import softmax

from tasks.data.predictions import FILE, calibration_before, read
from tasks.evaluate import predictions
from tasks.evaluate.predictions import Answers


def test_a_class_that_the_model_does_not_know_has_no_likelihood(tmp_path):
    names = [f"{number:064x}" for number in range(2)]
    rows = pa.RecordBatch.from_arrays(
        [*map(pa.array, (names, names, names, ["bee", "cat"]))], [*"abcd"]
    )
    probabilities = np.array([[0.25, 0.75], [0.5, 0.5]], np.float32)
    answers = Answers(rows, probabilities.argmax(axis=1), probabilities)
    predictions.write([answers], ["ant", "bee"], tmp_path / FILE)
    assert read(tmp_path).rows["likelihood"].to_pylist() == [0.75, 0.0]


def test_the_calibration_without_the_temperature_is_that_of_the_logits(tmp_path):
    random, labels = np.random.default_rng(0), ["ant", "bee", "cat"]
    logits, true = random.normal(size=(200, 3)) * 3, random.choice(labels, 200)
    for temperature, name in ((1.0, "plain"), (2.5, "scaled")):
        (tmp_path / name).mkdir()
        probabilities = softmax(logits / temperature, axis=1).astype(np.float32)
        names = [f"{number:064x}" for number in range(200)]
        rows = pa.RecordBatch.from_arrays([*map(pa.array, (names, names, names, true))], [*"abcd"])
        answers = Answers(rows, probabilities.argmax(axis=1), probabilities)
        predictions.write([answers], labels, tmp_path / name / FILE)
    before = calibration_before(tmp_path / "scaled", 2.5)
    expected = read(tmp_path / "plain").tally(labels).calibration
    assert before.error == pytest.approx(expected.error, abs=1e-6)
    assert before.error != pytest.approx(read(tmp_path / "scaled").tally(labels).calibration.error)
