"""Lists the images whose labels are suspect, that contradict each other, or are like no others.

Labels that are probably wrong are found by confident learning. The frame is that of C. Northcutt,
L. Jiang, I. Chuang: Confident Learning: Estimating Uncertainty in Dataset Labels, Journal of
Artificial Intelligence Research 70 (2021): answers of a classifier that has not seen the image's
label; an estimate of how many labels are wrong; and the images ranked
by how probable their own label is. The classifier is a linear discriminant analysis of the
embeddings, fitted on four fifths of the images and asked about the last one, five times. Means and
a covariance hardly notice a few wrong labels, and need one pass over the images.

The paper takes the number of wrong labels from the confident joint, which counts all images that
are confidently of another class. Where classes are alike, most of these are the classifier's own
mistakes: on CIFAR-10 with 3 % of the labels flipped, four of five. So the number comes from a
model of the labels here: with the probability `noise`, which is fitted together with a temperature,
a label is any of the others. That says of each image how probable it is that its label is wrong.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from retrain.step import Facts, Workspace, step
from retrain.store import Artifact
from tasks.data.image_table import FINDINGS, natural_order, read_split
from tasks.data.perceptual_hash import THUMBNAIL, look_alikes
from tasks.data.review_list import CONTRADICTION, OUTLIER, WRONG_LABEL
from tasks.suspects.embeddings import EMBEDDINGS

if TYPE_CHECKING:
    import pandas as pd

FILE = "suspects.json"
MAX_OUTLIERS = 200
MAX_LISTED = 5000
FOLDS = 5
# Parts of the mean variance: of the classifier; and of distances, where it keeps directions in
# which nothing varies from counting.
RIDGE, LEAST_RIDGE = 0.1, 0.01
WANTED = 0.5  # the share of the listed labels that are expected to be wrong, at least
LEAST = 0.1  # how probable it is at least that a label that is listed is wrong
ENOUGH = 0.5  # the share of wrong labels that would be listed, with which nothing found says much
MOST_FITTED = 100_000  # images; more do not change two numbers
FENCE = 3.0  # interquartile ranges above the upper quartile: Tukey's "far out"
ROWS = 16_384  # that are compared at a time
COUNTS = {
    "wrong_labels": WRONG_LABEL,
    "contradictions": CONTRADICTION,
    "outliers": OUTLIER,
}


@step(
    inputs=("validate", "embed_with_champion"),
    libraries=("numpy", "pandas", "pyarrow", "scipy"),
)
def find_suspects(validated: Artifact, embedded: Artifact, workspace: Workspace) -> Facts:
    """Finds what a person should look at, and lists the first `MAX_LISTED`.

    Writes the rows of a review list (`tasks/data/review_list.py`) as JSON: first the labels that
    are probably wrong, then what contradicts a near-duplicate, then the outliers.

    Returns:
        `rows`, how many images there are; `noise`, the share of their labels that seems to be
        wrong, whether one can tell which or not; `accuracy` of the classifier, on images that it
        has not seen; `findable`, the share of wrong labels that would be listed, and `can_tell`,
        whether that is `ENOUGH`; and how many images have each of `COUNTS`.
    """
    import pandas as pd
    from threadpoolctl import threadpool_limits

    columns = ["path", "split", "label", "file", "row", "sha256"]
    images = read_split(validated.folder, columns=columns).to_pandas()
    classes = sorted(validated.facts["classes"], key=natural_order)
    labels = pd.Index(classes).get_indexer(images["label"]).astype(np.int64)
    embeddings = np.load(embedded.folder / EMBEDDINGS, allow_pickle=False)
    with threadpool_limits(1):  # so that the result does not depend on the number of cores
        logits = out_of_sample(embeddings, labels)
        distances = distances_from_others(embeddings, labels)
    logs, noise = log_probabilities(logits, labels)
    wrong = wrong_labels(logs, noise, labels)
    contradicted = _contradicted(validated.folder, images["sha256"], labels)
    found = {
        WRONG_LABEL: wrong,
        CONTRADICTION: np.array([*contradicted], np.int64),
        OUTLIER: far_out(distances)[:MAX_OUTLIERS],
    }
    proposed = logs.argmax(axis=1)
    proposed[wrong] = without_label(logs, labels).argmax(axis=1)[wrong]
    reasons = pd.Series(np.repeat([*found], [*map(len, found.values())]), dtype=object)
    by_image = reasons.groupby(np.concatenate([*found.values()]), sort=False)
    why = by_image.agg("; ".join)[:MAX_LISTED]
    shown = why.index.to_numpy()
    listed = images.iloc[shown].assign(
        why=why,
        proposed=np.array(classes)[proposed[shown]],
        confidence=np.exp(logs[shown, proposed[shown]]),
        distance=distances[shown] / np.median(distances),
        look_alike=images["path"].reindex([contradicted.get(image, -1) for image in shown]).array,
    )
    listed.to_json(workspace.folder / FILE, orient="records")
    counts = {name: len(found[kind]) for name, kind in COUNTS.items()}
    share = findable(logs, noise, labels, wrong)
    return {
        "rows": len(labels),
        "noise": round(noise, 4),
        "accuracy": round(float((logits.argmax(axis=1) == labels).mean()), 4),
        "findable": round(share, 4),
        "can_tell": share >= ENOUGH,
    } | counts


def _contradicted(
    validated: Path, digests: "pd.Series[str]", labels: NDArray[np.int64]
) -> dict[int, int]:
    """For each image that looks like one with another label, the first such image."""
    with pa.memory_map(f"{validated}/{FINDINGS}") as file:
        known = pa.ipc.open_file(file).read_all()
        rows = pc.index_in(pa.array(digests, pa.string()), known["sha256"])
        prints = known["fingerprint"].take(rows).to_numpy()
        thumbnails = known["thumbnail"].take(rows).combine_chunks()
    pixels = np.frombuffer(thumbnails.buffers()[1], np.uint8).reshape(-1, THUMBNAIL)
    lefts, rights = look_alikes(prints, pixels.__getitem__)
    differ = labels[lefts] != labels[rights]
    pairs = np.unique(np.sort([lefts[differ], rights[differ]], axis=0), axis=1)
    others: dict[int, int] = {}
    for one, other in pairs.T.tolist():
        others.setdefault(one, other)
        others.setdefault(other, one)
    return others


def out_of_sample(
    embeddings: NDArray[np.float32], labels: NDArray[np.int64]
) -> NDArray[np.float64]:
    """The logit of each class, from a classifier that has not seen the image.

    Args:
        embeddings: float32 (N, D).
        labels: int64 (N,): the index of each image's class.

    Returns:
        float64 (N, classes); a class that only one image has is impossible for that image.
    """
    order = np.random.default_rng(0).permutation(len(labels))
    by_class = order[np.argsort(labels[order], kind="stable")]
    folds = np.empty(len(labels), np.int64)
    folds[by_class] = np.arange(len(labels)) % FOLDS  # each class is spread over all of them
    logits = np.empty((len(labels), labels.max() + 1))
    for fold in range(FOLDS):
        held_out = folds == fold
        logits[held_out] = _discriminate(
            embeddings[~held_out], labels[~held_out], embeddings[held_out], logits.shape[1]
        )
    return logits


def _discriminate(
    known: NDArray[np.float32],
    labels: NDArray[np.int64],
    queries: NDArray[np.float32],
    classes: int,
) -> NDArray[np.float64]:
    """The logits of a linear discriminant analysis: float64 (asked, classes)."""
    means, covariance = _within_classes(known, labels, classes, RIDGE)
    weights = np.linalg.solve(covariance, means.T)
    with np.errstate(divide="ignore"):  # of a class without an image here: minus infinity
        priors = np.log(np.bincount(labels, minlength=classes) / len(labels))
    return np.asarray(queries @ weights - (means.T * weights).sum(axis=0) / 2 + priors)


def _within_classes(
    embeddings: NDArray[np.float32], labels: NDArray[np.int64], classes: int, ridge: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The mean of each class, and the covariance within the classes.

    Args:
        embeddings: float32 (N, D).
        labels: int64 (N,).
        classes: The number of classes; the mean of one without an image is 0.
        ridge: The part of the mean variance that is added to that of each direction.

    Returns:
        float64 (classes, D) and (D, D).
    """
    means = np.zeros((classes, embeddings.shape[1]))
    for number in np.unique(labels):
        means[number] = embeddings[labels == number].mean(axis=0)
    inside = embeddings - means[labels].astype(np.float32)
    covariance = (inside.T @ inside / np.float32(len(inside))).astype(np.float64)
    added = ridge * max(float(np.trace(covariance)) / len(covariance), 1e-12)
    return means, covariance + added * np.eye(len(covariance))


def log_probabilities(
    logits: NDArray[np.float64], labels: NDArray[np.int64]
) -> tuple[NDArray[np.float64], float]:
    """The logarithm of the probability of each class, and the share of labels that are wrong.

    Both are the most probable ones given the labels: the logits are divided by a temperature, and
    a label is drawn from the probabilities, or with the probability `noise` is one of the others.

    Args:
        logits: float64 (N, classes), out of sample.
        labels: int64 (N,).

    Returns:
        float64 (N, classes), and the noise, from 0 to 1.
    """
    from scipy.optimize import minimize
    from scipy.special import expit, log_softmax, softmax

    some = slice(None, None, 1 + len(labels) // MOST_FITTED)
    fitted, rows = logits[some], np.arange(len(labels[some]))

    def surprise(point: NDArray[np.float64]) -> float:
        own = softmax(fitted * np.exp(point[0]), axis=1)[rows, labels[some]]
        return -float(np.log(_with_noise(own, expit(point[1]), logits.shape[1]) + 1e-12).mean())

    best = minimize(surprise, [-1.0, -3.0], method="Nelder-Mead", options={"fatol": 1e-7}).x
    return log_softmax(logits * np.exp(best[0]), axis=1), float(expit(best[1]))


def _with_noise(own: NDArray[np.float64], noise: float, classes: int) -> NDArray[np.float64]:
    """The probability of each label, of which a share is one of the other classes by mistake."""
    return (1 - noise) * own + noise * (1 - own) / (classes - 1)


def wrong_labels(
    logs: NDArray[np.float64], noise: float, labels: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The images whose label is probably wrong, the most probable first.

    They are as many as possible with at least `WANTED` of their labels expected to be wrong, and
    each at least as probable as `LEAST`. They are ranked by the margin between the label and all
    other classes: where a classifier is sure, probabilities are 0 and 1, and rank nothing.

    Args:
        logs: float64 (N, classes), the logarithms of the probabilities, out of sample.
        noise: The share of labels that are wrong.
        labels: int64 (N,).

    Returns:
        The indices of the images, int64.
    """
    from scipy.special import logsumexp

    rows = np.arange(len(labels))
    margins = logs[rows, labels] - logsumexp(without_label(logs, labels), axis=1)
    ranked = np.argsort(margins, kind="stable")
    chances = _chances(logs[rows, labels][ranked], noise, logs.shape[1])
    expected = np.cumsum(chances) / np.arange(1, len(labels) + 1)
    return ranked[: np.count_nonzero((expected >= WANTED) & (chances >= LEAST))]


def _chances(logs: NDArray[np.float64], noise: float, classes: int) -> NDArray[np.float64]:
    """How probable it is that labels with these logarithms of probabilities are wrong."""
    own = np.exp(logs)
    wrong = noise * (1 - own) / (classes - 1)
    return wrong / np.maximum(_with_noise(own, noise, classes), 1e-12)


def findable(
    logs: NDArray[np.float64],
    noise: float,
    labels: NDArray[np.int64],
    listed: NDArray[np.int64],
) -> float:
    """The share of wrong labels that would be listed: of all images, with each other class.

    Args:
        logs: float64 (N, classes), the logarithms of the probabilities, out of sample.
        noise: The share of labels that are wrong; one is supposed to be, at least.
        labels: int64 (N,).
        listed: What `wrong_labels` has found; what is less probable than the rest is not listed.
    """
    images, classes = logs.shape
    chances = _chances(logs, max(noise, 1 / images), classes)
    rest = np.delete(chances[np.arange(images), labels], listed)
    would_be = chances >= max(LEAST, float(rest.max(initial=0)))
    would_be[np.arange(images), labels] = False
    return float(would_be.sum() / (images * (classes - 1)))


def without_label(logs: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """The same without the class that each image is labelled with: minus infinity there."""
    others = logs.copy()
    others[np.arange(len(labels)), labels] = -np.inf
    return others


def distances_from_others(
    embeddings: NDArray[np.float32], labels: NDArray[np.int64]
) -> NDArray[np.float64]:
    """How far each image is from the nearest mean of a class.

    It is the Mahalanobis distance with the covariance within the classes (Lee, Lee, Lee and Shin:
    A Simple Unified Framework for Detecting Out-of-Distribution Samples, 2018).

    Args:
        embeddings: float32 (N, D).
        labels: int64 (N,).

    Returns:
        float64 (N,).
    """
    from scipy.cluster.vq import vq

    classes, places = np.unique(labels, return_inverse=True)
    means, covariance = _within_classes(embeddings, places, len(classes), LEAST_RIDGE)
    whitening = np.linalg.inv(np.linalg.cholesky(covariance)).T
    parts = np.array_split(embeddings, 1 + len(embeddings) // ROWS)
    return np.concatenate([vq(part @ whitening, means @ whitening)[1] for part in parts])


def far_out(distances: NDArray[np.float64]) -> NDArray[np.int64]:
    """The images that are much farther away than most, the farthest first.

    Args:
        distances: float64 (N,).

    Returns:
        int64: the indices of the images.
    """
    lower, upper = np.quantile(distances, [0.25, 0.75])
    found = np.flatnonzero(distances > upper + FENCE * (upper - lower))
    return found[np.argsort(-distances[found], kind="stable")]
