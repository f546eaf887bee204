"""Data of two classes, and its validation, accepted or rejected."""

import io

import pandas as pd
import pytest
from PIL import Image

from retrain.errors import RejectedDataError
from retrain.workload import Checks, Data
from tasks.validate import suite
from tasks.validate.step import validate
from tests.tasks.toy_data import encoded, png, pulled, workspace, write_files, write_parquet

DATA = Data(path="data")
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


def run(tmp_path, files, checks=CHECKS):
    write_files(tmp_path / "data", files)
    space = workspace(tmp_path, "validate")
    return validate(DATA, checks, pulled(tmp_path, "folders"), space), space.folder


def run_parquet(tmp_path, files, **options):
    """The same of Parquet files, whose rows name these files."""
    for split in ("train", "val", "test"):
        names = sorted(name for name in files if name.startswith(split))
        rows = [{"bytes": files[name], "path": name} for name in names]
        labels = [["cat", "dog"].index(name.split("/")[1]) for name in names]
        path = tmp_path / f"data/{split}.parquet"
        write_parquet(path, rows, labels, names=["cat", "dog"], **options)
    space = workspace(tmp_path, "validate")
    validate(DATA, CHECKS, pulled(tmp_path, "parquet"), space)
    return space.folder


def rejection(tmp_path, files, checks=CHECKS):
    """The lines of the error, without the first and the last."""
    with pytest.raises(RejectedDataError) as caught:
        run(tmp_path, files, checks)
    first, *lines, last = str(caught.value).split("\n")
    assert first == "The data is rejected:"
    if any(line.startswith("- classes with fewer") for line in lines):
        lines.remove(suite.REMEDY)
    kept = tmp_path / ".retrain/rejected/digits"
    assert last == f"All of them: {kept}/quarantined.parquet and {kept}/data_docs/index.html"
    assert (kept / "quarantined.parquet").is_file()
    assert (kept / "data_docs/index.html").is_file()
    return lines


def quarantine(folder):
    """The reason of each image that was set aside, by its path."""
    rows = pd.read_parquet(folder / "quarantined.parquet")
    return dict(zip(rows["path"], rows["reason"], strict=True))
