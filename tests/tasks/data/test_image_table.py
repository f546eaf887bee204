import pytest

from retrain.workload import Checks, Data
from tasks.data import image_table, raw_dataset
from tasks.validate.step import validate
from tests.tasks.toy_data import png, pulled, workspace, write_files

pytestmark = pytest.mark.usefixtures("ray_session")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """What `validate` writes for four units of three images, of which the third is all bad."""
    monkeypatch.setattr(raw_dataset, "WORTH_ROWS", 3)
    names = [
        *(f"test/{label}/{number}.png" for label in "ab" for number in range(2)),
        *("train/a/1.png", "train/a/2.png"),
        *(f"train/a/broken{number}.png" for number in range(3)),
        *("train/b/1.png", "val/a/1.png", "val/b/1.png"),
    ]
    files = {n: b"broken" if "broken" in n else png(i) for i, n in enumerate(names)}
    write_files(tmp_path / "data", files)
    space = workspace(tmp_path, "validate")
    checks = Checks(min_images_per_class=1, max_bad_fraction=0.5)
    validate(Data(path="data"), checks, pulled(tmp_path, "folders"), space)
    return space.folder


def test_each_unit_with_accepted_images_is_a_row_group(folder):
    assert image_table.row_groups(folder) == [
        image_table.RowGroup(0, 0, {"test": 3}),
        image_table.RowGroup(1, 1, {"test": 1, "train": 2}),
        image_table.RowGroup(2, 3, {"train": 1, "val": 2}),
    ]


def test_columns_of_a_unit_or_of_a_split_are_read(folder):
    assert image_table.read(folder, 1, ["unit", "file"]).to_pydict() == {
        "unit": [1, 1, 1],
        "file": ["test/b/1.png", "train/a/1.png", "train/a/2.png"],
    }
    parts = [part.to_pydict() for part in image_table.read_split(folder, "train", ["file"])]
    assert parts == [{"file": ["train/a/1.png", "train/a/2.png"]}, {"file": ["train/b/1.png"]}]
    assert image_table.class_names(folder) == ["a", "b"]


def test_numbers_in_names_are_ordered_as_numbers():
    names = ["10", "2", "img10", "img2", "b", "a10b2", "a10b10", "02", "Ä", "٣"]
    assert sorted(names, key=image_table.natural_order) == [
        *("02", "2", "10", "a10b2", "a10b10", "b", "img2", "img10", "Ä", "٣")
    ]
