import pytest

from retrain.store import Artifact
from retrain.workload import Checks, Data
from tasks.data import image_table, raw_dataset
from tasks.data.champion import TestSplit
from tasks.data.raw_dataset import open_raw_dataset
from tasks.validate.step import validate
from tests.tasks.toy_data import png, pulled, workspace, write_files, write_parquet

pytestmark = pytest.mark.usefixtures("ray_session")

NAMES = [
    *(f"test/{label}/{number}.png" for label in "ab" for number in range(2)),
    *("train/a/1.png", "train/a/2.png"),
    *(f"train/a/broken{number}.png" for number in range(3)),
    *("train/b/1.png", "val/a/1.png", "val/b/1.png"),
]
FILES = {name: b"broken" if "broken" in name else png(n) for n, name in enumerate(NAMES)}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """What `validate` writes for four units of three images, of which the third is all bad."""
    monkeypatch.setattr(raw_dataset, "MAX_UNIT_ROWS", 3)
    write_files(tmp_path / "data", FILES)
    space = workspace(tmp_path, "validate")
    checks = Checks(min_images_per_class=1, max_bad_fraction=0.5)
    validate(Data(path="data"), checks, pulled(tmp_path, "folders"), space)
    return space.folder


def test_units_splits_and_images_are_read_from_the_table(folder):
    names = [image_table.read(folder, number, ["file"])["file"].to_pylist() for number in range(3)]
    sizes = [sum(len(FILES[name]) for name in some) for some in names]
    assert image_table.row_groups(folder) == [
        image_table.RowGroup(0, sizes[0], {"test": 3}),
        image_table.RowGroup(1, sizes[1], {"test": 1, "train": 2}),
        image_table.RowGroup(2, sizes[2], {"train": 1, "val": 2}),
    ]
    assert image_table.read(folder, 1, ["unit", "file"]).to_pydict() == {
        "unit": [1, 1, 1],
        "file": ["test/b/1.png", "train/a/1.png", "train/a/2.png"],
    }
    parts = [part.to_pydict() for part in image_table.read_split(folder, "train", ["file"])]
    assert parts == [{"file": ["train/a/1.png", "train/a/2.png"]}, {"file": ["train/b/1.png"]}]
    assert image_table.class_names(folder) == ["a", "b"]
    source = open_raw_dataset(Data(path="data"), pulled(folder.parent, "folders"))
    for wanted, rows in ((None, [0, 1, 2, 3]), ([3, 1], [1, 3]), ([], [])):
        images = image_table.read_images(source, folder, "test", wanted)
        assert [(image.path, image.label, image.data) for image in images] == [
            (NAMES[row], "aabb"[row], FILES[NAMES[row]]) for row in rows
        ]


def test_numbers_in_names_are_ordered_as_numbers():
    names = ["10", "2", "img10", "img2", "b", "a10b2", "a10b10", "02", "Ä", "٣"]
    assert sorted(names, key=image_table.natural_order) == [
        *("02", "2", "10", "a10b2", "a10b10", "b", "img2", "img10", "Ä", "٣")
    ]


def test_a_corrected_label_makes_another_test_split_of_the_same_images(tmp_path):
    def digests(name, labels):
        root = tmp_path / name
        for number, split in enumerate(image_table.SPLITS):
            images = [png(10 * number + row) for row in range(4)]
            of_split = labels if split == "test" else ["a", "b", "a", "b"]
            write_parquet(root / "data" / f"{split}.parquet", images, of_split)
        space = workspace(root, "validate")
        facts = validate(
            Data(path="data"), Checks(min_images_per_class=1), pulled(root, "parquet"), space
        )
        artifact = Artifact("validate", "key", "digest", space.folder, facts)
        return TestSplit(artifact).digest, image_table.digest_of_split(space.folder, "train")

    before, after = digests("before", ["a", "b", "a", "b"]), digests("after", ["a", "b", "b", "b"])
    assert before[0] != after[0]
    assert before[1] == after[1]
    assert digests("again", ["a", "b", "a", "b"]) == before
