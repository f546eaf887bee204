"""Which epoch is the best, and when a training ends early; both follow from its history alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from retrain.workload import Best, EarlyStopping

Epoch = Mapping[str, Any]  # an entry of `history.json`


def is_better(epoch: Epoch, best: Epoch | None, choice: Best) -> bool:
    """Whether an epoch is better than the best one before it.

    Of two epochs with an equal metric, the one with the lower `val_loss` is better, if they have
    one; of equal ones, the first.

    Args:
        epoch: The new one.
        best: The best before it, if any.
        choice: The metric, and whether it should be large.
    """
    return best is None or _score(epoch, choice) > _score(best, choice)


def stops_early(history: Sequence[Epoch], choice: Best, rule: EarlyStopping | None) -> bool:
    """Whether a training ends now because it no longer gets better.

    Args:
        history: Its epochs so far.
        choice: The metric, and whether it should be large.
        rule: When a training ends; None if only after its last epoch.
    """
    if rule is None:
        return False
    best, waited = float("-inf"), 0
    for epoch in history:
        value = _signed(epoch, choice)
        if value > best + rule.min_delta:
            best, waited = value, 0
        else:
            waited += 1
    return waited >= rule.patience


def _signed(epoch: Epoch, choice: Best) -> float:
    """The metric, or its opposite, so that the larger is the better one."""
    value = float(epoch[choice.metric])
    return value if choice.larger_is_better else -value


def _score(epoch: Epoch, choice: Best) -> tuple[float, float]:
    return _signed(epoch, choice), -epoch.get("val_loss", 0.0)
