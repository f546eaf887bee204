"""Data of two classes, and its validation, accepted or rejected."""

import io

import pandas as pd
import pytest
from PIL import Image

from retrain.errors import RejectedDataError
from retrain.workload import Checks, Data, Gate
from tasks.validate.expectations import REMEDY
from tasks.validate.step import validate
from tests.tasks.toy_data import encoded, png, pulled, workspace, write_files

CHECKS = Checks(min_images_per_class=3)
TOLERANT = Checks(min_images_per_class=3, max_bad_fraction=0.5)
# Two classes in three splits: 4, 2 and 3 of each.
NAMES = [
    f"{split}/{label}/{number}.png"
    for split, count in {"train": 4, "val": 2, "test": 3}.items()
    for label in ("cat", "dog")
    for number in range(count)
]
FILES = {name: png(number) for number, name in enumerate(NAMES)}


def again(data, kind):
    """The same pixels in other bytes."""
    return encoded(Image.open(io.BytesIO(data)), kind)


def run(tmp_path, files, checks=CHECKS, kind="folders", earlier=None, slices=(), **data):
    """The facts and the folder of a validation; `data` is what the user says of it."""
    write_files(tmp_path / "data", files)
    space = workspace(tmp_path, "validate", earlier)
    config, source = Data(path="data", **data), pulled(tmp_path, kind, **data)
    return validate(config, checks, Gate(slices=slices), source, None, space), space.folder


def rejection(tmp_path, files, checks=CHECKS, **data):
    """The lines of the error, without the first and the last."""
    with pytest.raises(RejectedDataError) as caught:
        run(tmp_path, files, checks, **data)
    first, *lines, last = str(caught.value).split("\n")
    assert first == "The data is rejected:"
    if any(line.startswith("- classes with fewer") for line in lines):
        lines.remove(REMEDY)
    kept = tmp_path / ".retrain/rejected/digits"
    assert last == f"All of them: {kept}/quarantined.parquet and {kept}/validation_results.json"
    assert (kept / "quarantined.parquet").is_file()
    return lines


def quarantine(folder):
    """The reason of each image that was set aside, by its path."""
    rows = pd.read_parquet(folder / "quarantined.parquet")
    return dict(zip(rows["path"], rows["reason"], strict=True))
