"""Files and folders appear under their names as a whole; digests of values."""

import hashlib
import os
import time

import pytest

from retrain.file_io import ABANDONED_SECONDS, json_digest, replacing, sha256_of, write_text


def write_half(aside):
    aside.write_text("half")


def make_folder(aside):
    aside.mkdir()
    (aside / "file").write_text("half")


@pytest.mark.parametrize(("make", "name"), [(write_half, "made"), (make_folder, "made/file")])
def test_two_writers_may_make_the_same_at_the_same_time(tmp_path, make, name):
    with replacing(tmp_path / "made") as first, replacing(tmp_path / "made") as second:
        make(first)
        make(second)
        assert not (tmp_path / "made").exists()
    assert (tmp_path / name).read_text() == "half"
    assert list(tmp_path.iterdir()) == [tmp_path / "made"]


def test_what_fails_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "record.json"
    write_text(path, "before")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("make", [write_half, make_folder])
def test_what_killed_writers_left_goes_some_time_later(tmp_path, make):
    path, left = tmp_path / "record.json", tmp_path / ".record.json.1-ab.partial"
    make(left)
    for seconds, is_there in ((60, True), (ABANDONED_SECONDS + 60, False)):
        os.utime(left, times=(time.time() - seconds,) * 2)
        write_text(path, "whole")
        assert left.exists() == is_there  # it could be of a writer that is at work
    assert list(tmp_path.iterdir()) == [path]


def test_the_digest_of_a_value_is_that_of_its_json_in_the_order_of_its_keys():
    value = {"ü": [{"b": None, "a": 0.5}], "\ud800": {}}
    text = '{"\\u00fc":[{"a":0.5,"b":null}],"\\ud800":{}}'
    assert json_digest(value) == hashlib.sha256(text.encode()).hexdigest()
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_digest({"rate": float("nan")})


def test_the_digest_of_a_file_is_that_of_its_content_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("retrain.file_io.PIECE", 4)
    (tmp_path / "file").write_bytes(b"0123456789")
    shown = []
    digest = sha256_of(tmp_path / "file", shown.append)
    assert digest == hashlib.sha256(b"0123456789").hexdigest()
    assert shown == [4, 4, 2]
