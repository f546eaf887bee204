"""What is read from the predictions of a model."""

import numpy as np
import pyarrow as pa

from tasks.data.predictions import FILE, read, write


def test_a_class_that_the_model_does_not_know_has_no_likelihood(tmp_path):
    names = [f"{number:064x}" for number in range(2)]
    columns = {**dict.fromkeys(("path", "sha256", "pixels"), names), "label": ["bee", "cat"]}
    probabilities = np.array([[0.25, 0.75], [0.5, 0.5]], np.float32)
    write(pa.table(columns), [probabilities], ["ant", "bee"], tmp_path / FILE)
    assert read(tmp_path).rows["likelihood"].to_pylist() == [0.75, 0.0]
