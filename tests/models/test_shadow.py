"""Another version answers what a served model is asked; nobody waits for it."""

import hashlib
import os
import signal
import subprocess
import sys

import pytest

from models import prediction_log, shadow
from tasks.promote.package import write_package
from tests.tasks.toy_model import pixels, png, write_model

IMAGES = [png(image) for image in pixels(5)]

# A server that stays until the shadow has answered or ended.
SERVER = """
import os, sys, time
import mlflow, pandas as pd, psutil
from pathlib import Path

model = mlflow.pyfunc.load_model(sys.argv[1])
answers = model.predict(pd.DataFrame({"image": [Path(name).read_bytes() for name in sys.argv[2:]]}))
print(len(answers), flush=True)
[process] = psutil.Process().children()
while process.status() != "zombie":
    if len([*Path(os.environ["RETRAIN_LOG_PREDICTIONS"]).glob("*.jsonl")]) == 2:
        break
    time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """The packages of two networks, whose weights differ."""
    folders = []
    for name in ("champion", "other"):
        model = write_model(tmp_path_factory.mktemp(name), seed=len(folders)).folder / "model"
        write_package(model, "fp32", {}, model.parent / "package")
        folders.append(model.parent / "package")
    return folders


def serve(package, folder, other) -> subprocess.CompletedProcess[str]:
    """Has a package answer in a process of its own, beside another model."""
    for number, image in enumerate(IMAGES):
        (folder / f"{number}.png").write_bytes(image)
    return subprocess.run(
        [sys.executable, "-I", "-c", SERVER, package, *sorted(folder.glob("*.png"))],
        env=os.environ | {prediction_log.FOLDER: str(folder / "log"), shadow.MODEL: str(other)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_both_answers_are_logged_and_one_is_returned(packages, tmp_path):
    done = serve(packages[0], tmp_path, packages[1])
    assert done.stdout == "5\n", done.stderr
    tables = list(prediction_log.read(tmp_path / "log"))
    assert len({table["weights"][0].as_py() for table in tables}) == 2
    expected = sorted(hashlib.sha256(image).hexdigest() for image in IMAGES)
    assert [sorted(table["sha256"].to_pylist()) for table in tables] == [expected] * 2


@pytest.mark.slow
def test_a_shadow_that_cannot_be_loaded_harms_nobody(packages, tmp_path):
    done = serve(packages[0], tmp_path, tmp_path / "gone")
    assert done.stdout == "5\n"
    assert f"RETRAIN_SHADOW={tmp_path}/gone has ended, and answers no more." in done.stderr
    [table] = prediction_log.read(tmp_path / "log")
    assert len(table) == len(IMAGES)


def test_a_shadow_needs_a_log(monkeypatch):
    assert shadow.start(is_logged=False) is None
    monkeypatch.setenv(shadow.MODEL, "models:/vit@challenger")
    with pytest.raises(ValueError, match="set RETRAIN_LOG_PREDICTIONS, too"):
        shadow.start(is_logged=False)


def test_nobody_waits_for_a_shadow_that_hangs(monkeypatch):
    monkeypatch.setattr(shadow, "MOST_WAITING", 10)
    monkeypatch.setattr(shadow, "LAST_SECONDS", 0.2)
    hanging = shadow.Shadow("models:/no/1")
    hanging._process.send_signal(signal.SIGSTOP)
    hanging.put(IMAGES * 100)  # returns
    hanging.close()
    assert hanging._process.returncode == -signal.SIGKILL
