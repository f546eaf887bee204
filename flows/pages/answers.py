"""What a page shows of a model's answers: confusion, calibration, mistakes, disagreements."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from retrain.store import Artifact
from tasks.data import predictions, thumbnails
from tasks.data.shards import Shards, open_prepared

if TYPE_CHECKING:
    import pandas as pd

MAX_CLASSES = 30  # of a confusion matrix that can be read
MAX_CONFUSED = 30  # pairs of classes, if there are more classes than that
MAX_PAIRS = 12  # of classes whose mistakes are shown
PER_PAIR = 8
SHOWN = 24  # pictures of a gallery
MAX_POINTS = 100  # of the curve of precision and coverage
MODELS = {  # the columns with their answers
    "this model": ("prediction", "confidence"),
    "champion": ("other", "other_confidence"),
}


def content(made: Mapping[str, Artifact]) -> dict[str, Any]:
    """How the model answers the test images, and the champion, if that was evaluated, too.

    Args:
        made: The outputs of the run's steps, with those of `preprocess` and `evaluate`.
    """
    prepared = open_prepared(made["preprocess"].folder)
    images, answers = prepared.split("test").images, _read(made["evaluate"])
    tally = predictions.read(made["evaluate"].folder).tally(prepared.labels)
    is_right, disagreements = answers.prediction == answers.label, {}
    if "evaluate_champion" in made:
        theirs = _read(made["evaluate_champion"])
        answers = answers.assign(other=theirs.prediction, other_confidence=theirs.confidence)
        other_is_right = answers.other == answers.label
        disagreements = {
            "Right only in the champion": _gallery(answers[~is_right & other_is_right], images),
            "Right only in this model": _gallery(answers[is_right & ~other_is_right], images),
        }
    by_confidence = answers.sort_values("confidence", ascending=False, kind="stable")
    wrong = by_confidence[by_confidence.prediction != by_confidence.label]
    pairs = wrong.groupby(["label", "prediction"])
    counts: dict[Any, int] = pairs.size().sort_values(ascending=False, kind="stable").to_dict()
    images_of = answers.label.value_counts()
    bins = tally.calibration
    return {
        "names": tally.names,
        "matrix": tally.confusion.tolist() if len(tally.names) <= MAX_CLASSES else None,
        "pairs": len(counts),
        "confused": [
            (*pair, counts[pair], int(images_of[pair[0]])) for pair in [*counts][:MAX_CONFUSED]
        ],
        "calibration": np.stack([bins.confidence, bins.accuracy, bins.share], 1).tolist(),
        "coverage": coverage(is_right[by_confidence.index].to_numpy()),
        "disagreements": disagreements,
        "mistakes": _gallery(wrong, images),
        "mistakes_of": {
            pair: _gallery(pairs.get_group(pair), images, PER_PAIR)
            for pair in [*counts][:MAX_PAIRS]
        },
    }


def coverage(right: Any) -> list[tuple[float, float]]:
    """The precision of the most confident answers, by their share of all.

    Args:
        right: Bool (rows,): whether each answer is right, the most confident one first.
    """
    rows = len(right)
    fewest = -(-rows // 20)  # the precision of fewer says little, and would stretch the axis
    counts = np.unique(np.linspace(fewest, rows, MAX_POINTS).astype(int)).tolist()
    return [(count / rows, float(right[:count].mean())) for count in counts]


def _read(scores: Artifact) -> "pd.DataFrame":
    """The answers for the test images, whose index is their row in the split."""
    import pandas as pd

    columns = ["path", "label", "prediction", "confidence"]
    return pd.read_parquet(scores.folder / predictions.FILE, columns=columns)


def _gallery(answers: "pd.DataFrame", images: Shards, most: int = SHOWN) -> dict[str, Any]:
    """The first images of some answers, each with what it shows, and what the models say."""
    first = answers.head(most)
    pictures = []
    for row, pixels in zip(first.to_dict("records"), images[first.index.to_numpy()], strict=True):
        lines = [(f"is {row['label']}", "")]
        for model, (answer, sure) in MODELS.items():
            if answer in row:
                style = "good" if row[answer] == row["label"] else "bad"
                lines.append((f"{model}: {row[answer]} ({row[sure]:.0%})", style))
        lines.append((row["path"], "path"))
        pictures.append(([thumbnails.of_array(pixels, row["path"])], lines))
    return {"pictures": pictures, "count": len(answers)}
