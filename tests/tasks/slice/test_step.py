"""Test images that are divided by what is known of them, and a model's accuracy in each part."""

import hashlib
import json
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
from tasks.data.slices import FILE, Slices
from tasks.slice import step
from tasks.slice.step import score, slice_
from tasks.validate.step import validate
from tests.tasks.toy_data import encoded, png, pulled, workspace, write_files, write_parquet

ROWS = 24
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


def validated(root: Path) -> Artifact:
    """What `validate` writes about the images below `root / "data"`."""
    space = workspace(root, "validate")
    facts = validate(Data(path="data"), CHECKS, pulled(root), space)
    return Artifact("validate", "k", "validated", space.folder, facts)


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


def divide(root: Path, *columns: str) -> Artifact:
    """The output of `slice`."""
    space = workspace(root, "slice")
    facts = slice_(Gate(slices=columns), validated(root), space)
    return Artifact("slice", "k", "d", space.folder, facts)


def values(divided: Artifact, column: str) -> list[str]:
    return pq.read_table(divided.folder / FILE)[column].to_pylist()


def test_images_are_divided_by_what_their_files_say(tmp_path, folders):
    divided = divide(folders, "camera", "format", "width", "mode", "brightness")
    assert values(divided, "camera") == ["Fuji X100", "unknown"] * (ROWS // 2)
    assert values(divided, "format") == ["PNG", "JPEG"] * (ROWS // 2)
    assert {*values(divided, "width")} == {"8"}
    assert {*values(divided, "mode")} == {"L"}
    assert values(divided, "brightness") == ["lowest"] * 8 + ["middle"] * 8 + ["highest"] * 8
    assert list(divided.facts["limits"]) == ["brightness"]
    limits = divided.facts["limits"]["brightness"]
    assert list(limits) == ["lowest", "middle", "highest"]
    assert limits["middle"] == pytest.approx((80 / 255, 150 / 255), abs=0.01)


def test_a_column_of_the_users_own_comes_from_the_rows_of_the_images(tmp_path, rows):
    divided = divide(rows, "site", "contrast")
    assert values(divided, "site") == ["Lyon", "Oslo", "unknown"] * (ROWS // 3)
    checked = Artifact("validate", "k", "validated", rows / "validate", {})
    with pytest.raises(ValueError, match=r"has no column town, but aspect, brightness, .*, site, "):
        slice_(Gate(slices=("town",)), checked, None)


def test_or_from_a_file_beside_the_images(tmp_path, folders, monkeypatch):
    monkeypatch.setattr(step, "MAX_VALUES", 2)  # those after the most frequent ones are one
    named = [path.removeprefix("test/") for path in PATHS[:-2]]  # two are not listed
    sites = ["Bath"] * 2 + ["Lyon"] * 9 + ["Oslo"] * 11
    ages = [number / 2 for number in range(len(named))]
    table = pa.table({"file_name": named, "site": sites, "age": ages})
    csv.write_csv(table, folders / "data/test/metadata.csv")
    divided = divide(folders, "site", "age")
    assert values(divided, "site") == (
        ["others"] * 2 + ["Lyon"] * 9 + ["Oslo"] * 11 + ["others"] * 2
    )
    assert values(divided, "age")[-2:] == ["unknown"] * 2
    assert divided.facts["limits"]["age"]["lowest"] == (0.0, 3.5)


def test_the_accuracy_of_each_slice_has_the_interval_of_wilson(tmp_path, rows):
    divided = divide(rows, "site", "brightness")
    labels = [path.split("/")[1] for path in PATHS]
    table = {
        "sha256": [hashlib.sha256(image).hexdigest() for image in IMAGES],
        "label": labels,
        "prediction": ["bee" if number < 2 else label for number, label in enumerate(labels)],
    }
    (tmp_path / "scores").mkdir()
    pq.write_table(pa.table(table), tmp_path / "scores" / "predictions.parquet")
    scores = Artifact("evaluate", "k", "d", tmp_path / "scores", {})
    space = workspace(tmp_path, "score_slices")
    facts = score(scores, divided, space)
    counted = {(each["column"], each["value"]): each for each in facts["slices"]}
    assert list(counted) == [
        *(("site", name) for name in ("Lyon", "Oslo", "unknown")),
        *(("brightness", name) for name in ("lowest", "middle", "highest")),
    ]
    oslo = counted["site", "Oslo"]
    assert (oslo["images"], oslo["correct"], oslo["accuracy"]) == (8, 7, 7 / 8)
    # Wilson (1927): the shares p with |x/n - p| = z sqrt(p (1 - p) / n).
    for limit in (oslo["low"], oslo["high"]):
        reach = norm.isf(0.025) * np.sqrt(limit * (1 - limit) / 8)
        assert abs(7 / 8 - limit) == pytest.approx(reach)
    assert counted["brightness", "lowest"]["from"] == pytest.approx(0.0, abs=0.01)
    assert json.loads((space.report / "slices.json").read_text()) == facts["slices"]
    slices = Slices(divided, Artifact("score_slices", "k", "s", space.folder, facts))
    assert slices.contains(oslo).tolist() == [number % 3 == 1 for number in range(ROWS)]
    with pytest.raises(ValueError, match="site=Rome; there are the values Lyon, Oslo, unknown"):
        slices.named("site", "Rome")
