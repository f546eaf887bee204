"""What a page shows of a model's answers: confusion, calibration, mistakes, disagreements."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flows.pages import pictures
from flows.pages.page import bar, point
from flows.pages.pictures import Line
from flows.pages.run import Files
from tasks.data import predictions
from tasks.data.metrics import CALIBRATION_BINS, Tally, acceptance, is_accepted, wilson
from tasks.data.shards import open_prepared

if TYPE_CHECKING:
    import pandas as pd

    from tasks.data.shards import Shards

MAX_CLASSES = 30  # of a confusion matrix that can be read
MAX_PAIRS = 12  # of classes whose mistakes are shown
PER_PAIR = 8
SHOWN = 24  # pictures of a gallery
MAX_POINTS = 100  # of the curve of precision and coverage


def content(files: Files) -> dict[str, Any]:
    """How the model answers the test images; both they and its answers are there."""
    folder, images = files.folders["evaluate"], _images(files)
    answers = _read(folder)
    tally = predictions.read(folder).tally(open_prepared(files.folders["preprocess"]).labels)
    wrong = answers[answers.label != answers.prediction]
    worst = wrong.sort_values("confidence", ascending=False, kind="stable").head(SHOWN)
    counts = wrong.groupby(["label", "prediction"]).size()
    pairs = counts.sort_values(ascending=False, kind="stable").head(MAX_PAIRS).index
    of_pairs = [
        (pair, wrong[(wrong.label == pair[0]) & (wrong.prediction == pair[1])]) for pair in pairs
    ]
    threshold = files.manifest("evaluate")["facts"].get("min_confidence")
    return {
        "images": len(answers),
        "names": tally.names,
        "matrix": tally.confusion.tolist() if len(tally.names) <= MAX_CLASSES else None,
        "confused": [] if len(tally.names) <= MAX_CLASSES else most_confused(tally),
        "calibration": _calibration(tally),
        "calibration_error": tally.calibration.error,
        "coverage": coverage(tally),
        "accepted": None if threshold is None else accepted(tally, threshold),
        "mistakes": pictures.gallery(_pictures(worst, images, _mistake), len(wrong)),
        "anchors": {pair: f"confused-{number}" for number, pair in enumerate(pairs)},
        "pairs": [
            (pair, pictures.gallery(_pictures(rows.head(PER_PAIR), images, _mistake), len(rows)))
            for pair, rows in of_pairs
        ],
    }


def disagreements(files: Files) -> dict[str, Any]:
    """The images for which only one of two models is right; the champion was evaluated, too."""
    ours, theirs = (_read(files.folders[name]) for name in ("evaluate", "evaluate_champion"))
    answers = ours.assign(other=theirs.prediction, other_confidence=theirs.confidence)
    is_right, other_is_right = answers.prediction == answers.label, answers.other == answers.label
    images = _images(files)
    found = {
        "Right only in the champion": answers[~is_right & other_is_right],
        "Right only in this model": answers[is_right & ~other_is_right],
    }
    return {
        title: pictures.gallery(_pictures(rows.head(SHOWN), images, _both), len(rows))
        for title, rows in found.items()
        if len(rows)
    }


def _read(folder: Path) -> "pd.DataFrame":
    """The answers for the test images, whose index is their row in the split."""
    import pandas as pd

    columns = ["path", "label", "prediction", "confidence"]
    return pd.read_parquet(folder / predictions.FILE, columns=columns)


def _images(files: Files) -> "Shards":
    return open_prepared(files.folders["preprocess"]).split("test").images


def _mistake(row: Any) -> list[Line]:
    """What the model answers for an image."""
    return [(f"{row.label} → {row.prediction}", "bad"), (f"{row.confidence:.0%} sure", "muted")]


def _both(row: Any) -> list[Line]:
    """What both models answer for an image."""
    answers = (
        ("this model", row.prediction, row.confidence),
        ("champion", row.other, row.other_confidence),
    )
    return [(f"is {row.label}", "")] + [
        (f"{model}: {label} ({sure:.0%})", "good" if label == row.label else "bad")
        for model, label, sure in answers
    ]


def _pictures(
    rows: "pd.DataFrame", images: "Shards", lines: Callable[[Any], list[Line]]
) -> list[pictures.Picture]:
    arrays = images[rows.index.to_numpy()]
    return [
        ([pictures.of_array(pixels, path)], [*lines(row), (path, "path")])
        for row, path, pixels in zip(rows.itertuples(), rows.path, arrays, strict=True)
    ]


def most_confused(tally: Tally) -> list[tuple[str, str, int, int]]:
    """Two classes, how often the first is taken for the second, and its images; for each pair.

    Those that are confused most come first.
    """
    names, images = tally.names, tally.confusion.sum(axis=1)
    wrong = tally.confusion * ~np.eye(len(names), dtype=bool)
    places = np.argwhere(wrong)[np.argsort(-wrong[wrong > 0], kind="stable")].tolist()
    return [
        (names[row], names[column], int(wrong[row, column]), int(images[row]))
        for row, column in places
    ]


def _calibration(tally: Tally) -> list[dict[str, Any]]:
    """How often answers of each confidence are right; the interval ends at the confidence."""
    bins, drawn = tally.calibration, []
    columns = (bins.confidence.tolist(), bins.accuracy.tolist(), bins.share.tolist())
    for confidence, accuracy, share in zip(*columns, strict=True):
        number = min(int(confidence * CALIBRATION_BINS), CALIBRATION_BINS - 1)
        label = f"{number / CALIBRATION_BINS:.0%} to {(number + 1) / CALIBRATION_BINS:.0%}"
        images = round(share * tally.rows)
        right, expected = round(accuracy * images), confidence * images
        text = f"{right:,} of {images:,} right, {expected:,.1f} expected"
        drawn.append(bar(label, accuracy, text, *sorted((accuracy, confidence))))
    return drawn


def coverage(tally: Tally) -> list[dict[str, Any]]:
    """The precision of the most confident answers, by their share of all, as a curve."""
    right = _right_of_the_most_confident(tally)
    fewest = -(-tally.rows // 20)  # the precision of fewer says little, and would stretch the axis
    counts = np.unique(np.linspace(fewest, tally.rows, MAX_POINTS).astype(int)).tolist()
    shares = [(count / tally.rows, right[count - 1] / count) for count in counts]
    return [point(x, y, f"{y:.1%} of {x:.0%} are right") for x, y in shares]


def accepted(tally: Tally, min_confidence: float) -> dict[str, Any]:
    """Which share of the answers the model accepts, and a sentence about their precision.

    Args:
        tally: The predictions.
        min_confidence: The least confidence of an answer that it accepts.
    """
    count = int(is_accepted(tally.predictions.confidence, min_confidence).sum())
    share = count / tally.rows
    says = f"The model {acceptance(min_confidence)}: {count:,} of {tally.rows:,} ({share:.1%})"
    if count:
        right = int(_right_of_the_most_confident(tally)[count - 1])
        low, high = wilson(right, count)
        says += f"; {right / count:.1%} of these are right ({low:.1%} to {high:.1%})"
    return {"share": share, "says": f"{says}."}


def _right_of_the_most_confident(tally: Tally) -> Any:
    """int64 (rows,): how many of the one, two, three … most confident answers are right."""
    order = np.argsort(-tally.predictions.confidence, kind="stable")
    return np.cumsum(tally.correct[order], dtype=np.int64)
