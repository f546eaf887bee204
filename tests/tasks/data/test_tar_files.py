"""Tar files in the layout of WebDataset."""

import io
import tarfile

import pytest

from retrain.workload import Data
from tasks.data.raw_dataset import open_raw_dataset, unit_of
from tests.tasks.toy_data import png, pulled

DATA = Data(path="data")


def write_tar(path, files):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def source(folder):
    return open_raw_dataset(DATA, pulled(folder, "webdataset"))


def read(folder):
    opened = source(folder)
    return [image for unit in opened.units() for image in opened.read(unit)]


def test_a_sample_is_an_image_and_its_class(tmp_path):
    write_tar(
        tmp_path / "data/train-0.tar",
        {
            **{"a/1.png": png(1), "a/1.cls": b"cat\n", "a/1.txt": b"a caption"},
            **{"a/2.json": b'{"label": 7}', "a/2.png": png(2)},
            **{"3.seg.png": png(3), "3.cls": b"dog"},
            "4.cls": b"dog",
        },
    )
    write_tar(tmp_path / "data/test.tar", {"1.png": png(5)})
    found = read(tmp_path)
    assert [(each.file, each.row, each.path, each.label, each.split) for each in found] == [
        ("test.tar", 0, "test.tar/1.png", None, "test"),
        ("train-0.tar", 0, "train-0.tar/a/1.png", "cat", "train"),
        ("train-0.tar", 1, "train-0.tar/a/2.png", "7", "train"),
        ("train-0.tar", 2, "train-0.tar/3.seg.png", "dog", "train"),
        ("train-0.tar", 3, "train-0.tar/4", "dog", "train"),
    ]
    assert [each.data for each in found] == [png(5), png(1), png(2), png(3), b""]


def test_samples_are_read_in_units_and_any_of_them_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("tasks.data.raw_dataset.WORTH_ROWS", 4)
    for shard in range(2):
        files = {}
        for row in range(10):
            files |= {f"{row}.png": png(10 * shard + row), f"{row}.cls": str(row % 3).encode()}
        write_tar(tmp_path / f"data/{shard}.tar", files)
    opened = source(tmp_path)
    assert [unit.rows for unit in opened.units()] == [2, 16, 2]
    assert [image.data for image in read(tmp_path)] == [png(number) for number in range(20)]
    some = [("0.tar", 3), ("0.tar", 7), ("1.tar", 0)]
    assert [image.data for image in opened.read(unit_of(some))] == [png(3), png(7), png(10)]


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"no tar" * 500, "0.tar is no tar file"), (None, r"0.tar/1.json holds no class")],
)
def test_what_is_broken_is_named(tmp_path, content, said):
    write_tar(tmp_path / "data/0.tar", {"1.png": png(1), "1.json": b"[]"})
    if content:
        (tmp_path / "data/0.tar").write_bytes(content)
    with pytest.raises(ValueError, match=said):
        read(tmp_path)
