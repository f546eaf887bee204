"""Lists the images whose labels are suspect, that contradict each other, or are like no others."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from retrain.step import Facts, Workspace, step
from retrain.store import Artifact
from tasks.data import findings
from tasks.data.fingerprint import THUMBNAIL, look_alikes
from tasks.data.image_table import natural_order, read_split
from tasks.data.reading import open_images
from tasks.data.review_list import CONTRADICTION, OUTLIER, WRONG_LABEL, with_images, write
from tasks.suspects import confident, outliers
from tasks.suspects.embeddings import EMBEDDINGS

MAX_OUTLIERS = 200
MAX_LISTED = 5000
COUNTS = {
    "wrong_labels": WRONG_LABEL,
    "contradictions": CONTRADICTION,
    "outliers": OUTLIER,
}


@step(
    inputs=("pull", "validate", "embed_with_champion"),
    libraries=("numpy", "pyarrow", "scipy"),
    has_stage=False,
)
def find_suspects(
    pulled: Artifact,
    validated: Artifact,
    embedded: Artifact,
    workspace: Workspace,
) -> Facts:
    """Finds what a person should look at, and lists the first `MAX_LISTED`.

    Writes a review list (`tasks/data/review_list.py`): first the labels that are probably wrong,
    then what contradicts a near-duplicate, then the outliers.

    Returns:
        `rows`, how many images there are; `noise`, the share of their labels that seems to be
        wrong, whether one can tell which or not; the `classes`; and how many images have each of
        `COUNTS`.
    """
    columns = ["path", "split", "label", "file", "row", "sha256"]
    images = read_split(validated.folder, columns=columns)
    classes = sorted(validated.facts["classes"], key=natural_order)
    places = pc.index_in(images["label"], pa.array(classes, pa.string()))
    labels = places.to_numpy().astype(np.int64)
    embeddings = np.load(embedded.folder / EMBEDDINGS, allow_pickle=False)
    logits = confident.out_of_sample(embeddings, labels)
    logs, noise = confident.log_probabilities(logits, labels)
    wrong = confident.wrong_labels(logs, noise, labels)
    contradicting = _contradictions(validated.folder, images, labels)
    distances = outliers.distances(embeddings, labels)
    far = outliers.far_out(distances)[:MAX_OUTLIERS]
    proposed = logs.argmax(axis=1)
    proposed[wrong] = confident.proposals(logs, labels)[wrong]
    found = {WRONG_LABEL: wrong.tolist(), CONTRADICTION: contradicting, OUTLIER: far.tolist()}
    reasons = _reasons(found)
    shown = pa.array([*reasons][:MAX_LISTED], pa.int64())
    rows = [
        known
        | {
            "why": "; ".join(reasons[image]),
            "proposed": classes[proposed[image]],
            "confidence": np.exp(logs[image, proposed[image]]),
            "distance": distances[image] / np.median(distances),
            "look_alike": contradicting.get(image),
        }
        for image, known in zip(shown.to_pylist(), images.take(shown).to_pylist(), strict=True)
    ]
    places = [(row["file"], row["row"]) for row in rows]
    write(workspace.folder, with_images(open_images(pulled), places, rows))
    counts = {name: len(found[kind]) for name, kind in COUNTS.items()}
    return {"rows": len(labels), "noise": round(noise, 4), "classes": classes} | counts


def _reasons(found: Mapping[str, Iterable[int]]) -> dict[int, list[str]]:
    """Why each image is listed, in the order in which they are."""
    reasons: dict[int, list[str]] = defaultdict(list)
    for reason, images in found.items():
        for image in images:
            reasons[image].append(reason)
    return reasons


def _contradictions(validated: Path, images: pa.Table, labels: NDArray[np.int64]) -> dict[int, str]:
    """For each image that looks like one with another label, the path of the first such image."""
    with pa.memory_map(f"{validated}/{findings.FILE}") as file:
        known = pa.ipc.open_file(file).read_all()
        rows = pc.index_in(images["sha256"], known["sha256"])
        prints = known["fingerprint"].take(rows).to_numpy()
        thumbnails = known["thumbnail"].take(rows).combine_chunks()
    pixels = np.frombuffer(thumbnails.buffers()[1], np.uint8).reshape(-1, THUMBNAIL)
    lefts, rights = look_alikes(prints, pixels.__getitem__)
    differ = labels[lefts] != labels[rights]
    pairs = np.unique(np.sort([lefts[differ], rights[differ]], axis=0), axis=1)
    others: dict[int, str] = {}
    for pair in pairs.T.tolist():
        for image, other in (pair, pair[::-1]):
            others.setdefault(image, images["path"][other].as_py())
    return others
