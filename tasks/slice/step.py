"""Divides the test split into slices, and counts how often the model is right in each.

A slice is the images with the same value in a column of the image table, which has what is known of
each image and the user's own columns. Numbers of which there are many are cut into thirds:
`lowest`, `middle`, `highest`. A slice with few images is shown, but not judged by the gate.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from retrain.atomic import write_json
from retrain.step import Facts, Workspace, step
from retrain.store import Artifact
from retrain.workload import Gate, Workload
from tasks.data import image_facts, image_table, predictions
from tasks.data.metrics import wilson
from tasks.data.slices import FILE, Slice

UNKNOWN = "unknown"  # the value where there is none
OTHERS = "others"  # the value of all that come after the most frequent ones
MAX_VALUES = 100
MAX_NUMBERS = 10  # more different numbers in a column are cut into thirds
THIRDS = ("lowest", "middle", "highest")
SPLIT = "test"
LEFT_OUT = {"split", "path", "label", "row", "sha256", "pixels"}  # of the columns to choose from


def has_slices(workload: Workload) -> bool:
    """Whether a workload asks for slices of the test split."""
    return bool(workload.gate.slices)


@step(
    name="slice",
    inputs=("validate",),
    reads=("gate.slices",),
    libraries=("numpy", "pyarrow"),
    hours=2,
    needed=has_slices,
    has_stage=False,
)
def slice_(rules: Gate, validated: Artifact, workspace: Workspace) -> Facts:
    """Divides the test split.

    Writes `slices.parquet`: for each test image, in the order of the predictions, its SHA-256 and
    the name of its value in each column.

    Returns:
        `limits`, by column whose numbers were cut into thirds: the smallest and the largest number
        of each third.

    Raises:
        ValueError: There is no column of a name.
    """
    images = image_table.read_split(validated.folder, SPLIT)
    sizes = zip(images["width"].to_pylist(), images["height"].to_pylist(), strict=True)
    sides = pa.Table.from_pylist([image_facts.of_size(*size) for size in sizes])
    table, limits = images.select(["sha256"]), {}
    for name in rules.slices:
        if name not in (*images.column_names, *sides.column_names):
            known = sorted({*images.column_names, *sides.column_names} - LEFT_OUT)
            raise ValueError(f"gate.slices: the data has no column {name}, but {', '.join(known)}.")
        values = (images if name in images.column_names else sides)[name].to_pylist()
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
    correct = [label == answer for label, answer in zip(labels, predicted, strict=True)]
    table = pq.read_table(divided.folder / FILE)
    assert table["sha256"].to_pylist() == images
    slices: list[Slice] = []
    for column in table.column_names[1:]:
        limits = divided.facts["limits"].get(column, {})
        slices += _slices_of(column, table[column].to_pylist(), correct, limits)
    write_json(workspace.report / "slices.json", slices)
    return {"slices": slices}


def _slices_of(
    column: str,
    values: Sequence[str],
    correct: Sequence[bool],
    limits: Mapping[str, tuple[float, float]],
) -> Iterator[Slice]:
    """The slices of a column."""
    for value in (*THIRDS, UNKNOWN) if limits else sorted({*values}):
        inside = [
            hit for hit, image_value in zip(correct, values, strict=True) if image_value == value
        ]
        if inside:
            yield _slice(column, value, inside, limits.get(value))


def _name(values: Sequence[Any]) -> tuple[list[str], dict[str, tuple[float, float]]]:
    """The name of each image's value; and what the names of thirds stand for."""
    values = [None if value != value else value for value in values]  # NaN
    present = [value for value in values if value is not None]
    if len({*present}) > MAX_NUMBERS and all(isinstance(value, int | float) for value in present):
        thirds = np.searchsorted(np.quantile(present, [1 / 3, 2 / 3]), present).tolist()
        limits = {}
        for third, name in enumerate(THIRDS):
            inside = [value for value, at in zip(present, thirds, strict=True) if at == third]
            if inside:
                limits[name] = (min(inside), max(inside))
        names = iter(thirds)
        return [UNKNOWN if value is None else THIRDS[next(names)] for value in values], limits
    texts = [UNKNOWN if value is None else str(value) for value in values]
    counts = Counter(texts)
    frequent = {*sorted(counts, key=lambda text: (-counts[text], text))[:MAX_VALUES]}
    return [text if text in frequent else OTHERS for text in texts], {}


def _slice(
    column: str, value: str, correct: Sequence[bool], limits: tuple[float, float] | None
) -> Slice:
    images, hits = len(correct), sum(correct)
    low, high = wilson(hits, images)
    counted: Slice = {
        "column": column,
        "value": value,
        "images": images,
        "correct": hits,
        "accuracy": hits / images,
        "low": low,
        "high": high,
    }
    return counted | dict(zip(("from", "to"), limits, strict=True)) if limits else counted
