import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from retrain.atomic import write_text


def test_two_writers_never_share_a_partial_file(tmp_path):
    path = tmp_path / "record.json"
    texts = [letter * 200_000 for letter in "abcd"]
    faults = []

    def write(text):
        try:
            for _ in range(30):
                write_text(path, text)
                if path.read_text() not in texts:
                    faults.append("half of one")
        except OSError as error:
            faults.append(error)

    writers = [threading.Thread(target=write, args=(text,)) for text in texts]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert faults == []
    assert list(tmp_path.iterdir()) == [path]


def test_what_fails_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "record.json"
    write_text(path, "before")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_what_killed_writers_left_goes_some_time_later(tmp_path):
    path = tmp_path / "record.json"
    program = (
        "import os, sys; from pathlib import Path; from retrain.atomic import write_text\n"
        "Path.replace = lambda *_: os.kill(os.getpid(), 9)\n"
        "write_text(Path(sys.argv[1]), 'half')"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    [left] = tmp_path.iterdir()
    write_text(path, "whole")
    assert left.exists()  # it could be of a writer that is at work
    os.utime(left, times=(time.time() - 7200,) * 2)
    write_text(path, "again")
    assert list(tmp_path.iterdir()) == [path]
