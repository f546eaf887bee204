"""A served model logs its answers without making a request wait."""

import hashlib
import json
import logging
import signal
import subprocess
import sys
import threading

import pytest

from models import serving
from models.serving import PredictionLog

IMAGES = [bytes([number]) for number in range(200)]
ANSWERS = [{"label": "cat", "probabilities": {"cat": 0.75, "dog": 0.25}}] * len(IMAGES)


def logged(folder) -> list[dict]:
    files = sorted(folder.glob("*.jsonl*"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_all_that_was_put_is_written_when_the_process_ends(tmp_path):
    log = PredictionLog(tmp_path / "new", "weights")
    log.put(IMAGES[:150], ANSWERS[:150])
    log.put(IMAGES[150:], ANSWERS[150:])
    log.close()
    rows = logged(tmp_path / "new")
    assert [row["sha256"] for row in rows] == [hashlib.sha256(i).hexdigest() for i in IMAGES]
    assert {(row["label"], row["confidence"], row["weights"]) for row in rows} == {
        ("cat", 0.75, "weights")
    }


def test_each_hour_has_a_file_and_none_is_removed(tmp_path):
    log = PredictionLog(tmp_path, "weights")
    for image in range(3):
        log._file.rolloverAt -= 3600 * image
        log._file.emit(logging.makeLogRecord({"msg": str(image)}))
    log.close()
    assert sorted(logged(tmp_path)) == [0, 1, 2]
    assert len([*tmp_path.iterdir()]) == 3


def test_a_request_waits_for_nothing_and_rows_without_room_are_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "MOST_WAITING", 50)
    log, goes_on = PredictionLog(tmp_path, "weights"), threading.Event()
    write = log._file.emit
    monkeypatch.setattr(log._file, "emit", lambda record: goes_on.wait(60) and write(record))
    log.put(IMAGES, ANSWERS)
    goes_on.set()
    log.close()
    assert 50 <= len(logged(tmp_path)) <= 51  # the thread may have taken one


def test_a_folder_that_is_gone_is_told_once(tmp_path, caplog):
    log = PredictionLog(tmp_path / "log", "weights")
    (tmp_path / "log").rmdir()
    with caplog.at_level(logging.WARNING):
        log.put(IMAGES, ANSWERS)
        log.close()
    [said] = caplog.messages
    assert said.startswith("Answers could not be logged: ")
    assert "No such file" in said


PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from models.serving import PredictionLog

folder = Path(sys.argv[1])
log = PredictionLog(folder, "weights")
log.put([b"1", b"2"], [{"label": "cat", "probabilities": {"cat": 0.75}}] * 2)
while not any(file.read_text().count("\\n") == 2 for file in folder.iterdir()):
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_server_that_is_killed_leaves_its_answers(tmp_path):
    done = subprocess.run([sys.executable, "-c", PROGRAM, tmp_path], timeout=60)
    assert done.returncode == -signal.SIGKILL
    expected = [hashlib.sha256(image).hexdigest() for image in (b"1", b"2")]
    assert [row["sha256"] for row in logged(tmp_path)] == expected


def test_the_environment_turns_it_on(tmp_path, monkeypatch):
    assert serving.start_log("weights") is None
    monkeypatch.setenv(serving.FOLDER, str(tmp_path))
    serving.start_log("weights").close()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(serving.FOLDER, str(tmp_path / "file" / "below"))
    with pytest.raises(ValueError, match=serving.FOLDER):
        serving.start_log("weights")
