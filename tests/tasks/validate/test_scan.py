"""What remains of a scan that was killed, and of one of bad data."""

import shutil

from tasks.data import units
from tests.tasks.validate.validating import FILES, NAMES, rejection, run


def test_a_run_that_was_killed_goes_on_with_the_units_that_are_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(units, "WORTH_ROWS", 3)
    written = (run(tmp_path, FILES)[1] / "images.parquet").read_bytes()
    lost, *kept = sorted((tmp_path / "validate-scratch/inspected").glob("*.parquet"))
    assert len(kept) == 5
    before = [path.stat().st_mtime_ns for path in kept]
    lost.unlink()
    shutil.rmtree(tmp_path / "validate")
    assert (run(tmp_path, FILES)[1] / "images.parquet").read_bytes() == written
    assert lost.exists()
    assert [path.stat().st_mtime_ns for path in kept] == before


def test_data_that_was_rejected_leaves_nothing_behind(tmp_path):
    rejection(tmp_path, dict.fromkeys(NAMES, b"broken"))
    assert not (tmp_path / "validate-scratch").exists()
