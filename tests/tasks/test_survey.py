"""What is seen of images before anybody has described them."""

import pytest
from PIL import Image

from retrain.workload import Data
from tasks.scaffold import survey
from tests.tasks.toy_data import encoded, png, write_files, write_parquet

DATA = Data(path="photos")
PHOTO = encoded(Image.new("RGB", (40, 30), "red"), "JPEG")


def photos(counts, place="{label}/{number}.jpg"):
    return {
        place.format(label=label, number=number, group=f"{label[0]}{number % 4}"): PHOTO
        for label, count in counts.items()
        for number in range(count)
    }


def test_classes_sizes_and_colours_are_counted_and_few_images_decoded(tmp_path, monkeypatch):
    monkeypatch.setattr("tasks.scaffold.DECODED", 5)
    for split, counts in (("train", {"cat": 29, "dog": 10}), ("test", {"cat": 5, "dog": 4})):
        write_files(tmp_path / split, photos(counts) | {"cat/grey.png": png(1, 20, 10)})
    seen = survey(tmp_path, DATA)
    assert (seen.format, seen.classes) == ("folders", {"cat": 36, "dog": 14})
    assert (seen.images, seen.splits, seen.decoded) == (50, {"train": 40, "test": 10}, 5)
    assert (seen.side, seen.is_grey) == (30, False)
    assert seen.bytes == sum(path.stat().st_size for path in tmp_path.rglob("*.*"))


@pytest.mark.parametrize(
    ("place", "groups"),
    [
        ("{label}/{group}/{number}.jpg", 8),
        ("train/{label}/{group}/{number}.jpg", 8),
        ("{label}/{number}.jpg", 0),
        ("{label}/one/{number}.jpg", 0),  # a class in one group has images in one split only
    ],
)
def test_folders_below_the_class_folders_are_groups(tmp_path, place, groups):
    write_files(tmp_path, photos({"cat": 8, "dog": 8}, place))
    assert survey(tmp_path, DATA).groups == groups


def test_a_table_of_grey_images_is_looked_at(tmp_path):
    write_parquet(tmp_path / "pets.parquet", [png(n) for n in range(6)], ["cat", "dog"] * 3)
    seen = survey(tmp_path, DATA)
    assert (seen.format, seen.classes, seen.splits) == ("parquet", {"cat": 3, "dog": 3}, {})
    assert seen.is_grey


def test_what_does_not_decode_is_named_and_if_nothing_does_it_is_refused(tmp_path):
    write_files(tmp_path, photos({"cat": 3}) | {"dog/1.jpg": b"no image"})
    assert list(survey(tmp_path, DATA).undecodable) == ["dog/1.jpg"]
    write_files(tmp_path / "other", {"cat/1.jpg": b"no image", "dog/1.jpg": b""})
    with pytest.raises(ValueError, match=r"None of the images in .* decodes: cat/1\.jpg \(not an"):
        survey(tmp_path / "other", DATA)


@pytest.mark.parametrize("above", ["", "train/"])
def test_an_empty_class_folder_is_refused(tmp_path, above):
    write_files(tmp_path / above, photos({"cat": 3, "dog": 3}))
    (tmp_path / above / "fox").mkdir()
    with pytest.raises(ValueError, match=r"the folder .*/fox is empty\. Put the images"):
        survey(tmp_path, DATA)
