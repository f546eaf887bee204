"""Labels come in any order and form, and are joined by the content of the image."""

import hashlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retrain.errors import UsageError
from retrain.project import Project
from tasks.production.labels import Added, add, read

A, B = (hashlib.sha256(content).hexdigest() for content in (b"a", b"b"))


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


def known(project) -> dict[str, str]:
    return read(project, "vit").to_dict()


def test_labels_are_added_and_the_last_one_counts(project, tmp_path):
    (tmp_path / "1.csv").write_text(f"sha256,label\n{A},1\n{B},cat\n")
    assert add(project, "vit", tmp_path / "1.csv") == Added(2, 2, 0)
    assert known(project) == {A: "1", B: "cat"}
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "b.png").write_bytes(b"b")
    pq.write_table(pa.table({"path": ["photos/b.png"], "label": ["dog"]}), tmp_path / "2.parquet")
    assert add(project, "vit", tmp_path / "2.parquet") == Added(1, 0, 1)
    assert add(project, "vit", tmp_path / "2.parquet") == Added(1, 0, 0)
    assert known(project) == {A: "1", B: "dog"}


def test_a_file_as_excel_writes_it_is_read(project, tmp_path):
    text = f'sha256;label\r\n{A};"cat, or dog"\r\n{B};käfer\r\n'
    (tmp_path / "labels.csv").write_text(text, encoding="utf-8-sig", newline="")
    assert add(project, "vit", tmp_path / "labels.csv") == Added(2, 2, 0)
    assert known(project) == {A: "cat, or dog", B: "käfer"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,label\nx,cat\n", "needs rows with a label, and a sha256 or a path"),
        (f"sha256,label\n{A},\n", "needs rows with a label"),
        (f"sha256,label\n{A},cat\n{A},dog\n", "two labels: cat and dog"),
        ("path,label\ngone.png,cat\n", "the image gone.png cannot be read"),
        ("", "needs rows with a label, and a sha256 or a path"),
        (f'sha256,label\n{A},"cat', "cannot be read as CSV or Parquet"),
    ],
)
def test_a_wrong_file_changes_nothing(project, tmp_path, text, message):
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(UsageError, match=message):
        add(project, "vit", tmp_path / "labels.csv")
    assert known(project) == {}
