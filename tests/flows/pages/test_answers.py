"""What a page shows of a model's answers."""

import numpy as np

from flows.pages.answers import coverage


def test_the_precision_of_the_most_confident_answers_is_drawn():
    assert coverage(np.array([True, True, True, False])) == [
        (0.25, 1.0), (0.5, 1.0), (0.75, 1.0), (1.0, 0.75),
    ]  # fmt: skip
