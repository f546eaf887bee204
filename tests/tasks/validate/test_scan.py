import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from retrain.workload import Checks, Data
from tasks.data import raw_dataset
from tasks.validate.step import validate
from tests.tasks.toy_data import png, pulled, workspace, write_files

pytestmark = pytest.mark.usefixtures("ray_session")

ROOT = Path(__file__).parents[3]
CHECKS = Checks(min_images_per_class=1)
NAMES = [
    f"{split}/{label}/{number:02}.png"
    for split in ("test", "train", "val")
    for label in "ab"
    for number in range(10)
]
UNIT_ROWS = 2
UNITS = len(NAMES) // UNIT_ROWS
# Run in a process of its own, to be killed.
PROGRAM = f"""
import sys
from pathlib import Path
from tasks.data import raw_dataset
from tests.tasks.validate.test_scan import run

raw_dataset.WORTH_ROWS = {UNIT_ROWS}
run(Path(sys.argv[1]))
"""


def run(root: Path) -> Path:
    space = workspace(root, "validate")
    validate(Data(path="data"), CHECKS, pulled(root, "folders"), space)
    return space.folder


def write_images(root: Path) -> None:
    """Images so large that a unit takes a while."""
    write_files(root / "data", {name: png(n, 700, 700) for n, name in enumerate(NAMES)})


def times(folder: Path) -> dict[Path, int]:
    """When each finished file was written."""
    return {path: path.stat().st_mtime_ns for path in folder.glob("*.parquet")}


def test_a_run_that_was_killed_goes_on_with_the_units_that_are_missing(tmp_path, monkeypatch):
    killed, undisturbed = tmp_path / "killed", tmp_path / "undisturbed"
    for root in (killed, undisturbed):
        write_images(root)
    inspected = killed / "validate-scratch/inspected"
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(killed)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    while not times(inspected):
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = times(inspected)
    assert 0 < len(before) < UNITS

    monkeypatch.setattr(raw_dataset, "WORTH_ROWS", UNIT_ROWS)
    shutil.rmtree(killed / "validate")
    resumed, expected = run(killed), run(undisturbed)
    after = times(inspected)
    assert len(after) == UNITS
    assert {path: after[path] for path in before} == before
    for name in ("images.parquet", "quarantined.parquet"):
        assert (resumed / name).read_bytes() == (expected / name).read_bytes()


def test_data_that_was_rejected_leaves_nothing_behind(tmp_path):
    write_files(tmp_path / "data", dict.fromkeys(NAMES, b"broken"))
    with pytest.raises(ValueError, match="The data is rejected"):
        run(tmp_path)
    assert not (tmp_path / "validate-scratch").exists()
