"""What is read from the predictions of a model."""

import numpy as np
import pyarrow as pa

from tasks.data.predictions import likelihoods


def test_a_class_that_the_model_does_not_know_has_no_likelihood():
    probabilities = np.array([[0.25, 0.75], [0.5, 0.5], [0.125, 0.875]], np.float32)
    labels = pa.array(["bee", "cat", None])
    assert likelihoods(probabilities, labels, ["ant", "bee"]).tolist() == [0.75, 0.0, 0.0]
