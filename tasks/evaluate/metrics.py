"""How good predictions are: the metrics that the gate may set bounds on.

Predictions are counted as they come, so that nothing is kept of a single row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# All that `summarise` gives, by the names that the gate's rules use.
METRICS = (
    "accuracy",
    "macro_precision",
    "macro_recall",
    "macro_f1",
    "worst_class_recall",
    "log_loss",
    "calibration_error",
    "rows",
)
CALIBRATION_BINS = 15  # as Guo et al. (2017) use
MAX_CELLS = 1000  # of a side of the confusion matrix, as many as can be seen


@dataclass(frozen=True)
class Predictions:
    """What a model says of some rows of a split.

    Attributes:
        labels: int64 (rows,), the true classes.
        predicted: int64 (rows,), the most probable classes.
        confidence: float32 (rows,), the probabilities of the predicted classes.
        likelihood: float32 (rows,), the probabilities of the true classes; 0 for a class that the
            model does not know.
    """

    labels: "NDArray[np.int64]"
    predicted: "NDArray[np.int64]"
    confidence: "NDArray[np.float32]"
    likelihood: "NDArray[np.float32]"


@dataclass(frozen=True)
class CalibrationBins:
    """Predictions by confidence, in bins of equal width; empty bins are left out.

    Attributes:
        confidence: float64 (bins,), the mean confidence.
        accuracy: float64 (bins,), the fraction that is correct.
        share: float64 (bins,), the fraction of all rows.
    """

    confidence: "NDArray[np.float64]"
    accuracy: "NDArray[np.float64]"
    share: "NDArray[np.float64]"

    @property
    def error(self) -> float:
        """The expected calibration error, 0 to 1."""
        import numpy as np

        return float(np.sum(self.share * np.abs(self.accuracy - self.confidence)))


class Tally:
    """Counts over predictions.

    Attributes:
        names: The classes: those of the data, then those that only the model knows.
        classes: How many of them are classes of the data.
        rows: How many predictions were counted.
        true: int64 (names,), the rows of each class.
        said: int64 (names,), how often each class was predicted.
        right: int64 (names,), how often it was so rightly.
        confusion: int64 (cells, cells), the rows by true and by predicted class. Above
            `MAX_CELLS` classes, a cell is that of several classes that follow each other.
    """

    def __init__(self, names: Sequence[str], classes: int) -> None:
        """Starts at nothing."""
        import numpy as np

        self.names = names
        self.classes = classes
        self.rows = 0
        self.actual, self.predicted, self.correct = np.zeros((3, len(names)), np.int64)
        cells = min(len(names), MAX_CELLS)
        self.confusion = np.zeros((cells, cells), np.int64)
        self._bin_rows, self._bin_hits = np.zeros((2, CALIBRATION_BINS), np.int64)
        self._bin_confidence = np.zeros(CALIBRATION_BINS)
        self._loss = 0.0

    def add(self, predictions: Predictions) -> None:
        """Counts further rows."""
        import numpy as np

        labels, predicted = predictions.labels, predictions.predicted
        correct = labels == predicted
        size = len(self.names)
        self.rows += len(labels)
        self.actual += np.bincount(labels, minlength=size)
        self.predicted += np.bincount(predicted, minlength=size)
        self.correct += np.bincount(labels[correct], minlength=size)
        cells = len(self.confusion)
        np.add.at(self.confusion, (labels * cells // size, predicted * cells // size), 1)

        confidence = predictions.confidence.astype(np.float64)
        bins = np.ceil(confidence * CALIBRATION_BINS).astype(np.int64) - 1
        self._bin_rows += np.bincount(bins, minlength=CALIBRATION_BINS)
        self._bin_hits += np.bincount(bins[correct], minlength=CALIBRATION_BINS)
        self._bin_confidence += np.bincount(bins, confidence, CALIBRATION_BINS)
        # Clipped to the smallest step of float32 below and above, as scikit-learn's does.
        step = np.finfo(np.float32).eps
        likelihood = np.clip(predictions.likelihood.astype(np.float64), step, 1 - step)
        self._loss -= float(np.log(likelihood).sum())

    @property
    def accuracy(self) -> float:
        """The fraction of the rows that is predicted rightly."""
        return int(self.correct.sum()) / self.rows

    @property
    def log_loss(self) -> float:
        """The mean of -log of the probability given to the true class, in nats."""
        return self._loss / self.rows

    @property
    def calibration(self) -> CalibrationBins:
        """Confidence compared with accuracy.

        Source: Guo et al., On Calibration of Modern Neural Networks (2017), equations 2 and 3: bin
        m of M holds the confidences in ((m-1)/M, m/M].
        """
        used = self._bin_rows > 0
        rows = self._bin_rows[used]
        return CalibrationBins(
            self._bin_confidence[used] / rows, self._bin_hits[used] / rows, rows / self.rows
        )


def per_class(tally: Tally) -> list[dict[str, Any]]:
    """Precision, recall and F1 of each class of the data, in the order of its labels.

    A ratio without a row to count (no prediction of a class, none of its images) is 0.
    """
    import numpy as np

    precision, recall, f1 = (
        count * tally.correct / np.maximum(rows, 1)  # nothing is right where there are no rows
        for count, rows in (
            (1, tally.predicted),
            (1, tally.actual),
            (2, tally.predicted + tally.actual),
        )
    )
    return [
        {
            "label": tally.names[index],
            "precision": float(precision[index]),
            "recall": float(recall[index]),
            "f1": float(f1[index]),
            "rows": int(tally.actual[index]),
        }
        for index in range(tally.classes)
    ]


def summarise(tally: Tally) -> dict[str, float]:
    """All metrics of a split.

    Returns:
        `METRICS`: `accuracy`; `macro_precision`, `macro_recall`, `macro_f1`: means over the classes
        of the data, each counting the same; `worst_class_recall`; `log_loss` (nats);
        `calibration_error` (expected, 0 to 1); `rows`.
    """
    table = per_class(tally)
    macro = {
        f"macro_{name}": sum(row[name] for row in table) / len(table)
        for name in ("precision", "recall", "f1")
    }
    return {
        "accuracy": tally.accuracy,
        **macro,
        "worst_class_recall": min(row["recall"] for row in table),
        "log_loss": tally.log_loss,
        "calibration_error": tally.calibration.error,
        "rows": tally.rows,
    }
