"""Measures how far incoming images are from a reference, and how far chance alone may put them.

Each feature has a distance from 0 to 1: of labels the total variation distance of their shares, of
numbers the Kolmogorov-Smirnov statistic, of embeddings the energy coefficient (`energy`).

The effect of chance is measured by a permutation test: the images of both samples are divided at
random into two samples of the same sizes, many times. If nothing has changed, each division is as
likely as the real one, whatever the distribution of the feature. The median of their distances is
the usual distance. The yardstick is a larger distance, chosen so that without a change, at least
one feature exceeds its yardstick in at most 5 of 100 checks (Bonferroni); it is above the usual
distance by at least the effect of one image. The score says how far the real distance is above the
usual one, and is 1 at the yardstick.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from rich.markup import escape

from retrain.file_io import write_json
from retrain.params import load_section
from retrain.project import Project
from retrain.registry.versions import ModelVersion
from retrain.runs import console
from retrain.runs.notifications import emit
from retrain.step import Facts
from retrain.workload import Drift
from tasks.data.image_facts import FACTS

EVENT = "retrain.drift"
TEST_SPLIT = "the test split"
MANY_COPIES = 0.05  # of the sample, of which people are told
DIVISIONS = 1000
LEVEL = 0.05  # the probability that any feature exceeds its yardstick though nothing has changed
NUMBERS = ("confidence", *FACTS)
# Of a feature: its name (`label`, `confidence`, one of `FACTS`, or `embedding`: what the last layer
# of the model takes); its mean in the reference and in what comes in, None for labels and
# embeddings; the distance, from 0 to 1; the distance where nothing has changed, in the median; the
# one that is seldom exceeded then; and the score: 0 is as usual or closer, 1 is the yardstick.
COLUMNS = ("feature", "reference", "incoming", "distance", "usual", "yardstick", "score")


def report(
    project: Project,
    version: ModelVersion,
    reference: pa.Table,
    incoming: pa.Table,
    place: str,
    against: str,
    run: str,
) -> dict[str, Any]:
    """Compares two samples, keeps the result below the project's state, and tells of a drift.

    Args:
        project: The clone.
        version: The version that classified both.
        reference: A sample with the columns of `tasks.data.predictions.SAMPLE_SCHEMA`.
        incoming: A sample of the incoming images, with the same columns.
        place: The name of the input.
        against: The name of the reference.
        run: The id of the flow run.

    Returns:
        The result, JSON-able.
    """
    threshold = load_section(project.params, version.name, Drift).threshold
    features = compare(reference, incoming)
    worst = max(features, key=lambda feature: float(feature["score"]))
    folder = project.state / "drift" / version.name
    result = {
        "reference": against,
        "reference_images": len(reference),
        "images": len(incoming),
        "threshold": threshold,
        "score": worst["score"],
        "feature": worst["feature"],
        "drifted": worst["score"] > threshold,
        "copies": len(incoming) - len(incoming["sha256"].unique()),
        "features": features,
        "labels": shares(reference, incoming),
        "file": project.relative(folder / f"{run}.json"),
    }
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(incoming.drop_columns(["features"]), folder / f"{run}.parquet")
    model = {"model": version.name, "version": version.version, "run": run, "input": place}
    write_json(folder / f"{run}.json", model | result)
    if result["drifted"]:
        reasons = {name: result[name] for name in ("score", "feature", "threshold")}
        emit(EVENT, version.name, model | reasons)
    return result


def sentence(drift: Mapping[str, Any]) -> str:
    """The result in one sentence, and another one if there are many copies of images."""
    score = f"{drift['score']:.1f}" if drift["score"] < 100 else "more than 100"
    verdict = "Drift" if drift["drifted"] else "No drift"
    text = (
        f"{verdict}: {drift['feature']} is furthest from {drift['reference']}, with a score of "
        f"{score}; chance alone seldom exceeds 1 (drift.threshold {drift['threshold']:g})."
    )
    if drift["copies"] > MANY_COPIES * drift["images"]:
        text += (
            f" {drift['copies']:,} of the {drift['images']:,} images are copies of others, byte by "
            "byte: is a camera stuck, or something sent twice?"
        )
    return text


def show_features(drift: Mapping[str, Any]) -> None:
    """Shows the features, then the labels."""
    rows = [
        [feature["feature"], *(console.number(feature[name]) for name in COLUMNS[1:])]
        for feature in drift["features"]
    ]
    console.say_table(COLUMNS, rows)
    shares = [
        [row["label"], f"{row['reference']:.1%}", f"{row['incoming']:.1%}"]
        for row in drift["labels"]
    ]
    console.say_table(["label", "reference", "incoming"], shares)
    console.say(f"[bold]{escape(sentence(drift))}[/]")
    console.say(
        escape(
            f"{drift['images']:,} images were compared with {drift['reference_images']:,} of "
            f"{drift['reference']}; {drift['file']}"
        )
    )


def compare(reference: pa.Table, incoming: pa.Table, seed: int = 0) -> list[Facts]:
    """Compares two samples with the columns of `tasks.data.predictions.SAMPLE_SCHEMA`.

    Args:
        reference: At least one image.
        incoming: At least one image.
        seed: The seed of the random divisions.

    Returns:
        The `COLUMNS` of each feature: labels first, the embedding last, if both samples have some.
    """
    tables = (reference, incoming)
    embeddings = [table["features"].drop_null().to_numpy() for table in tables]
    has_embeddings = all(map(len, embeddings))
    level = LEVEL / (1 + len(NUMBERS) + has_embeddings)
    sizes = [*map(len, tables)]
    is_incoming = _divisions(sizes, seed)
    labels = np.concatenate([table["label"].to_numpy() for table in tables])
    differences, scale = _differences(labels, is_incoming)
    total_variation = abs(differences).sum(axis=1) / (2 * scale)
    features = [_feature("label", total_variation, level, min(sizes))]
    for name in NUMBERS:
        values = [table[name].to_numpy().astype(np.float64) for table in tables]
        differences, scale = _differences(np.concatenate(values), is_incoming)
        distances = abs(differences.cumsum(axis=1)).max(axis=1) / scale  # Kolmogorov-Smirnov
        means = [float(column.mean()) for column in values]
        features.append(_feature(name, distances, level, min(sizes), *means))
    if has_embeddings:
        sizes = [*map(len, embeddings)]
        distances = energy(np.stack([*np.concatenate(embeddings)]), _divisions(sizes, seed))
        features.append(_feature("embedding", distances, level, min(sizes)))
    return features


def shares(reference: pa.Table, incoming: pa.Table) -> list[dict[str, Any]]:
    """The share of each label in both samples."""
    theirs, ours = (Counter(table["label"].to_pylist()) for table in (reference, incoming))
    return [
        {
            "label": name,
            "reference": theirs[name] / len(reference),
            "incoming": ours[name] / len(incoming),
        }
        for name in sorted({*theirs, *ours})
    ]


def _divisions(sizes: Sequence[int], seed: int) -> NDArray[np.bool_]:
    """Which images belong to what comes in: as it is, and in divisions at random.

    Args:
        sizes: How many images the reference has, and what comes in.
        seed: The seed of the random divisions.

    Returns:
        Bool (1 + DIVISIONS, images).
    """
    is_incoming = np.tile(np.arange(sum(sizes)) >= sizes[0], (1 + DIVISIONS, 1))
    is_incoming[1:] = np.random.default_rng(seed).permuted(is_incoming[1:], axis=1)
    return is_incoming


def _feature(
    name: str,
    distances: NDArray[np.float64],
    level: float,
    smaller: int,
    reference: float | None = None,
    incoming: float | None = None,
) -> Facts:
    """A feature from its distances, the real one first, of which the share `level` may be larger.

    Args:
        name: The name of the feature.
        distances: (1 + DIVISIONS,).
        level: The share of distances that may be larger.
        smaller: The number of images of the smaller sample.
        reference: The mean of the feature in the reference; None if it has none.
        incoming: The mean of the feature in the incoming images; None if it has none.
    """
    distance, usual = float(distances[0]), float(np.median(distances))
    seldom = float(np.quantile(distances, 1 - level, method="inverted_cdf"))
    reach = max(seldom - usual, 1 / smaller)
    score = max(0.0, distance - usual) / reach
    values = (name, reference, incoming, distance, usual, usual + reach, score)
    return dict(zip(COLUMNS, values, strict=True))


def _differences(
    values: NDArray[Any], is_incoming: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], int]:
    """How much more often each value comes in than it is in the reference, for each division.

    Returns:
        The differences of the two shares (divisions, values), in order of the values; and the
        number that stands for 1 in them. They are whole numbers, so that ties stay ties.
    """
    order = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.append(True, values[order][1:] != values[order][:-1]))
    images, incoming = is_incoming.shape[1], int(is_incoming[0].sum())
    steps = np.where(is_incoming[:, order], images - incoming, -incoming)
    return np.add.reduceat(steps, starts, axis=1), (images - incoming) * incoming


def energy(features: NDArray[np.float32], is_incoming: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The distance of two samples of features, for each division of the same images into two.

    It is the energy coefficient of Székely and Rizzo ("Energy statistics: A class of statistics
    based on distances", Journal of Statistical Planning and Inference 143, 2013), as a root:

        sqrt((2 E|X - Y| - E|X - X'| - E|Y - Y'|) / (2 E|X - Y|))

    X and X' are drawn from the one sample, Y and Y' from the other, and |.| is the Euclidean norm.
    It is 0 only for two equal distributions, 1 at most, and knows no parameter and no unit.

    Args:
        features: (N, D), of the images of both samples.
        is_incoming: (divisions, N), which images belong to the second one.

    Returns:
        (divisions,), from 0 to 1.
    """
    rows = features.astype(np.float64)
    squares = np.einsum("ij,ij->i", rows, rows)
    apart = np.sqrt(np.maximum(squares[:, None] + squares - 2 * rows @ rows.T, 0))
    in_second = is_incoming.astype(np.float64)
    in_first, sizes = 1 - in_second, in_second.sum(axis=1)
    # The summed distances of each image to those of a sample; both make up those to all.
    to_second = in_second @ apart
    to_first = apart.sum(axis=0) - to_second
    second = np.einsum("ij,ij->i", to_second, in_second) / sizes**2
    between = np.einsum("ij,ij->i", to_first, in_second) / (sizes * (len(features) - sizes))
    first = np.einsum("ij,ij->i", to_first, in_first) / (len(features) - sizes) ** 2
    squared = np.maximum(2 * between - first - second, 0)  # rounding may make it negative
    shares = np.divide(squared, 2 * between, out=np.zeros_like(squared), where=between > 0)
    return np.asarray(np.sqrt(shares))
