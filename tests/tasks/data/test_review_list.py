"""What people label with: a CSV file."""

import os

import pandas as pd

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
    rows = pd.read_csv(file, keep_default_na=False)[["row", "path", "proposed", "corrected"]]
    assert rows.to_numpy().tolist() == [[n, HOSTILE, "<dog> & co", ""] for n in (2, 1, 0)]


def test_what_a_person_has_filled_in_is_never_written_over_nor_removed(tmp_path):
    files = [tmp_path / f"reports/my photos/suspects-{day}.csv" for day in ("0123abcd", "4567cdef")]
    review_list.write([ROW], files[0])
    files[0].write_text("filled in")
    for file in files:  # the same list once more, and another one
        review_list.write([ROW], file)
        os.utime(file, (0, 0))
    (tmp_path / "params.yaml").write_text("workloads: {}\n")
    assert gc.collect(Project(tmp_path), days=1) == []
    assert files[0].read_text() == "filled in"
    assert files[1].exists()
