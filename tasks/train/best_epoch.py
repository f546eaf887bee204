"""Which epoch of a training is the best, and when a training ends early."""

from collections.abc import Mapping, Sequence
from typing import Any

from retrain.workload import Best

# How the names of metrics end that should be small: losses, errors, and how far off a model is.
LOSSES = ("loss", "error", "nll", "brier", "ece", "perplexity", "mse", "rmse", "mae", "fpr", "fnr")

Epoch = Mapping[str, Any]  # an entry of `history.json`


def score(epoch: Epoch, choice: Best) -> tuple[float, float]:
    """The values by which epochs are compared; larger is better.

    Of two epochs with an equal metric, the one with the lower `val_loss` is better, if they have
    one.

    Args:
        epoch: An epoch that has the metric.
        choice: The metric, and whether it should be large.
    """
    return _signed(epoch, choice), -epoch.get("val_loss", 0.0)


def _signed(epoch: Epoch, choice: Best) -> float:
    """The metric, or its opposite, so that the larger is the better one."""
    value = float(epoch[choice.metric])
    return value if larger_is_better(choice) else -value


def larger_is_better(choice: Best) -> bool:
    """Whether the metric should be large."""
    if choice.mode == "auto":
        return not choice.metric.lower().endswith(LOSSES)
    return choice.mode == "max"


def stops_early(history: Sequence[Epoch], choice: Best, patience: int | None) -> bool:
    """Whether a training ends now because it no longer gets better.

    Args:
        history: The epochs of the training so far.
        choice: The metric, and whether it should be large.
        patience: After how many epochs without a better one; None if only after its last epoch.
    """
    if patience is None or not history:
        return False
    values = [_signed(epoch, choice) for epoch in history]
    return len(values) - 1 - values.index(max(values)) >= patience
