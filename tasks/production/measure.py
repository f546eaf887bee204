"""Compares a model's accuracy in production with that of its test."""

from collections.abc import Mapping, Sequence
from math import hypot
from typing import TYPE_CHECKING, Any

from retrain.workload import Production
from tasks.data.metrics import calibration, is_accepted, wilson

if TYPE_CHECKING:
    import pandas as pd

MIN_IMAGES = 30  # with labels, below which there is no verdict


def measure(
    answers: "pd.DataFrame",
    labels: "pd.Series[str]",
    test: Mapping[str, float],
    classes: Sequence[Mapping[str, Any]],
    limits: Production,
    min_confidence: float | None = None,
) -> dict[str, Any]:
    """How a version does in production, by the images whose labels are known.

    An image that was sent several times counts once, when it came first.

    Args:
        answers: Of the version, the earliest first, as `answers.read` gives them.
        labels: As `labels.read` gives them.
        test: The `accuracy` of the version's test and its `rows`.
        classes: The `label`, the `recall` and the `rows` of each class in the test.
        limits: What counts as worse.
        min_confidence: The least confidence of an answer that is accepted; None without one.

    Returns:
        JSON-able. `weeks`: for each ISO week (in UTC) with answers, the earliest first, `week`
        (2026-W07), `images` and, of those with labels, `labelled`, `correct`, and `accuracy`,
        `low` and `high` (None without any). If the version accepts answers, also `coverage`, the
        share of the images whose answers it accepts, and `accepted_precision`, how many of these
        are right, by those with labels (None without any). Of the last `limits.weeks` of them:
        `images`, `labelled`, `accuracy`, `low` and `high`, and what it accepts; `test`, the
        accuracy there; `difference`, with `difference_low` and `difference_high`;
        `calibration_error`; `classes`, those that have `labelled` images, the ones that lost most
        first, with `recall`, `low`, `high` and `test_recall`; and `unknown`, the labels that the
        version does not know. `worse`: whether the accuracy is lower than in the test by more than
        `limits.max_drop`; None if too few images have labels.
    """
    frame = answers.drop_duplicates("sha256")
    frame = frame.assign(
        week=frame["time"].dt.strftime("%G-W%V"), true=frame["sha256"].map(labels.to_dict())
    )
    weeks = [{"week": name} | _counts(part, min_confidence) for name, part in frame.groupby("week")]
    recent = frame[frame["week"].isin([row["week"] for row in weeks[-limits.weeks :]])]
    known = recent.dropna(subset=["true"])
    in_test = {row["label"]: row["recall"] for row in classes}
    found = {"weeks": weeks, **_counts(recent, min_confidence), "test": test["accuracy"]}
    found |= dict.fromkeys(("difference", "difference_low", "difference_high", "worse"))
    found["calibration_error"] = None
    if len(known):
        is_right = (known["label"] == known["true"]).to_numpy()
        found["calibration_error"] = calibration(known["confidence"].to_numpy(), is_right).error
        found |= _difference(found, test)
    if len(known) >= MIN_IMAGES:
        found["worse"] = found["difference_high"] < -limits.max_drop
    lost = [
        {"label": label, "test_recall": in_test.get(label), **_right(part, "recall")}
        for label, part in known.groupby("true", sort=False)
    ]
    found["classes"] = sorted(lost, key=lambda row: row["recall"] - (row["test_recall"] or 0.0))
    found["unknown"] = sorted(set(known["true"]) - in_test.keys())
    return found


def _counts(frame: "pd.DataFrame", min_confidence: float | None) -> dict[str, Any]:
    """The images, those with labels, how many of these are right, and what is accepted."""
    known = frame.dropna(subset=["true"])
    counts = {"images": len(frame), **_right(known, "accuracy")}
    if min_confidence is not None:
        accepted = is_accepted(frame["confidence"].to_numpy(), min_confidence)
        precision = _right(frame[accepted].dropna(subset=["true"]), "precision")["precision"]
        counts["coverage"] = float(accepted.mean()) if len(frame) else None
        counts["accepted_precision"] = precision
    return counts


def _right(known: "pd.DataFrame", name: str) -> dict[str, Any]:
    """How many of the images with labels are right, and the share with Wilson's interval (1927)."""
    correct, labelled = int((known["label"] == known["true"]).sum()), len(known)
    low, high = wilson(correct, labelled) if labelled else (None, None)
    share = correct / labelled if labelled else None
    return {"labelled": labelled, "correct": correct, name: share, "low": low, "high": high}


def _difference(found: Mapping[str, Any], test: Mapping[str, float]) -> dict[str, float]:
    """The accuracy in production less that of the test, of other images.

    Source: Newcombe, Interval estimation for the difference between independent proportions (1998),
    method 10: from the ends of Wilson's intervals of both.
    """
    rows, ours, theirs = int(test["rows"]), found["accuracy"], test["accuracy"]
    low, high = wilson(round(theirs * rows), rows)
    return {
        "difference": ours - theirs,
        "difference_low": ours - theirs - hypot(ours - found["low"], high - theirs),
        "difference_high": ours - theirs + hypot(found["high"] - ours, theirs - low),
    }


def sentence(name: str, found: Mapping[str, Any]) -> str:
    """The result in a sentence, for people.

    Args:
        name: The version.
        found: What `measure` gives.
    """
    images, labelled = found["images"], found["labelled"]
    if not images:
        return f"{name} has answered nothing in production that was kept."
    if not labelled:
        return f"None of the {images:,} images that {name} has classified has a label yet."
    text = (
        f"{name} has {found['accuracy']:.1%} of {labelled:,} labelled images right in production "
        f"({found['low']:.1%} to {found['high']:.1%}), and {found['test']:.1%} in its test: "
    )
    change = (
        f"{100 * found['difference']:+.1f} points ({100 * found['difference_low']:+.1f} to "
        f"{100 * found['difference_high']:+.1f})"
    )
    if found["worse"] is None:
        return f"{text}{change}. That are too few labels for a verdict: it needs {MIN_IMAGES}."
    verdict = "worse than production.max_drop allows" if found["worse"] else "not clearly worse"
    return f"{text}{verdict}, {change}."
