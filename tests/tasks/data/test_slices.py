"""Test images that are divided by what is known of them, and a model's accuracy in each part."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from pyarrow import csv
from scipy.stats import norm

from retrain.store import Artifact
from retrain.workload import Checks, Data, Gate
from tasks.data import slices
from tasks.data.image_table import read_split
from tasks.validate.step import validate
from tests.tasks.toy_data import encoded, png, pulled, workspace, write_files, write_parquet

ROWS = 24
RIGHT = np.ones(ROWS, bool)
CHECKS = Checks(min_images_per_class=1, max_bad_fraction=0.9)


def photo(number: int, kind: str, camera: str | None) -> bytes:
    """An image whose brightness grows with its number."""
    image = Image.fromarray(np.full((8, 8), 10 * number, np.uint8))
    exif = Image.Exif()
    if camera:
        exif[271], exif[272] = camera.split(" ", 1)
    return encoded(image, kind, exif=exif)


IMAGES = [
    photo(number, ("PNG", "JPEG")[number % 2], ("Fuji X100", None)[number % 2])
    for number in range(ROWS)
]
PATHS = [f"test/{('ant', 'bee')[number // 12]}/{number:02}.img" for number in range(ROWS)]
OTHERS = {
    f"{split}/{label}/1.png": png(2 * place + number)
    for place, split in enumerate(("train", "val"))
    for number, label in enumerate(("ant", "bee"))
}


def divide(root: Path, *columns: str, correct: np.ndarray = RIGHT):
    """The images below `root / "data"`, divided: the names of their values, and the slices."""
    space = workspace(root, "validate")
    validate(Data(path="data"), CHECKS, Gate(slices=columns), pulled(root), None, space)
    names, parts = slices.divide(read_split(space.folder, "test"), columns, correct)
    return names, {(part["column"], part["value"]): part for part in parts}


@pytest.fixture
def folders(tmp_path):
    """Class folders."""
    write_files(tmp_path / "data", dict(zip(PATHS, IMAGES, strict=True)) | OTHERS)
    return tmp_path


@pytest.fixture
def rows(tmp_path):
    """Parquet files with a column of the user's own."""
    table = {
        "image": IMAGES,
        "label": [path.split("/")[1] for path in PATHS],
        "site": [("Lyon", "Oslo", None)[number % 3] for number in range(ROWS)],
    }
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table(table), tmp_path / "data/test.parquet", row_group_size=7)
    for place, split in enumerate(("train", "val")):
        images = [*OTHERS.values()][2 * place :][:2]
        write_parquet(tmp_path / f"data/{split}.parquet", images, ["ant", "bee"])
    return tmp_path


def test_images_are_divided_by_what_their_files_say(folders):
    names, parts = divide(folders, "camera", "format", "width", "mode", "brightness", "aspect")
    assert names["camera"].to_pylist() == ["Fuji X100", "unknown"] * (ROWS // 2)
    assert names["format"].to_pylist() == ["PNG", "JPEG"] * (ROWS // 2)
    assert {*names["width"].to_pylist()} == {"8"}
    assert {*names["mode"].to_pylist()} == {"L"}
    assert {*names["aspect"].to_pylist()} == {"1.0"}
    thirds = ["lowest"] * 8 + ["middle"] * 8 + ["highest"] * 8
    assert names["brightness"].to_pylist() == thirds
    middle = parts["brightness", "middle"]
    assert (middle["from"], middle["to"]) == pytest.approx((80 / 255, 150 / 255), abs=0.01)
    assert [each for each, part in parts.items() if "from" in part] == [
        ("brightness", name) for name in ("lowest", "middle", "highest")
    ]


def test_a_column_that_the_data_lacks_is_named_before_anything_is_decoded(rows):
    with pytest.raises(ValueError, match=r"has no column town, but aspect, brightness, .*, site, "):
        divide(rows, "town")
    assert not (rows / "validate" / "images.parquet").exists()


def test_or_from_a_file_beside_the_images(folders, monkeypatch):
    monkeypatch.setattr(slices, "MAX_VALUES", 2)  # those after the most frequent ones are one
    named = [path.removeprefix("test/") for path in PATHS[:-2]]  # two are not listed
    sites = ["Bath"] * 2 + ["Lyon"] * 9 + ["Oslo"] * 11
    ages = [number / 2 for number in range(len(named))]
    table = pa.table({"file_name": named, "site": sites, "age": ages})
    csv.write_csv(table, folders / "data/test/metadata.csv")
    names, parts = divide(folders, "site", "age")
    assert names["site"].to_pylist() == (
        ["others"] * 2 + ["Lyon"] * 9 + ["Oslo"] * 11 + ["others"] * 2
    )
    assert names["age"].to_pylist()[-2:] == ["unknown"] * 2
    lowest = parts["age", "lowest"]
    assert (lowest["from"], lowest["to"]) == (0.0, 3.5)


def test_the_accuracy_of_each_slice_has_the_interval_of_wilson(tmp_path, rows):
    names, parts = divide(rows, "site", "brightness", correct=np.arange(ROWS) >= 2)
    assert list(parts) == [
        *(("site", name) for name in ("Lyon", "Oslo", "unknown")),
        *(("brightness", name) for name in ("lowest", "middle", "highest")),
    ]
    oslo = parts["site", "Oslo"]
    assert (oslo["images"], oslo["correct"], oslo["accuracy"]) == (8, 7, 7 / 8)
    # Wilson (1927): the shares p with |x/n - p| = z sqrt(p (1 - p) / n).
    for limit in (oslo["low"], oslo["high"]):
        reach = norm.isf(0.025) * np.sqrt(limit * (1 - limit) / 8)
        assert abs(7 / 8 - limit) == pytest.approx(reach)
    assert parts["brightness", "lowest"]["from"] == pytest.approx(0.0, abs=0.01)
    pq.write_table(names, tmp_path / slices.FILE)
    scores = Artifact("evaluate", "k", "d", tmp_path, {})
    assert slices.slice_mask(scores, oslo).tolist() == [row % 3 == 1 for row in range(ROWS)]
    with pytest.raises(ValueError, match="site=Rome; there are the values Lyon, Oslo, unknown"):
        slices.find_slices([*parts.values()], "site", "Rome")
