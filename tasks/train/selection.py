"""Decides from the history of a training which epoch is the best, and whether it ends early."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from retrain.workload import Best, EarlyStopping

Epoch = Mapping[str, Any]  # an entry of `history.json`
NEVER = float("-inf")


def is_better(epoch: Epoch, best: Epoch | None, choice: Best) -> bool:
    """Whether an epoch is better than the best one before it.

    Of two epochs with an equal metric, the one with the lower `val_loss` is better, if they have
    one; of equal ones, the first.

    Args:
        epoch: The new one.
        best: The best before it, if any.
        choice: The metric, and whether it should be large.
    """
    return best is None or score(epoch, choice) > score(best, choice)


def larger_is_better(choice: Best) -> bool:
    """Whether the metric should be large."""
    if choice.mode == "auto":
        return not choice.metric.endswith(("loss", "error"))
    return choice.mode == "max"


def stops_early(history: Sequence[Epoch], choice: Best, rule: EarlyStopping | None) -> bool:
    """Whether a training ends now because it no longer gets better.

    Args:
        history: The epochs of the training so far.
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


def best_so_far(history: Sequence[Epoch], choice: Best) -> list[float]:
    """The best value of the metric up to each epoch; the opposite of a loss, so larger is better.

    It is minus infinity before the metric was reported.
    """
    values = (_signed(epoch, choice) if choice.metric in epoch else NEVER for epoch in history)
    return list(accumulate(values, max))


def pruned_at(history: Sequence[Epoch], choice: Best, bounds: Mapping[int, float]) -> int | None:
    """The epoch, from 1, at which a trial of a search is ended; None if it is not.

    Args:
        history: The epochs of the training so far.
        choice: The metric, and whether it should be large.
        bounds: By the number of an epoch, the least that the trial has to have reached then, in the
            terms of `best_so_far`.
    """
    reached = best_so_far(history, choice)
    behind = (n for n, bound in bounds.items() if n <= len(reached) and reached[n - 1] < bound)
    return min(behind, default=None)


def _signed(epoch: Epoch, choice: Best) -> float:
    """The metric, or its opposite, so that the larger is the better one."""
    value = float(epoch[choice.metric])
    return value if larger_is_better(choice) else -value


def score(epoch: Epoch, choice: Best) -> tuple[float, float]:
    """The values by which epochs are compared; larger is better."""
    return _signed(epoch, choice), -epoch.get("val_loss", 0.0)
