"""Files and folders appear under their names as a whole; digests of values."""

import hashlib
import os
import signal
import subprocess
import sys
import time

import pytest

from retrain.file_io import ABANDONED_SECONDS, json_digest, write_text
from tests.at_once import run_two

FILE = """
from pathlib import Path
from retrain.file_io import replacing

with replacing(Path(sys.argv[1])) as aside:
    aside.write_text("half")
    halfway()
    with aside.open("a") as file:
        file.write(" and half")
"""
FOLDER = FILE.replace("aside.write", "aside.mkdir(); aside /= 'inside'; aside.write")


@pytest.mark.parametrize(("program", "name"), [(FILE, "made"), (FOLDER, "made/inside")])
def test_two_processes_may_write_the_same_at_the_same_time(tmp_path, program, name):
    assert run_two(program, tmp_path / "made") == ["", ""]
    assert (tmp_path / name).read_text() == "half and half"
    assert list(tmp_path.iterdir()) == [tmp_path / "made"]


def test_what_fails_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "record.json"
    write_text(path, "before")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("make", ["write_text('half')", "mkdir()"])
def test_what_killed_writers_left_goes_some_time_later(tmp_path, make):
    path = tmp_path / "record.json"
    program = (
        "import os, sys; from pathlib import Path; from retrain.file_io import replacing\n"
        f"with replacing(Path(sys.argv[1])) as aside: aside.{make}; os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    [left] = tmp_path.iterdir()
    write_text(path, "whole")
    assert left.exists()  # it could be of a writer that is at work
    os.utime(left, times=(time.time() - ABANDONED_SECONDS - 60,) * 2)
    write_text(path, "again")
    assert list(tmp_path.iterdir()) == [path]


def test_the_digest_of_a_value_is_that_of_its_json_in_the_order_of_its_keys():
    value = {"ü": [{"b": None, "a": 0.5}], "\ud800": {}}
    text = '{"\\u00fc":[{"a":0.5,"b":null}],"\\ud800":{}}'
    assert json_digest(value) == hashlib.sha256(text.encode()).hexdigest()
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_digest({"rate": float("nan")})
