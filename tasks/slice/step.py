"""Divides the test split into slices, and counts how often the model is right in each.

A slice is the images with the same value in a column. Numbers of which there are many are cut into
thirds: `lowest`, `middle`, `highest`. A slice with few images is shown, but not judged by the gate.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from retrain.atomic import write_json
from retrain.step import Chosen, Facts, Input, Workspace, current_run, step
from retrain.store import Artifact
from retrain.workload import Data, Gate, Workload
from tasks.data import predictions
from tasks.data.raw_dataset import READERS, open_raw_dataset
from tasks.data.slices import FILE, Slice, Slices
from tasks.slice.columns import read_columns, read_table

UNKNOWN = "unknown"  # the value where there is none
OTHERS = "others"  # the value of all that come after the most frequent ones
MAX_VALUES = 100
MAX_NUMBERS = 10  # more different numbers in a column are cut into thirds
THIRDS = ("lowest", "middle", "highest")
CONFIDENCE = 0.95  # of the intervals


def has_slices(workload: Workload) -> bool:
    """Whether a workload asks for slices of the test split."""
    return bool(workload.gate.slices)


def slice_test_split(pulled: Artifact, checked: Artifact) -> Artifact | None:
    """Divides the test split, if a workload asks for it."""
    return slice_(pulled, checked) if has_slices(current_run().workload) else None


def score_slices(pulled: Artifact, checked: Artifact, scores: Artifact) -> Slices:
    """The slices that a workload asks for, with the model's accuracy in each."""
    divided = slice_test_split(pulled, checked)
    return Slices(divided, score(scores, divided) if divided else None)


@step(
    name="slice",
    inputs=("pull", "validate"),
    reads=("gate.slices", "data.image_column", "data.label_column"),
    libraries=("numpy", "pillow", "pyarrow"),
    hours=2,
    needed=has_slices,
    has_stage=False,
)
def slice_(
    rules: Gate, data: Data, pulled: Artifact, validated: Artifact, workspace: Workspace
) -> Facts:
    """Divides the test split.

    Writes `slices.parquet`: for each test image, in the order of the predictions, its SHA-256 and
    the name of its value in each column.

    Returns:
        `limits`, by column whose numbers were cut into thirds: the smallest and the largest number
        of each third.

    Raises:
        ValueError: There is no column of a name.
    """
    source = open_raw_dataset(data, pulled)
    table, limits = read_table(validated.folder, ["sha256"]), {}
    for name, values in read_columns(source, validated.folder, rules.slices).items():
        named, of_thirds = _name(values)
        table = table.append_column(name, pa.array(named, pa.string()))
        if of_thirds:
            limits[name] = of_thirds
    pq.write_table(table, workspace.folder / FILE)
    return {"limits": limits}


@step(
    name="score_slices",
    inputs=("evaluate", "slice"),
    libraries=("pyarrow", "scipy"),
    hours=2,
    needed=has_slices,
    has_stage=False,
)
def score(scores: Artifact, divided: Artifact, workspace: Workspace) -> Facts:
    """Measures the accuracy in each slice; writes `report/slices.json`.

    Returns:
        `slices`, for each its `column`, `value`, `images`, `correct`, `accuracy`, and `low` and
        `high`, the 95 % interval of Wilson (1927); and for a third of numbers `from` and `to`.
    """
    file, names = scores.folder / predictions.FILE, ["sha256", "label", "prediction"]
    images, labels, predicted = (
        column.to_pylist() for column in pq.read_table(file, columns=names)
    )
    table = pq.read_table(divided.folder / FILE)
    assert table["sha256"].to_pylist() == images
    correct = [label == answer for label, answer in zip(labels, predicted, strict=True)]
    slices = []
    for column in table.column_names[1:]:
        limits = divided.facts["limits"].get(column, {})
        values = table[column].to_pylist()
        for value in (*THIRDS, UNKNOWN) if limits else sorted({*values}):
            inside = [hit for hit, of in zip(correct, values, strict=True) if of == value]
            if inside:
                slices.append(_slice(column, value, inside, limits.get(value)))
    write_json(workspace.report / "slices.json", slices)
    return {"slices": slices}


def _name(values: Sequence[Any]) -> tuple[list[str], dict[str, tuple[float, float]]]:
    """The name of each image's value; and what the names of thirds stand for."""
    values = [None if value != value else value for value in values]  # NaN
    given = [value for value in values if value is not None]
    if len({*given}) > MAX_NUMBERS and all(isinstance(value, int | float) for value in given):
        thirds = np.searchsorted(np.quantile(given, [1 / 3, 2 / 3]), given).tolist()
        limits = {}
        for third, name in enumerate(THIRDS):
            inside = [value for value, at in zip(given, thirds, strict=True) if at == third]
            if inside:
                limits[name] = (min(inside), max(inside))
        names = iter(thirds)
        return [UNKNOWN if value is None else THIRDS[next(names)] for value in values], limits
    texts = [UNKNOWN if value is None else str(value) for value in values]
    counts = Counter(texts)
    kept = {*sorted(counts, key=lambda text: (-counts[text], text))[:MAX_VALUES]}
    return [text if text in kept else OTHERS for text in texts], {}


def _slice(
    column: str, value: str, correct: Sequence[bool], limits: tuple[float, float] | None
) -> Slice:
    from scipy.stats import binomtest

    images, hits = len(correct), sum(correct)
    interval = binomtest(hits, images).proportion_ci(CONFIDENCE, method="wilson")
    counted: Slice = {
        "column": column,
        "value": value,
        "images": images,
        "correct": hits,
        "accuracy": hits / images,
        "low": float(interval.low),
        "high": float(interval.high),
    }
    return counted | dict(zip(("from", "to"), limits, strict=True)) if limits else counted


@slice_.chooses
def _chosen(workload: Workload, pulled: Input, *_: Input) -> Chosen:
    assert isinstance(pulled, Artifact)
    return Chosen(modules=(READERS[pulled.facts["format"]],))
