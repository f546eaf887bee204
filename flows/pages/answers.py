"""What a page shows of a model's answers: confusion, calibration, mistakes, disagreements."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flows.pages import charts, thumbnails
from flows.pages.blocks import (
    Block,
    Cell,
    Count,
    Details,
    Gallery,
    Heading,
    Matrix,
    Picture,
    Table,
    Text,
    cells,
)  # fmt: skip
from flows.pages.charts import Interval, Line, Point
from flows.pages.files import Files
from tasks.data import predictions
from tasks.data.metrics import CALIBRATION_BINS, Tally, acceptance, is_accepted, wilson
from tasks.data.shards import open_prepared

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from tasks.data.shards import StoredImages

MAX_CLASSES = 30  # of a confusion matrix that can be read
MAX_PAIRS = 12  # of classes whose mistakes are shown
PER_PAIR = 8
SHOWN = 24  # pictures of a gallery
MAX_POINTS = 100  # of the curve of precision and coverage
MAX_HEAT = 0.5  # of a cell, so that its number can be read


def blocks(files: Files) -> list[Block]:
    """How the model answers the test images; both they and its answers are there."""
    images, answers = _images(files), _read(files.folders["evaluate"])
    labels = open_prepared(files.folders["preprocess"]).labels
    tally = predictions.read(files.folders["evaluate"]).tally(labels)
    wrong = answers[answers.label != answers.prediction]
    worst = wrong.sort_values("confidence", ascending=False, kind="stable").head(SHOWN)
    counts = wrong.groupby(["label", "prediction"]).size()
    pairs = counts.sort_values(ascending=False, kind="stable").head(MAX_PAIRS)
    anchors = {pair: f"confused-{number}" for number, pair in enumerate(pairs.index)}
    shown: list[Block] = [
        *confusion(tally, anchors),
        *_calibration(tally, _before(files)),
        *accepted(tally, files.manifest("evaluate")["facts"].get("min_confidence")),
        Heading("The most confident mistakes"),
        Text(f"{len(worst)} of {len(wrong):,} mistakes in {len(answers):,} images.", "muted"),
        Gallery(_mistakes(worst, images)),
    ]
    for (label, prediction), anchor in anchors.items():
        of_pair = wrong[(wrong.label == label) & (wrong.prediction == prediction)]
        title = f"{label} taken for {prediction}: {len(of_pair):,}"
        gallery = Gallery(_mistakes(of_pair.head(PER_PAIR), images), anchor)
        shown.append(Details(title, [gallery]))
    return shown


def disagreements(files: Files) -> Iterator[Block]:
    """The images for which only one of two models is right; the champion was evaluated, too."""
    ours, theirs = (_read(files.folders[name]) for name in ("evaluate", "evaluate_champion"))
    answers = ours.assign(other=theirs.prediction, other_confidence=theirs.confidence)
    is_right, other_is_right = answers.prediction == answers.label, answers.other == answers.label
    lost, gained = answers[~is_right & other_is_right], answers[is_right & ~other_is_right]
    images = _images(files)
    for rows, title in (
        (lost, "Right only in the champion"),
        (gained, "Right only in this model"),
    ):
        if len(rows):
            yield Heading(title)
            yield Text(f"{min(SHOWN, len(rows))} of {len(rows):,} images.", "muted")
            yield Gallery(_both(rows.head(SHOWN), images))


def _read(folder: Path) -> "pd.DataFrame":
    """The answers for the test images, whose index is their row in the split."""
    import pandas as pd

    columns = ["path", "label", "prediction", "confidence"]
    return pd.read_parquet(folder / predictions.FILE, columns=columns)


def _images(files: Files) -> "StoredImages":
    prepared = open_prepared(files.folders["preprocess"], files.folders.get("pull"))
    return prepared.pixels("test")


def _mistakes(rows: "pd.DataFrame", images: "StoredImages") -> list[Picture]:
    def lines(row: Any) -> list[Text]:
        return [
            Text(f"{row.label} → {row.prediction}", "bad"),
            Text(f"{row.confidence:.0%} sure", "muted"),
        ]

    return _pictures(rows, images, lines)


def _both(rows: "pd.DataFrame", images: "StoredImages") -> list[Picture]:
    def lines(row: Any) -> list[Text]:
        answers = (
            ("this model", row.prediction, row.confidence),
            ("champion", row.other, row.other_confidence),
        )
        return [
            Text(f"is {row.label}"),
            *(
                Text(f"{model}: {label} ({sure:.0%})", "good" if label == row.label else "bad")
                for model, label, sure in answers
            ),
        ]

    return _pictures(rows, images, lines)


def _pictures(
    rows: "pd.DataFrame", images: "StoredImages", lines: Callable[[Any], list[Text]]
) -> list[Picture]:
    arrays = images[rows.index.to_numpy()]
    return [
        Picture(
            [thumbnails.of_array(pixels, path)],
            [*lines(row), Text(path, "path")],
        )
        for row, path, pixels in zip(rows.itertuples(), rows.path, arrays, strict=True)
    ]


def confusion(tally: Tally, anchors: Mapping[tuple[str, str], str]) -> Iterator[Block]:
    """Which classes are taken for which: a matrix, or of many classes the most frequent pairs.

    Args:
        tally: The predictions.
        anchors: What leads to the images of a pair of classes.
    """
    if len(tally.names) > MAX_CLASSES:
        yield from _most_confused(tally, anchors)
        return
    rows = [
        [
            Count(count, round(MAX_HEAT * count / max(1, sum(counts)), 3), anchors.get((name, to)))
            for to, count in zip(tally.names, counts, strict=True)
        ]
        for name, counts in zip(tally.names, tally.confusion.tolist(), strict=True)
    ]
    yield Heading("Confusion matrix")
    caption = "True classes in rows, predicted ones in columns; a number of mistakes leads to them."
    yield Matrix(caption, tally.names, rows)


def _most_confused(tally: Tally, anchors: Mapping[tuple[str, str], str]) -> Iterator[Block]:
    """The pairs of classes that are confused most often, where a matrix cannot be read."""
    images, wrong = (
        tally.confusion.sum(axis=1),
        tally.confusion * ~np.eye(len(tally.names), dtype=bool),
    )
    rows = []
    for place in np.argsort(-wrong, axis=None, kind="stable")[:MAX_CLASSES]:
        row, column = np.unravel_index(place, wrong.shape)
        count, pair = wrong[row, column], (tally.names[row], tally.names[column])
        if count:
            link = f"#{anchors[pair]}" if pair in anchors else ""
            number = Cell(f"{count:,}", link=link)
            rows.append(cells(*pair, number, f"{images[row]:,}", f"{count / images[row]:.1%}"))
    yield Heading("The classes that are confused most")
    caption = (
        f"{len(rows)} of {np.count_nonzero(wrong):,} pairs of {len(tally.names):,} classes with "
        "mistakes; a number leads to images."
    )
    names = ("class", "taken for", "mistakes", "images", "share")
    yield Table(caption, rows, names, frozenset({2, 3, 4}))


def _before(files: Files) -> str:
    """What the temperature of the network has changed; empty if it has none."""
    facts = files.manifest("train")["facts"] if files.has("train") else {}
    temperature = facts.get("temperature", 1.0)  # none was recorded in the beginning
    if temperature == 1.0:
        return ""
    before = predictions.calibration_before(files.folders["evaluate"], temperature).error
    return f" It was {before:.4f} before the logits were divided by {temperature:g} (temperature)."


def _calibration(tally: Tally, before: str) -> Iterator[Block]:
    bins, drawn = tally.calibration, []
    columns = (bins.confidence.tolist(), bins.accuracy.tolist(), bins.share.tolist())
    for confidence, accuracy, share in zip(*columns, strict=True):
        name, images = _range_of(confidence), round(share * tally.rows)
        right, expected = round(accuracy * images), confidence * images
        low, high = sorted((accuracy, confidence))
        text = f"{right:,} of {images:,} right, {expected:,.1f} expected"
        drawn.append(Interval(name, accuracy, low, high, text))
    legend = (
        "A bar is how often predictions of such a confidence are right; the line ends at how sure "
        f"the model was. The expected error is {bins.error:.4f}.{before}"
    )
    yield Heading("Calibration")
    yield charts.intervals("Accuracy by confidence", drawn, (0.0, 1.0), legend=legend)


def _range_of(confidence: float) -> str:
    number = min(int(confidence * CALIBRATION_BINS), CALIBRATION_BINS - 1)
    return f"{number / CALIBRATION_BINS:.0%} to {(number + 1) / CALIBRATION_BINS:.0%}"


def accepted(tally: Tally, min_confidence: float | None) -> Iterator[Block]:
    """How many of the most confident answers are right, and which of them the model accepts.

    Args:
        tally: The predictions.
        min_confidence: The least confidence of an answer that it accepts; None without one.
    """
    order = np.argsort(-tally.predictions.confidence, kind="stable")
    right = np.cumsum(tally.correct[order], dtype=np.int64)
    fewest = -(-tally.rows // 20)  # the precision of fewer says little, and would stretch the axis
    counts = np.unique(np.linspace(fewest, tally.rows, MAX_POINTS).astype(int))
    points, mark, legend = [_point(tally, right, count) for count in counts.tolist()], None, ""
    if min_confidence is not None:
        count = int(is_accepted(tally.predictions.confidence, min_confidence).sum())
        legend = (
            f"The model {acceptance(min_confidence)}: {count:,} of {tally.rows:,} "
            f"({count / tally.rows:.1%})"
        )
        if count:
            mark = Line(count / tally.rows, "accepted", "zero")
            low, high = wilson(int(right[count - 1]), count)
            legend += (
                f"; {right[count - 1] / count:.1%} of these are right ({low:.1%} to {high:.1%})"
            )
    ticks = [(share, f"{share:.0%}") for share in (0.25, 0.5, 0.75, 1.0)]
    yield Heading("Precision and coverage")
    yield charts.curves(
        "Precision of the most confident answers, by their share", [("precision", points)], ticks,
        mark, legend and f"{legend}.",
    )  # fmt: skip


def _point(tally: Tally, right: "NDArray[np.int64]", count: int) -> Point:
    """The precision of some of the most confident answers; `right` counts those that are right."""
    precision, coverage = right[count - 1] / count, count / tally.rows
    return Point(coverage, precision, f"{precision:.1%} of {coverage:.0%} are right")
