"""Lists the images whose labels are suspect, that contradict each other, or are like no others."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from retrain.step import Facts, Workspace, step
from retrain.store import Artifact
from tasks.data import findings
from tasks.data.fingerprint import THUMBNAIL, look_alikes
from tasks.data.image_table import natural_order, read_split
from tasks.data.review_list import CONTRADICTION, OUTLIER, WRONG_LABEL
from tasks.suspects import confident, outliers
from tasks.suspects.embeddings import EMBEDDINGS

if TYPE_CHECKING:
    import pandas as pd

FILE = "suspects.json"
MAX_OUTLIERS = 200
MAX_LISTED = 5000
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
        wrong, whether one can tell which or not; the `classes`; and how many images have each of
        `COUNTS`.
    """
    import pandas as pd

    columns = ["path", "split", "label", "file", "row", "sha256"]
    images = read_split(validated.folder, columns=columns).to_pandas()
    classes = sorted(validated.facts["classes"], key=natural_order)
    labels = pd.Index(classes).get_indexer(images["label"]).astype(np.int64)
    embeddings = np.load(embedded.folder / EMBEDDINGS, allow_pickle=False)
    logits = confident.out_of_sample(embeddings, labels)
    logs, noise = confident.log_probabilities(logits, labels)
    wrong = confident.wrong_labels(logs, noise, labels)
    contradicted = _contradicted(validated.folder, images["sha256"], labels)
    distances = outliers.distances(embeddings, labels)
    found = {
        WRONG_LABEL: wrong,
        CONTRADICTION: np.array([*contradicted], np.int64),
        OUTLIER: outliers.far_out(distances)[:MAX_OUTLIERS],
    }
    proposed = logs.argmax(axis=1)
    proposed[wrong] = confident.proposals(logs, labels)[wrong]
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
    return {"rows": len(labels), "noise": round(noise, 4), "classes": classes} | counts


def _contradicted(
    validated: Path, digests: "pd.Series[str]", labels: NDArray[np.int64]
) -> dict[int, int]:
    """For each image that looks like one with another label, the first such image."""
    with pa.memory_map(f"{validated}/{findings.FILE}") as file:
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
