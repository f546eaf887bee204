"""Test images that are divided by what is known of them, and a model's accuracy in each part."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retrain.store import Artifact
from tasks.data import slices
from tasks.data.metrics import wilson

ROWS = 24
NUMBERS = [number / 2 for number in range(22)]
RARE = ["Bath"] * 2 + ["Lyon"] * 9 + ["Oslo"] * 11
THIRDS = ["lowest"] * 8 + ["middle"] * 8 + ["highest"] * 8
FROM_ELEVEN = ["lowest"] * 3 + ["middle"] * 4 + ["highest"] * 4
IMAGES = pa.table(
    {
        "width": [8] * ROWS,
        "height": [8] * ROWS,
        "camera": ["Fuji X100", None] * 12,
        "brightness": [number / 255 for number in range(ROWS)],
        "site": ["Lyon", "Oslo", None] * 8,
        "age": pa.array([*NUMBERS, None, float("nan")], pa.float64()),
        "rare": [*RARE, None, None],
        "ten": [row % 10 for row in range(ROWS)],
        "eleven": [row % 11 for row in range(ROWS)],
    }
)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("camera", ["Fuji X100", "unknown"] * 12),
        ("width", ["8"] * ROWS),
        ("aspect", ["1.0"] * ROWS),  # it follows from the size
        ("brightness", THIRDS),
        ("age", ["lowest"] * 8 + ["middle"] * 7 + ["highest"] * 7 + ["unknown"] * 2),
        ("ten", ["0", "1", *["others"] * 8] * 2 + ["0", "1", *["others"] * 2]),
        ("eleven", (FROM_ELEVEN * 3)[:ROWS]),
        ("rare", ["others"] * 2 + RARE[2:] + ["others"] * 2),  # after the most frequent ones
    ],
)
def test_images_are_divided_by_the_values_or_the_thirds_of_a_column(column, expected, monkeypatch):
    monkeypatch.setattr(slices, "MAX_VALUES", 2)
    names, _ = slices.divide(IMAGES, [column], np.ones(ROWS, bool))
    assert names[column].to_pylist() == expected


def test_the_accuracy_of_each_slice_is_counted_in_order(tmp_path):
    names, parts = slices.divide(IMAGES, ("site", "age"), np.arange(ROWS) >= 2)
    site = {"column": "site", "images": 8}
    intervals = [dict(zip(("low", "high"), wilson(hits, 8), strict=True)) for hits in (7, 8)]
    wrong = {"correct": 7, "accuracy": 7 / 8, **intervals[0]}
    assert parts[:3] == [
        site | {"value": "Lyon"} | wrong,
        site | {"value": "Oslo"} | wrong,
        site | {"value": "unknown"} | {"correct": 8, "accuracy": 1.0, **intervals[1]},
    ]
    assert [(part["value"], part.get("from"), part.get("to")) for part in parts[3:]] == [
        ("lowest", 0.0, 3.5),
        ("middle", 4.0, 7.0),
        ("highest", 7.5, 10.5),
        ("unknown", None, None),
    ]
    pq.write_table(names, tmp_path / slices.FILE)
    scores = Artifact("evaluate", "k", "d", tmp_path, {})
    assert slices.slice_mask(scores, parts[1]).tolist() == [row % 3 == 1 for row in range(ROWS)]


@pytest.mark.parametrize(("value", "found"), [(None, ["a", "b"]), ("b", ["b"])])
def test_slices_are_found_by_the_name_of_a_metric(value, found):
    parts = [{"column": "x", "value": "b"}, *({"column": "y", "value": name} for name in "ab")]
    assert [part["value"] for part in slices.find_slices(parts, "y", value)] == found
    with pytest.raises(ValueError, match="y=Rome; there are the values a, b"):
        slices.find_slices(parts, "y", "Rome")
