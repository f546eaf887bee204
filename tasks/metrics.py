"""How good predictions are: the metrics that the gate may set bounds on."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CALIBRATION_BINS = 15  # as Guo et al. (2017) use


@dataclass(frozen=True)
class Predictions:
    """What a model says of each row of a split.

    Attributes:
        names: The classes: those of the data, then those that only the model knows.
        classes: How many of them are classes of the data.
        labels: int64 (rows,), the true classes, indices into the first `classes` of `names`.
        predicted: int64 (rows,), the most probable classes, indices into `names`.
        confidence: float32 (rows,), the probabilities of the predicted classes.
        likelihood: float32 (rows,), the probabilities of the true classes; 0 for a class that the
            model does not know.
    """

    names: tuple[str, ...]
    classes: int
    labels: "NDArray[np.int64]"
    predicted: "NDArray[np.int64]"
    confidence: "NDArray[np.float32]"
    likelihood: "NDArray[np.float32]"

    @property
    def correct(self) -> "NDArray[np.bool_]":
        """Whether the predicted class is the true one: bool (rows,)."""
        correct: NDArray[np.bool_] = self.labels == self.predicted
        return correct


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


def calibration_bins(predictions: Predictions) -> CalibrationBins:
    """Compares confidence with accuracy.

    Source: Guo et al., On Calibration of Modern Neural Networks (2017), equations 2 and 3: bin m
    of M holds the confidences in ((m-1)/M, m/M].
    """
    import numpy as np

    confidence = predictions.confidence.astype(np.float64)
    bins = np.ceil(confidence * CALIBRATION_BINS).astype(np.int64) - 1
    rows = np.bincount(bins, minlength=CALIBRATION_BINS)
    used = rows > 0
    sums = np.bincount(bins, confidence, CALIBRATION_BINS)
    hits = np.bincount(bins, predictions.correct, CALIBRATION_BINS)
    return CalibrationBins(sums[used] / rows[used], hits[used] / rows[used], rows[used] / len(bins))


def log_loss(likelihood: "NDArray[np.float32]") -> float:
    """The mean of -log of the probability given to the true class.

    Args:
        likelihood: float32 (rows,); clipped to the smallest step of float32 below and above, as
            scikit-learn's `log_loss` does.
    """
    import numpy as np

    step = np.finfo(np.float32).eps
    return float(-np.log(np.clip(likelihood.astype(np.float64), step, 1 - step)).mean())


def per_class(predictions: Predictions) -> list[dict[str, Any]]:
    """Precision, recall and F1 of each class of the data, in the order of its labels.

    A ratio without a row to count (no prediction of a class, none of its images) is 0.
    """
    from sklearn.metrics import precision_recall_fscore_support

    table = precision_recall_fscore_support(
        predictions.labels,
        predictions.predicted,
        labels=range(predictions.classes),
        zero_division=0,
    )
    return [
        {
            "label": name,
            "precision": float(precision),
            "recall": float(recall),
            "f1": float(f1),
            "rows": int(rows),
        }
        for name, precision, recall, f1, rows in zip(predictions.names, *table, strict=False)
    ]


def summarise(predictions: Predictions) -> dict[str, float]:
    """All metrics of a split.

    Returns:
        `accuracy`; `macro_precision`, `macro_recall`, `macro_f1`: means over the classes of the
        data, each counting the same; `worst_class_recall`; `log_loss` (nats); `calibration_error`
        (expected, 0 to 1); `rows`.
    """
    from sklearn.metrics import accuracy_score

    table = per_class(predictions)
    macro = {
        f"macro_{name}": sum(row[name] for row in table) / len(table)
        for name in ("precision", "recall", "f1")
    }
    return {
        "accuracy": float(accuracy_score(predictions.labels, predictions.predicted)),
        **macro,
        "worst_class_recall": min(row["recall"] for row in table),
        "log_loss": log_loss(predictions.likelihood),
        "calibration_error": calibration_bins(predictions).error,
        "rows": len(predictions.labels),
    }
