"""Chooses the confidence from which on a model accepts its own answers.

It is chosen on the validation split, as the package will answer, and measured on the test split.

Source: Geifman and El-Yaniv, Selective Classification for Deep Neural Networks (2017). A bound of
the precision is asked for, as there, and not the measured precision: of all thresholds, the one
with the largest coverage is taken, and by chance half of those are too low.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from retrain.store import Artifact
from retrain.workload import Evaluate
from tasks.compute.inference import PredictionJob, predict
from tasks.data.metrics import ACCEPTS_NOTHING, wilson
from tasks.data.shards import open_prepared

SPLIT = "val"
STEPS = 10_000  # a threshold has four decimals, so that rounding elsewhere does not change it


def chosen(evaluation: Evaluate, model: Path, images: Artifact) -> float | None:
    """The least confidence of an answer that a model accepts; None if nobody asks for it.

    Args:
        evaluation: Has the precision that is wanted.
        model: A folder that `models.save` wrote.
        images: The output of `preprocess`, or of `embed`.
    """
    if (wanted := evaluation.min_precision) is None:
        return None
    split = open_prepared(images.folder).split(SPLIT)
    job = PredictionJob(model, split.images, evaluation.batch_size, evaluation.precision)
    answers = np.concatenate([probabilities for probabilities, _ in predict(job)])
    right = answers.argmax(axis=1) == split.labels
    return threshold(answers.max(axis=1), right, wanted)


def threshold(confidence: NDArray[np.float32], correct: NDArray[np.bool_], wanted: float) -> float:
    """The lowest threshold that a precision has been shown for.

    Args:
        confidence: float32 (rows,), the probability of each prediction.
        correct: bool (rows,), whether it is correct.
        wanted: The precision that the lower end of Wilson's interval of 95 % has to reach.

    Returns:
        0 to 1; `ACCEPTS_NOTHING` if there is none.
    """
    from scipy.stats import norm

    order = np.argsort(confidence)
    steps = np.arange(STEPS + 1) / STEPS
    below = np.searchsorted(confidence[order].astype(np.float64), steps)
    accepted = len(confidence) - below
    right = np.append(np.cumsum(correct[order][::-1])[::-1], 0)[below]
    # Wilson's interval holds the precisions whose score test does not reject them.
    spread = norm.ppf(0.975) * np.sqrt(wanted * (1 - wanted) * accepted)
    shown = np.flatnonzero((accepted > 0) & (right - wanted * accepted >= spread))
    return float(steps[shown[0]]) if len(shown) else ACCEPTS_NOTHING


def shortfall(wanted: float | None, min_confidence: float | None, rows: int) -> str | None:
    """A sentence if no threshold was found; else None.

    Args:
        wanted: The precision that is wanted; None if none is.
        min_confidence: The threshold that was chosen.
        rows: The number of validation images.
    """
    if min_confidence != ACCEPTS_NOTHING:
        return None
    return (
        f"The model accepts no answer: evaluate.min_precision {wanted:g} is shown for no "
        f"confidence. If all {rows:,} validation images were right, they would show "
        f"{wilson(rows, rows)[0]:.3f}; a better model, more of these images or a lower "
        "evaluate.min_precision helps."
    )
