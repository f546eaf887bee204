"""What is read from the predictions of a model."""

import numpy as np
import pyarrow as pa

from tasks.data.predictions import FILE, read
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
