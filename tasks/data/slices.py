"""Slices of the test split: the images that share a value, such as the camera.

`evaluate` divides the test images by the columns of `gate.slices`: what is known of each image, and
the user's own columns. Numbers of which there are many are cut into thirds: `lowest`, `middle`,
`highest`. A slice with few images is shown, but not judged by the gate.

A rule of the gate names the slice of a value, `accuracy[camera=Canon EOS R5]`, or all slices of a
column, `accuracy[camera]`.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from retrain.store import Artifact
from tasks.data import image_facts
from tasks.data.metrics import wilson

# In the output of `evaluate`: the name of each test image's value in each column.
FILE = "slices.parquet"
UNKNOWN = "unknown"  # the name where there is no value
OTHERS = "others"  # that of all values after the most frequent ones
MAX_VALUES = 100
MAX_NUMBERS = 10  # more different numbers in a column are cut into thirds
THIRDS = ("lowest", "middle", "highest")

# Its `column` and `value`; its `images`, how many of them are `correct`, and the `accuracy`, with
# `low` and `high`, the 95 % interval of Wilson (1927); and of a third of numbers `from` and `to`.
Slice = dict[str, Any]

_NAME = re.compile(r"accuracy\[([^=\]]+)(?:=(.*))?\]", re.DOTALL)


def divide(
    images: pa.Table, columns: Sequence[str], correct: NDArray[np.bool_]
) -> tuple[pa.Table, list[Slice]]:
    """Divides images, and counts how often a model is right in each slice.

    Args:
        images: A row for each, with the columns of `image_table`.
        columns: Those by whose values they are divided.
        correct: Bool (images,): whether the model is right.

    Returns:
        The name of each image's value in each column, as `FILE` has it; and the slices, by column.
    """
    sizes = zip(images["width"].to_pylist(), images["height"].to_pylist(), strict=True)
    sides = pa.Table.from_pylist([image_facts.size_facts(*size) for size in sizes])
    names: dict[str, NDArray[np.str_]] = {}
    slices: list[Slice] = []
    for column in columns:
        table = images if column in images.column_names else sides
        values: list[Any] = table[column].to_pylist()
        values = [None if value != value else value for value in values]  # NaN
        thirds = _thirds(values)
        names[column] = _frequent(values) if thirds is None else thirds
        ordered = sorted(
            {*names[column].tolist()}, key=lambda name: ((*THIRDS, name).index(name), name)
        )
        for value in ordered:
            rows = np.flatnonzero(names[column] == value)
            count, hits = len(rows), int(correct[rows].sum())
            low, high = wilson(hits, count)
            part = {
                "column": column,
                "value": value,
                "images": count,
                "correct": hits,
                "accuracy": hits / count,
                "low": low,
                "high": high,
            }
            if thirds is not None and value != UNKNOWN:
                inside = [values[row] for row in rows]
                part |= {"from": min(inside), "to": max(inside)}
            slices.append(part)
    return pa.table(names), slices


def _thirds(values: Sequence[Any]) -> NDArray[np.str_] | None:
    """The name of each number's third; None if they are few, or no numbers."""
    present = [value for value in values if value is not None]
    are_numbers = all(isinstance(value, int | float) for value in present)
    if not are_numbers or len({*present}) <= MAX_NUMBERS:
        return None
    ends = np.quantile(present, [1 / 3, 2 / 3])
    thirds = (UNKNOWN if v is None else THIRDS[np.searchsorted(ends, v)] for v in values)
    return np.array([*thirds])


def _frequent(values: Sequence[Any]) -> NDArray[np.str_]:
    """Each value as text, or `OTHERS` if it is a rare one."""
    texts = [UNKNOWN if value is None else str(value) for value in values]
    counts = Counter(texts)
    frequent = {*sorted(counts, key=lambda text: (-counts[text], text))[:MAX_VALUES]}
    return np.array([text if text in frequent else OTHERS for text in texts])


def find_slices(slices: Sequence[Slice], column: str, value: str | None) -> list[Slice]:
    """Those of a column, or the one of a value.

    Raises:
        ValueError: No test image has the value.
    """
    of_column = [part for part in slices if part["column"] == column]
    if found := [part for part in of_column if value in (None, part["value"])]:
        return found
    values = ", ".join(part["value"] for part in of_column)
    raise ValueError(f"gate: no test image has {column}={value}; there are the values {values}.")


def slice_mask(scores: Artifact, part: Slice) -> NDArray[np.bool_]:
    """Which images of the test split are in a slice: bool (images,).

    Args:
        scores: The output of `evaluate`.
        part: One of its slices.
    """
    names = pq.read_table(scores.folder / FILE, columns=[part["column"]]).column(0)
    inside: NDArray[np.bool_] = pc.equal(names, part["value"]).to_numpy()
    return inside


def parse_metric(metric: str) -> tuple[str, str | None] | None:
    """The column, and the value or None, in the name of a metric of slices.

    Returns:
        None for the name of another metric.
    """
    match = _NAME.fullmatch(metric)
    return (match[1], match[2]) if match else None


def metric_of(part: Slice) -> str:
    """The name of the accuracy in a slice."""
    return f"accuracy[{part['column']}={part['value']}]"
