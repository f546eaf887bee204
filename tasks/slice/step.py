"""Divides the test split into slices, and counts how often the model is right in each.

A slice is the images with the same value in a column, which is one of the image table, of the image
itself, or of the user's own (`tasks/data/own_columns.py`). Numbers of which there are many are cut
into thirds: `lowest`, `middle`, `highest`. A slice with few images is shown, but not judged by the
gate.
"""

import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from retrain.atomic import write_json
from retrain.step import Chosen, Facts, Input, Workspace, step
from retrain.store import Artifact
from retrain.workload import Data, Gate, Workload
from tasks.compute.prefetch import prefetch
from tasks.data import image_facts, image_table, own_columns, predictions
from tasks.data.image_table import AcceptedImage, read_images
from tasks.data.metrics import wilson
from tasks.data.raw_dataset import READERS, RawDataset, open_raw_dataset
from tasks.data.slices import FILE, Slice

UNKNOWN = "unknown"  # the value where there is none
OTHERS = "others"  # the value of all that come after the most frequent ones
MAX_VALUES = 100
MAX_NUMBERS = 10  # more different numbers in a column are cut into thirds
THIRDS = ("lowest", "middle", "highest")
SPLIT = "test"
FROM_TABLE = ("width", "height", "mode", "bytes", "file")
FROM_IMAGE = (*image_facts.FACTS, "camera", "format")
_MAKE, _MODEL = 271, 272  # tags of EXIF


def has_slices(workload: Workload) -> bool:
    """Whether a workload asks for slices of the test split."""
    return bool(workload.gate.slices)


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
    table, limits = _read_table(validated.folder, ["sha256"]), {}
    for name, values in _read_columns(source, validated.folder, rules.slices).items():
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


def _read_table(validated: Path, columns: Sequence[str]) -> pa.Table:
    """Columns of the image table of the test images, in the order of the prepared rows."""
    return pa.concat_tables(image_table.read_split(validated, SPLIT, columns))


def _read_columns(
    source: RawDataset, validated: Path, names: Sequence[str]
) -> dict[str, list[Any]]:
    """The values of each test image, by column; None where an image has none.

    Args:
        source: The data.
        validated: The output of `validate`.
        names: The columns.

    Raises:
        ValueError: There is no such column, or a file with it cannot be read.
    """
    user_columns = [name for name in names if name not in (*FROM_TABLE, *FROM_IMAGE)]
    columns = _read_table(validated, [name for name in FROM_TABLE if name in names]).to_pydict()
    measured = [name for name in FROM_IMAGE if name in names]
    if measured:
        from joblib import cpu_count

        cores = cpu_count()
        images = read_images(source, validated, SPLIT)
        facts = list(prefetch(_measure, images, 2 * cores, cores))
        columns |= {name: [of_image.get(name) for of_image in facts] for name in measured}
    if user_columns:
        standard = ", ".join((*FROM_TABLE, *FROM_IMAGE))
        otherwise = f"nothing that is known of every image ({standard})"
        rows = _read_table(validated, ["file", "row", "path"])
        columns |= own_columns.read_columns(source, user_columns, rows, "gate.slices", otherwise)
    return {name: columns[name] for name in names}


def _measure(image: AcceptedImage) -> dict[str, Any]:

    with Image.open(io.BytesIO(image.data)) as opened:
        exif, kind = opened.getexif(), opened.format
    camera = " ".join(str(exif[tag]).strip("\0 ") for tag in (_MAKE, _MODEL) if tag in exif)
    facts = image_facts.measure(image.data) or {}
    return {**facts, "camera": camera or None, "format": kind}


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


@slice_.chooses
def _dependencies(workload: Workload, pulled: Input, *_: Input) -> Chosen:
    assert isinstance(pulled, Artifact)
    return Chosen(modules=(READERS[pulled.facts["format"]],))
