"""Compares the answers of any two versions for the same images, for people.

The statistics are those of the gate, and nothing is decided. Where many comparisons are made on the
same images, one of them finds a difference by luck.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from retrain.runs import console
from retrain.step import Facts
from retrain.workload import Gate
from tasks.data.metrics import METRICS
from tasks.data.predictions import (
    NamedPredictions,
    batches,
    image_id,
    known_classes,
    likelihoods,
)
from tasks.gate import paired
from tasks.gate.pairs import Pairs, pair
from tasks.gate.wording import left_out_as, measured, not_recorded

SHOWN, SHOWN_CLASSES = 10, 5
LIMITS = ("difference", "low", "high")


# Of the images that both models were shown, all texts: the name in the data, the SHA-256 of the
# encoded image (null if its file cannot be read), the name of the class (null if it is not known),
# and the identity as `tasks.data.pixels.digest` gives it (null if the image does not decode).
IMAGES = ("path", "sha256", "label", "pixels")


def read_answers(file: Path, images: pa.Table) -> NamedPredictions:
    """Reads the answers of a model that the flow `predict` has written.

    Args:
        file: The file that `tasks.predict.predict.predict` wrote.
        images: The images that were classified, in the same order, with the columns `IMAGES`.

    Returns:
        The answers; an image without one has no prediction, and the confidence 0.

    Raises:
        ValueError: The images have changed since.
    """
    labels = images["label"].combine_chunks()
    numbers, first = [], 0
    with pq.ParquetFile(file) as opened:
        described = opened.read(["sha256", "label"])
        if described["sha256"] != images["sha256"]:
            raise ValueError("The images have changed while they were classified: run again.")
        classes = known_classes(opened)
        for batch, probabilities in batches(opened, classes):
            true = likelihoods(probabilities, labels.slice(first, len(batch)), classes)
            numbers.append([probabilities.max(axis=1), true])
            first += len(batch)
    confidence, likelihood = np.concatenate(numbers, axis=1)
    columns = {
        "image": np.array(
            [image_id(pixels or "0") for pixels in images["pixels"].to_pylist()], np.uint64
        ),
        "label": labels,
        "prediction": described["label"],
        "confidence": confidence,
        "likelihood": likelihood,
    }
    return NamedPredictions(classes, pa.table(columns))


def compare(
    a: NamedPredictions,
    b: NamedPredictions,
    images: pa.Table,
    learnt: Sequence[NDArray[np.uint64] | None],
    rules: Gate,
    metrics: Iterable[str] = METRICS,
) -> tuple[Facts, pa.Table]:
    """Compares the answers of two models, B with A.

    The metrics are of the images with a class that both models know, which none of the two was
    trained or validated on; averages are over the classes that have such images.

    Args:
        a: The answers of the first model.
        b: The answers of the second model.
        images: The images that both were shown, with the columns `IMAGES`; at least one.
        learnt: For each model, the images that it was trained or validated on, as `image_id` gives
            them; None if they are not known.
        rules: The margin and the level.
        metrics: Those that the answers allow to calculate.

    Returns:
        What was found, JSON-able, and the images for which the two give different labels. Found
        are: `shown`, `unanswered` and `same`, as `_agreement` counts them; `pairs`, the most
        frequent different labels; `first`, the first of these images; `labelled`, whether there are
        classes that a model knows. If there are: `no_class`, how many images lack one; for each
        model `learnt` and `recorded` as in a comparison of the gate; `other_classes`, `images` and
        `level` as there; `metrics`, by name the values of `a` and `b` and, if two models can be
        compared by it, what `paired.compare` gives; `only_a` and `only_b`, the images that only one
        has right; and `classes`, those in which the two differ most. Without images to compare,
        `metrics` is empty.
    """
    answers = (a.rows["prediction"], b.rows["prediction"])
    answered = pc.and_(*(column.is_valid() for column in answers)).to_numpy()
    differ = pc.not_equal(*answers).fill_null(False).to_numpy()
    findings = _agreement(a, b, answered, differ)
    compared = np.zeros(len(images), bool)
    if findings["labelled"]:
        used = answered & a.rows["label"].is_valid().to_numpy()
        findings["no_class"] = int((answered & ~used).sum())
        measures, of_used = _measure(a.take(used), b.take(used), learnt, rules, metrics)
        findings |= measures
        compared[np.flatnonzero(used)[of_used]] = True
    table = _beside(a, b, images).append_column("compared", pa.array(compared)).filter(differ)
    findings["first"] = table.slice(0, SHOWN).to_pylist()
    return findings, table


def _beside(a: NamedPredictions, b: NamedPredictions, images: pa.Table) -> pa.Table:
    """The images, with the label and the confidence that each of the two gives."""
    columns = {name: images[name] for name in ("path", "sha256", "label")}
    for name, model in (("a", a), ("b", b)):
        columns[f"{name}_label"] = model.rows["prediction"]
        columns[f"{name}_confidence"] = model.rows["confidence"]
    return pa.table(columns)


def _agreement(
    a: NamedPredictions,
    b: NamedPredictions,
    answered: NDArray[np.bool_],
    differ: NDArray[np.bool_],
) -> Facts:
    """How often the two give the same label, right or wrong; a part of `compare`'s result."""
    labels_a, labels_b = (
        answers.rows["prediction"].filter(differ).to_pylist() for answers in (a, b)
    )
    pairs = Counter(zip(labels_a, labels_b, strict=True)).most_common(SHOWN)
    return {
        "shown": len(answered),
        "unanswered": int((~answered).sum()),
        "same": int((answered & ~differ).sum()),
        "pairs": [
            {"a": label_a, "b": label_b, "images": images} for (label_a, label_b), images in pairs
        ],
        "labelled": not {*a.known, *b.known}.isdisjoint(a.rows["label"].unique().to_pylist()),
    }


def _measure(
    a: NamedPredictions,
    b: NamedPredictions,
    learnt: Sequence[NDArray[np.uint64] | None],
    rules: Gate,
    metrics: Iterable[str],
) -> tuple[Facts, NDArray[np.bool_]]:
    """Compares the two on images that have a class and that both have answered.

    Returns:
        The part of `compare`'s result; and which of these images were compared.
    """
    recorded = [ids for ids in learnt if ids is not None]
    comparable = pair(b, a, np.concatenate(recorded) if recorded else None)
    pairs = comparable.pairs
    facts: Facts = {
        "learnt": [0 if ids is None else int(np.isin(a.images, ids).sum()) for ids in learnt],
        "recorded": [ids is not None for ids in learnt],
        "other_classes": comparable.other_classes,
        "images": pairs.rows,
        "level": rules.level,
        "margin": rules.margin,
        "metrics": {},
        "classes": [],
    }
    if pairs.rows:
        for name in metrics:
            values = {
                "a": pairs.score(pairs.opponent, name),
                "b": pairs.score(pairs.challenger, name),
            }
            if name in paired.COMPARABLE:
                values |= paired.compare(pairs, name, rules.margin, rules.level)
            facts["metrics"][name] = values
        facts["only_b"], facts["only_a"] = pairs.only_one_correct
        facts["classes"] = _classes(pairs)
    return facts, comparable.used


def _classes(pairs: Pairs) -> list[Facts]:
    """The classes in which one model has more images right than the other, the largest first."""
    a, b = (pairs.tally(answers).of_classes for answers in (pairs.opponent, pairs.challenger))
    gains = b.correct - a.correct
    order = np.argsort(-np.abs(gains), kind="stable")[:SHOWN_CLASSES]
    return [
        {
            "label": pairs.names[index],
            "images": int(a.actual[index]),
            "a": float(a.recall[index]),
            "b": float(b.recall[index]),
            "difference": int(gains[index]),
        }
        for index in order
        if gains[index]
    ]


def sentences(findings: Mapping[str, Any], a: str, b: str) -> list[str]:
    """Describes what was found, for a person; the first sentence is the result.

    Args:
        findings: What `compare` returned.
        a: The name of the first model.
        b: The name of the second.
    """
    answered = findings["shown"] - findings["unanswered"]
    share = f" ({findings['same'] / answered:.1%})" if answered else ""
    agreement = f"Both give the same label for {findings['same']:,} of {answered:,} images{share}."
    left_out = left_out_as(findings["unanswered"], "one of the two could not classify them")
    if not findings["labelled"]:
        unknown = f"The images have no class that {a} or {b} knows: their labels are compared."
        return [agreement, unknown, *left_out]
    for name, learnt, recorded in zip(
        (a, b), findings["learnt"], findings["recorded"], strict=True
    ):
        left_out += left_out_as(learnt, f"{name} was trained on them")
        left_out += not_recorded(recorded, name)
    left_out += left_out_as(findings["other_classes"], f"{a} or {b} does not know their classes")
    left_out += left_out_as(findings["no_class"], "they have no class")
    if not findings["metrics"]:
        return ["No image is left to compare.", *left_out, agreement]
    result = measured(findings, "accuracy", a)
    right = f"{findings['only_b']:,} images only {b} has right, {findings['only_a']:,} only {a}."
    margin = (
        f"A model that is worse by less than {findings['margin']:g} (gate.margin) is not worse."
    )
    return [f"{b}: {result[0].lower()}{result[1:]}", right, margin, *left_out, agreement]


def show(findings: Mapping[str, Any], a: str, b: str) -> None:
    """Shows the metrics, the classes and the first images; the arguments of `sentences`."""
    from rich.markup import escape

    number = console.number
    if findings.get("metrics"):
        console.say_table(
            ["metric", a, b, "better by", "from", "to", "the second is"],
            [
                [name, *(number(values[model]) for model in ("a", "b")),
                 *(f"{values[limit]:+.4f}" if limit in values else "" for limit in LIMITS),
                 values.get("outcome", "")]
                for name, values in findings["metrics"].items()
            ],
        )  # fmt: skip
    if findings.get("classes"):
        console.say_table(
            ["class", "images", f"recall, {a}", f"recall, {b}", "more right"],
            [
                [row["label"], f"{row['images']:,}", number(row["a"]), number(row["b"]),
                 f"{row['difference']:+,}"]
                for row in findings["classes"]
            ],
        )  # fmt: skip
    if not findings["labelled"] and findings["pairs"]:
        console.say_table(
            [f"label, {a}", f"label, {b}", "images"],
            [[row["a"], row["b"], f"{row['images']:,}"] for row in findings["pairs"]],
        )
    if findings["first"]:
        console.say_table(
            ["image", "class", a, b],
            [
                [row["path"], row["label"] or "",
                 *(f"{row[f'{m}_label']} {row[f'{m}_confidence']:.2f}" for m in "ab")]
                for row in findings["first"]
            ],
        )  # fmt: skip
    result, *rest = sentences(findings, a, b)
    console.say(f"[bold]{escape(result)}[/]")
    for sentence in rest:
        console.say(escape(sentence))
