"""What remains of a scan that was killed."""

import shutil

from tasks.data import units
from tests.tasks.validate.validating import FILES, run


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
