"""What people label with: a CSV file."""

import csv
import os

from retrain import gc
from retrain.project import Project
from tasks.data import review_list

HOSTILE = 'a"><script>, \n=1+1.png'
ROW = dict.fromkeys(review_list.COLUMNS) | {
    "why": review_list.WRONG_LABEL,
    "path": HOSTILE,
    "label": "cat",
    "proposed": "<dog> & co",
    "confidence": 0.75,
}


def test_every_listed_image_becomes_a_row(tmp_path):
    file = tmp_path / "reports" / "my photos" / "suspects.csv"
    review_list.write([ROW | {"row": number} for number in (2, 1, 0)], file)
    with file.open(encoding="utf-8", newline="") as opened:
        rows = [*csv.DictReader(opened)]
    assert [each["row"] for each in rows] == ["2", "1", "0"]
    assert {each["path"] for each in rows} == {HOSTILE}
    assert {each["proposed"] for each in rows} == {"<dog> & co"}
    assert {each["corrected"] for each in rows} == {""}


def test_what_a_person_has_filled_in_is_never_written_over_nor_removed(tmp_path):
    target = tmp_path / "reports" / "my photos"
    file, other = target / "suspects-0123abcd.csv", target / "suspects-4567cdef.csv"
    review_list.write([ROW], file)
    file.write_text("filled in")
    review_list.write([ROW], file)  # the same list once more
    review_list.write([ROW], other)  # and another one
    before = {path: path.read_bytes() for path in (file, other)}
    for path in before:
        os.utime(path, (0, 0))
    (tmp_path / "params.yaml").write_text("workloads: {}\n")
    assert gc.collect(Project(tmp_path), keep=1, days=1) == []
    assert {path: path.read_bytes() for path in before} == before
    assert before[file] == b"filled in"
