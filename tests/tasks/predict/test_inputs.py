"""What is read of a folder and of Parquet files."""

import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retrain.errors import UsageError
from tasks.predict.predict import open_source
from tests.tasks.toy_data import png, write_files, write_parquet


def read(folder, column=None):
    """The name and the content of each image."""
    source = open_source(folder, "photos", column)
    return list(zip(source.paths, source.files.read(source.places), strict=True))


def test_a_folder_is_read_at_any_depth_whatever_its_folders_are_named(tmp_path, caplog):
    files = {"train/a/1.png": png(1), "b.png": png(2), "c/d/e/f.JPG": b"no image", "b/9": png(3)}
    write_files(tmp_path, files | {"notes.txt": b"", ".hidden.png": png(4)})
    write_files(tmp_path, {os.fsdecode(b"caf\xe9.png"): png(5)})  # a name that is no UTF-8
    files["caf\N{REPLACEMENT CHARACTER}.png"] = png(5)
    assert sorted(read(tmp_path)) == sorted(files.items())
    assert "Left out as no images (1): notes.txt" in caplog.text


def test_parquet_needs_no_classes_and_its_names_mean_no_splits(tmp_path):
    named = [{"bytes": png(0), "path": "a.png"}, {"bytes": png(1), "path": None}]
    write_parquet(tmp_path / "test.parquet", named, ["ant", "bee"])
    pq.write_table(pa.table({"image": [png(2), None]}), tmp_path / "x.parquet")
    assert read(tmp_path) == [
        ("a.png", png(0)),
        ("test.parquet#1", png(1)),
        ("x.parquet#0", png(2)),
        ("x.parquet#1", b""),
    ]


def test_another_column_is_named_by_an_option(tmp_path):
    pq.write_table(pa.table({"jpg": [png(2)], "id": [7]}), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match="but jpg, id: set --image-column to one of them"):
        read(tmp_path)
    assert read(tmp_path, "jpg") == [("x.parquet#0", png(2))]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((), "photos: holds no images"),
        (("notes.txt", ".a.png"), "photos: holds no images"),
        (("a.png", "b/c.parquet"), "photos: holds Parquet files and images"),
    ],
)
def test_what_is_no_input_is_refused(tmp_path, names, message):
    write_files(tmp_path, dict.fromkeys(names, b""))
    with pytest.raises(UsageError, match=f"--input {message}"):
        open_source(tmp_path, "photos", None)
