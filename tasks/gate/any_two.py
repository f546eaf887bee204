"""Compares the answers of any two versions for the same images, for people.

The statistics are those of the gate, and nothing is decided. Where many comparisons are made on the
same images, one of them finds a difference by luck.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrain.runs import console
from retrain.step import Facts
from retrain.workload import Gate
from tasks.data.metrics import METRICS
from tasks.data.predictions import ROWS, NamedPredictions, image_id
from tasks.gate import paired
from tasks.gate.pairs import pair
from tasks.gate.rules import counted, left_out_as_learnt, left_out_by_class, measured, not_recorded

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

SHOWN, SHOWN_CLASSES = 10, 5
LIMITS = ("difference", "low", "high")
NOTHING_FOLLOWS = "Nothing is promoted."


@dataclass(frozen=True)
class Shown:
    """An image that both models were shown.

    Attributes:
        path: Its name in the data.
        sha256: Of the encoded image, hex; None if its file cannot be read.
        label: The name of its class; None if that is not known.
        pixels: Its identity, as `tasks.data.pixels.digest` gives it; None if it does not decode.
    """

    path: str
    sha256: str | None
    label: str | None
    pixels: str | None


@dataclass(frozen=True)
class Answers:
    """A model's answers, for all images.

    Attributes:
        known: The model's classes.
        labels: str or None (images,), the most probable classes; None without an answer.
        confidence: float32 (images,), their probabilities; 0 without an answer.
        likelihood: float32 (images,), the probabilities of the true classes; 0 for a class that the
            model does not know.
    """

    known: tuple[str, ...]
    labels: "NDArray[Any]"
    confidence: "NDArray[np.float32]"
    likelihood: "NDArray[np.float32]"


def read_answers(file: Path, images: Sequence[Shown]) -> Answers:
    """Reads the answers of a model that the flow `predict` has written.

    Args:
        file: As `tasks.predict.predict.predict` writes it.
        images: Those that it classified, in the same order.

    Raises:
        ValueError: The images have changed since.
    """
    import numpy as np
    from pyarrow import parquet

    parts, first = [], 0
    with parquet.ParquetFile(file) as opened:
        known = tuple(json.loads(opened.schema_arrow.metadata[b"labels"]))
        place = {name: index for index, name in enumerate(known)}
        for batch in opened.iter_batches(ROWS):
            shown = images[first : first + len(batch)]
            first += len(batch)
            if [image.sha256 for image in shown] != batch["sha256"].to_pylist():
                raise ValueError("The images have changed while they were classified: run again.")
            labels = np.array(batch["label"].to_pylist(), object)
            answered = np.flatnonzero(batch["label"].is_valid().to_numpy(zero_copy_only=False))
            values = batch["probabilities"].drop_null().flatten().to_numpy()
            values = values.reshape(len(answered), len(known))
            confidence, likelihood = np.zeros((2, len(batch)), np.float32)
            confidence[answered] = values.max(axis=1)
            names = (shown[row].label or "" for row in answered.tolist())
            true = np.array([place.get(name, -1) for name in names], np.int64)
            found = values[np.arange(len(answered)), true]
            likelihood[answered] = np.where(true < 0, 0, found)
            parts.append((labels, confidence, likelihood))
    if first != len(images):
        raise ValueError("The images have changed while they were classified: run again.")
    return Answers(known, *(np.concatenate(column) for column in zip(*parts, strict=True)))


def compare(
    a: Answers,
    b: Answers,
    images: Sequence[Shown],
    learnt: "Sequence[NDArray[np.uint64] | None]",
    rules: Gate,
) -> "tuple[Facts, pa.Table]":
    """Compares the answers of two models, B with A.

    The metrics are of the images with a class that both models know, which none of the two was
    trained or validated on; averages are over the classes that have such images.

    Args:
        a: The answers of the first model.
        b: Those of the second.
        images: What both were shown; at least one.
        learnt: Of each model, the images that it was trained or validated on, as `image_id` gives
            them; None if they are not known.
        rules: The margin and the level.

    Returns:
        What was found, JSON-able, and the images for which the two give different labels. Found
        are: `shown`, how many images; `unanswered`, how many of them one of the two could not
        classify; `same`, for how many they give the same label; `pairs`, the most frequent pairs of
        different labels; `first`, the first of these images; `labelled`, whether there are
        classes that a model knows. If there are: `no_class`, how many images lack one; for each
        model `learnt` and `recorded` as in a comparison of the gate; `other_classes`, `images` and
        `level` as there; `metrics`, by name the values of `a` and `b` and, if two models can be
        compared by it, what `Difference` has; `only_a` and `only_b`, the images that only one has
        right; and `classes`, those in which the two differ most. Without images to compare,
        `metrics` is empty.
    """
    import numpy as np

    labels = np.array([image.label for image in images], object)
    answered = np.array([None not in each for each in zip(a.labels, b.labels, strict=True)])
    differ = answered & (a.labels != b.labels)
    known = {*a.known, *b.known}
    found: Facts = {
        "shown": len(images),
        "unanswered": int((~answered).sum()),
        "same": int((answered & ~differ).sum()),
        "pairs": _pairs(a.labels[differ], b.labels[differ]),
        "labelled": any(label in known for label in labels),
    }
    compared = np.zeros(len(images), bool)
    if found["labelled"]:
        used = answered & np.array([label is not None for label in labels])
        found["no_class"] = int((answered & ~used).sum())
        measures, of_used = _measure(a, b, images, used, learnt, rules)
        found |= measures
        compared[np.flatnonzero(used)[of_used]] = True
    table = _disagreements(a, b, images, differ, compared)
    found["first"] = table.slice(0, SHOWN).to_pylist()
    return found, table


def _measure(
    a: Answers,
    b: Answers,
    images: Sequence[Shown],
    used: "NDArray[np.bool_]",
    learnt: "Sequence[NDArray[np.uint64] | None]",
    rules: Gate,
) -> "tuple[Facts, NDArray[np.bool_]]":
    """Compares the two on the images that have a class.

    Returns:
        The part of `compare`'s result; and which of these images were compared.
    """
    import numpy as np

    rows = np.flatnonzero(used)
    some = [images[row] for row in rows.tolist()]
    ids = np.array([image_id(image.pixels or "0") for image in some], np.uint64)
    labels = np.array([image.label for image in some], object)
    theirs, ours = (
        NamedPredictions(
            each.known, ids, labels, each.labels[rows], each.confidence[rows], each.likelihood[rows]
        )
        for each in (a, b)
    )
    recorded = [each for each in learnt if each is not None]
    comparable = pair(ours, theirs, np.concatenate(recorded) if recorded else None)
    pairs = comparable.pairs
    facts: Facts = {
        "learnt": [0 if each is None else int(np.isin(ids, each).sum()) for each in learnt],
        "recorded": [each is not None for each in learnt],
        "other_classes": comparable.other_classes,
        "images": pairs.rows,
        "level": rules.level,
        "margin": rules.margin,
        "metrics": {},
        "classes": [],
    }
    if pairs.rows:
        for name in METRICS:
            facts["metrics"][name] = {
                "a": paired.score(pairs.opponent, pairs, name),
                "b": paired.score(pairs.challenger, pairs, name),
            }
            if name in paired.COMPARABLE:
                difference = paired.compare(pairs, name, rules.margin, rules.level)
                facts["metrics"][name] |= asdict(difference)
        facts["only_b"], facts["only_a"] = paired.only_one_correct(pairs)
        facts["classes"] = _classes(pairs)
    return facts, comparable.used


def _classes(pairs: paired.Pairs) -> list[Facts]:
    """The classes in which one model has more images right than the other, the largest first."""
    import numpy as np

    names = pairs.names[: pairs.classes]
    rows = np.bincount(pairs.opponent.labels, minlength=len(names))
    hits_a, hits_b = (
        np.bincount(each.labels[each.labels == each.predicted], minlength=len(names))
        for each in (pairs.opponent, pairs.challenger)
    )
    order = np.argsort(-np.abs(hits_b - hits_a), kind="stable")
    return [
        {
            "label": names[index],
            "images": int(rows[index]),
            "a": int(hits_a[index]) / int(rows[index]),
            "b": int(hits_b[index]) / int(rows[index]),
            "difference": int(hits_b[index] - hits_a[index]),
        }
        for index in order[:SHOWN_CLASSES]
        if hits_a[index] != hits_b[index]
    ]


def _pairs(a: "NDArray[Any]", b: "NDArray[Any]") -> list[Facts]:
    """The most frequent pairs of labels."""
    counts = Counter(zip(a.tolist(), b.tolist(), strict=True))
    return [{"a": one, "b": other, "images": n} for (one, other), n in counts.most_common(SHOWN)]


def _disagreements(
    a: Answers,
    b: Answers,
    images: Sequence[Shown],
    differ: "NDArray[np.bool_]",
    compared: "NDArray[np.bool_]",
) -> "pa.Table":
    """The images with different labels, in order."""
    import numpy as np
    import pyarrow as pa

    rows = np.flatnonzero(differ)
    some = [images[row] for row in rows.tolist()]
    columns = {
        "path": pa.array([image.path for image in some], pa.string()),
        "sha256": pa.array([image.sha256 for image in some], pa.string()),
        "label": pa.array([image.label for image in some], pa.string()),
        "a_label": pa.array(a.labels[rows], pa.string()),
        "a_confidence": pa.array(a.confidence[rows], pa.float32()),
        "b_label": pa.array(b.labels[rows], pa.string()),
        "b_confidence": pa.array(b.confidence[rows], pa.float32()),
        "compared": pa.array(compared[rows], pa.bool_()),
    }
    return pa.table(columns)


def sentences(found: Mapping[str, Any], a: str, b: str) -> list[str]:
    """What was found, for a person; the first sentence is the result.

    Args:
        found: As `compare` gives it.
        a: The name of the first model.
        b: The name of the second.
    """
    answered = found["shown"] - found["unanswered"]
    share = f" ({found['same'] / answered:.1%})" if answered else ""
    same = f"Both give the same label for {found['same']:,} of {answered:,} images{share}."
    said = []
    if found["labelled"]:
        for name, learnt, recorded in zip((a, b), found["learnt"], found["recorded"], strict=True):
            said += left_out_as_learnt(learnt, name, "image") + not_recorded(recorded, name)
        said += left_out_by_class(found["other_classes"], f"{a} or {b}", "image")
        if found["no_class"]:
            said.append(f"{counted(found['no_class'], 'image')} left out, without a class.")
    else:
        said.append(f"The images have no class that {a} or {b} knows: their labels are compared.")
    if found["unanswered"]:
        unanswered = counted(found["unanswered"], "image")
        said.append(f"{unanswered} left out: one of the two could not classify them.")
    if not found["labelled"]:
        return [same, *said, NOTHING_FOLLOWS]
    if not found["metrics"]:
        return ["No image is left to compare.", *said, same, NOTHING_FOLLOWS]
    result = measured(found, "accuracy", a)
    right = f"{found['only_b']:,} images only {b} has right, {found['only_a']:,} only {a}."
    margin = f"A model that is worse by less than {found['margin']:g} (gate.margin) is not worse."
    return [f"{b}: {result[0].lower()}{result[1:]}", right, margin, *said, same, NOTHING_FOLLOWS]


def show(found: Mapping[str, Any], a: str, b: str) -> None:
    """Shows the metrics, the classes and the first images; the arguments of `sentences`."""
    from rich.markup import escape

    number = console.number
    if found.get("metrics"):
        console.say_table(
            ["metric", a, b, "better by", "from", "to", "the second is"],
            [
                [name, *(number(of[each]) for each in ("a", "b")),
                 *(f"{of[each]:+.4f}" if each in of else "" for each in LIMITS),
                 of.get("outcome", "")]
                for name, of in found["metrics"].items()
            ],
        )  # fmt: skip
    if found.get("classes"):
        console.say_table(
            ["class", "images", f"recall, {a}", f"recall, {b}", "more right"],
            [
                [each["label"], f"{each['images']:,}", number(each["a"]), number(each["b"]),
                 f"{each['difference']:+,}"]
                for each in found["classes"]
            ],
        )  # fmt: skip
    if not found["labelled"] and found["pairs"]:
        console.say_table(
            [f"label, {a}", f"label, {b}", "images"],
            [[each["a"], each["b"], f"{each['images']:,}"] for each in found["pairs"]],
        )
    if found["first"]:
        console.say_table(
            ["image", "class", a, b],
            [
                [each["path"], each["label"] or "",
                 *(f"{each[f'{m}_label']} {each[f'{m}_confidence']:.2f}" for m in "ab")]
                for each in found["first"]
            ],
        )  # fmt: skip
    result, *others = sentences(found, a, b)
    console.say(f"[bold]{escape(result)}[/]")
    for sentence in others:
        console.say(escape(sentence))
