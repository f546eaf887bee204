"""Calculates the metrics of predictions, on which the gate may set bounds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

CALIBRATION_BINS = 15  # as Guo et al. (2017) use
CLASSES = "classes.json"  # the file of an evaluation with what `outcomes` gives


@dataclass(frozen=True)
class Predictions:
    """Predictions for some rows of a split.

    Attributes:
        labels: int64 (rows,), the true classes.
        predicted: int64 (rows,), the most probable classes.
        confidence: float32 (rows,), the probabilities of the predicted classes.
        likelihood: float32 (rows,), the probabilities of the true classes; 0 for a class that the
            model does not know.
    """

    labels: NDArray[np.int64]
    predicted: NDArray[np.int64]
    confidence: NDArray[np.float32]
    likelihood: NDArray[np.float32]

    def take(self, rows: NDArray[np.int64]) -> "Predictions":
        """The predictions for some rows, by their indices; an index may come more than once."""
        return Predictions(
            self.labels[rows], self.predicted[rows], self.confidence[rows], self.likelihood[rows]
        )


def losses(likelihood: NDArray[np.float32]) -> NDArray[np.float64]:
    """The log loss of each row, in nats: float64 (rows,).

    The probability is clipped to the smallest step of float32 above 0 and below 1, as that of
    scikit-learn is, so that no loss is above 15.95.

    Args:
        likelihood: float32 (rows,), the probabilities of the true classes.
    """
    step = np.finfo(np.float32).eps
    return -np.log(np.clip(likelihood.astype(np.float64), step, 1 - step))


@dataclass(frozen=True)
class CalibrationBins:
    """Predictions by confidence, in bins of equal width; empty bins are left out.

    Attributes:
        confidence: float64 (bins,), the mean confidence.
        accuracy: float64 (bins,), the fraction that is correct.
        share: float64 (bins,), the fraction of all rows.
    """

    confidence: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    share: NDArray[np.float64]

    @property
    def error(self) -> float:
        """The expected calibration error, 0 to 1."""
        return float(np.sum(self.share * np.abs(self.accuracy - self.confidence)))


def calibration(confidence: NDArray[np.float32], correct: NDArray[np.bool_]) -> CalibrationBins:
    """Compares confidence with accuracy.

    Source: Guo et al., On Calibration of Modern Neural Networks (2017), equations 2 and 3: bin m of
    M holds the confidences in ((m-1)/M, m/M].

    Args:
        confidence: float32 (rows,), the probability of each prediction.
        correct: bool (rows,), whether it is correct.
    """
    exact = confidence.astype(np.float64)
    bins = np.ceil(exact * CALIBRATION_BINS).astype(np.int64) - 1
    rows, hits, sums = (
        np.bincount(bins, weights, CALIBRATION_BINS) for weights in (None, correct, exact)
    )
    used = rows > 0
    return CalibrationBins(sums[used] / rows[used], hits[used] / rows[used], rows[used] / len(bins))


@dataclass(frozen=True)
class Tally:
    """The predictions for a whole split, with the counts and metrics that follow from them.

    Attributes:
        names: The classes: those of the data, then those that only the model knows.
        classes: The number of the classes that are classes of the data.
        predictions: At least one, with indices of the names.
    """

    names: Sequence[str]
    classes: int
    predictions: Predictions

    @property
    def rows(self) -> int:
        """The number of predictions."""
        return len(self.predictions.labels)

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Bool (rows,): whether each prediction is correct."""
        return np.equal(self.predictions.labels, self.predictions.predicted)

    @cached_property
    def of_classes(self) -> "ClassCounts":
        """The counts of the classes of the data."""
        labels, predicted = self.predictions.labels, self.predictions.predicted
        columns = (labels, predicted, labels[self.correct])
        return ClassCounts(
            *(np.bincount(column, minlength=self.classes)[: self.classes] for column in columns)
        )

    @property
    def accuracy(self) -> float:
        """The fraction of the rows that is predicted correctly."""
        return float(self.correct.mean())

    @property
    def calibration(self) -> CalibrationBins:
        """Confidence compared with accuracy."""
        return calibration(self.predictions.confidence, self.correct)

    @property
    def confusion(self) -> NDArray[np.int64]:
        """The rows by true class, in rows, and by predicted class, in columns; of few classes."""
        counts = np.zeros((len(self.names), len(self.names)), np.int64)
        np.add.at(counts, (self.predictions.labels, self.predictions.predicted), 1)
        return counts


@dataclass(frozen=True)
class ClassCounts:
    """How often each class occurs and is predicted: counts of images, or sums of their weights.

    A ratio without an image to count (no prediction of a class, none of its images) is 0.

    Attributes:
        actual: (..., classes), the images of each class.
        predicted: (..., classes), those that each class was predicted for.
        correct: (..., classes), those of each class that it was predicted for.
    """

    actual: NDArray[Any]
    predicted: NDArray[Any]
    correct: NDArray[Any]

    @property
    def precision(self) -> NDArray[np.float64]:
        """The fraction of the predictions of each class that is correct, (..., classes)."""
        return _ratio(self.correct, self.predicted)

    @property
    def recall(self) -> NDArray[np.float64]:
        """The fraction of the images of each class that is predicted correctly, (..., classes)."""
        return _ratio(self.correct, self.actual)

    @property
    def f1(self) -> NDArray[np.float64]:
        """The harmonic mean of precision and recall of each class, (..., classes)."""
        return _ratio(2 * self.correct, self.predicted + self.actual)


def _ratio(part: NDArray[Any], whole: NDArray[Any]) -> NDArray[np.float64]:

    return np.asarray(part / np.where(whole > 0, whole, 1), np.float64)


def wilson(part: int, whole: int) -> tuple[float, float]:
    """The ends of the 95 % interval of a share, by Wilson's method (1927).

    SciPy has it, too, whose import takes longer than most commands that show one.

    Args:
        part: The images that have something.
        whole: All images, at least one.
    """
    share, z = part / whole, NormalDist().inv_cdf(0.975)
    middle = share + z**2 / (2 * whole)
    half = z * sqrt(share * (1 - share) / whole + z**2 / (4 * whole**2))
    scale = 1 + z**2 / whole
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def outcomes(tally: Tally) -> dict[str, Any]:
    """How each class was predicted, one against the rest, and the averages over the classes.

    Returns:
        `classes`, a row for each class of the data in the order of its labels: `precision`,
        `recall` and `f1`; `rows`, its images, and `predicted`, how often it was predicted; and
        `tp`, `fp`, `fn` and `tn` (true and false, positive and negative). `macro`: the means over
        these classes, with equal weights. `micro`: of the sums of the counts. An image has one
        class, so a false negative of one class is a false positive of another, and all micro
        values are the accuracy.
    """
    counts = tally.of_classes
    columns = {
        **{name: getattr(counts, name) for name in OF_A_CLASS},
        "rows": counts.actual,
        "predicted": counts.predicted,
        "tp": counts.correct,
        "fp": counts.predicted - counts.correct,
        "fn": counts.actual - counts.correct,
        "tn": tally.rows - counts.predicted - counts.actual + counts.correct,
    }
    classes = [
        {"label": name} | {column: values[index].item() for column, values in columns.items()}
        for index, name in enumerate(tally.names[: tally.classes])
    ]
    return {
        "classes": classes,
        "macro": {name: float(columns[name].mean()) for name in OF_A_CLASS},
        "micro": dict.fromkeys(OF_A_CLASS, tally.accuracy),
    }


# All metrics, by the names that the gate's rules use. A macro average is over the classes of the
# data, with equal weights.
METRICS: Mapping[str, Callable[[Tally], float]] = {
    "accuracy": lambda tally: tally.accuracy,
    "macro_precision": lambda tally: float(tally.of_classes.precision.mean()),
    "macro_recall": lambda tally: float(tally.of_classes.recall.mean()),
    "macro_f1": lambda tally: float(tally.of_classes.f1.mean()),
    "worst_class_recall": lambda tally: float(tally.of_classes.recall.min()),
    "log_loss": lambda tally: float(losses(tally.predictions.likelihood).mean()),  # in nats
    "calibration_error": lambda tally: tally.calibration.error,
}
OF_A_CLASS = ("precision", "recall", "f1")  # named like `recall[cat]`
LOWER_IS_BETTER = ["calibration_error", "log_loss"]


def split_name(name: str) -> tuple[str, str | None]:
    """The kind of a metric, and the class that it is of: `recall[cat]` is ("recall", "cat").

    The class is None for one of `METRICS`.

    Raises:
        KeyError: There is no such metric.
    """
    kind, bracket, label = name.partition("[")
    if name in METRICS:
        return name, None
    if kind in OF_A_CLASS and bracket and label.endswith("]"):
        return kind, label[:-1]
    raise KeyError(name)


def summarise(tally: Tally) -> dict[str, float]:
    """All metrics of a split, by name, and its number of `rows`.

    `log_loss` is in nats; `calibration_error`, the expected one, is 0 to 1.
    """
    metrics = {name: calculate(tally) for name, calculate in METRICS.items()}
    return metrics | {"rows": tally.rows}
