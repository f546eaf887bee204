"""A served model logs its answers without making a request wait."""

import hashlib
import signal
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from models import prediction_log
from models.prediction_log import COLUMNS, PredictionLog

IMAGES = [bytes([number]) for number in range(200)]
ANSWERS = [{"label": "cat", "probabilities": {"cat": 0.75, "dog": 0.25}}] * len(IMAGES)


def logged(folder) -> list[dict]:
    files = sorted(folder.glob("*.parquet"))
    return [row for file in files for row in pq.read_table(file, schema=COLUMNS).to_pylist()]


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


def test_a_share_of_the_images_is_logged_always_the_same(tmp_path):
    for name in ("one", "two"):
        log = PredictionLog(tmp_path / name, "weights", 0.3)
        log.put(IMAGES, ANSWERS)
        log.close()
    one, two = ({row["sha256"] for row in logged(tmp_path / name)} for name in ("one", "two"))
    assert one == two
    assert 40 < len(one) < 80


PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from models.prediction_log import PredictionLog

log = PredictionLog(Path(sys.argv[1]), "weights")
log.put([b"1", b"2"], [{"label": "cat", "probabilities": {"cat": 0.75}}] * 2)
while not [*Path(sys.argv[1]).glob("*.jsonl")]:
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_server_that_is_killed_leaves_its_answers(tmp_path):
    done = subprocess.run([sys.executable, "-c", PROGRAM, tmp_path], timeout=60)
    assert done.returncode == -signal.SIGKILL
    [journal] = tmp_path.iterdir()
    journal.write_text(journal.read_text() + '{"sha256": "torn')
    [table] = prediction_log.read(tmp_path)
    expected = [hashlib.sha256(image).hexdigest() for image in (b"1", b"2")]
    assert table["sha256"].to_pylist() == expected
    assert table.schema == COLUMNS
    pq.write_table(table, journal.with_suffix(".parquet"))  # a kill before the journal was removed
    assert sum(map(len, prediction_log.read(tmp_path))) == 2


def test_the_environment_turns_it_on(tmp_path, monkeypatch):
    assert prediction_log.start("weights") is None
    monkeypatch.setenv(prediction_log.FOLDER, str(tmp_path))
    prediction_log.start("weights").close()
    for share in ("2", "half", "nan"):
        monkeypatch.setenv(prediction_log.SHARE, share)
        with pytest.raises(ValueError, match=f"{prediction_log.SHARE}: {share} is no number"):
            prediction_log.start("weights")
