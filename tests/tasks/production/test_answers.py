"""The logs of servers are read, of this version and of earlier ones."""

import json
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from models.prediction_log import PredictionLog
from retrain.errors import UsageError
from retrain.project import Project
from tasks.production.answers import COLUMNS, read

NOW = datetime(2026, 1, 5, tzinfo=UTC)
ALL = pc.scalar(True)


def row(image: str) -> dict:
    return {"sha256": image, "label": "cat", "confidence": 0.5, "time": NOW, "weights": "w"}


def test_a_log_of_this_version_is_read_without_a_torn_line(tmp_path):
    answer = {"label": "k\u00e4fer", "probabilities": {"k\u00e4fer": 0.75}}
    for _ in range(2):  # two processes write to one folder
        log = PredictionLog(tmp_path, "weights")
        log.put([b"1", b"2"], [answer] * 2)
        log.close()
    first, _ = sorted(tmp_path.iterdir())
    first.write_text(first.read_text() + '{"sha256": "torn')
    found = read(Project(tmp_path / "clone"), "vit", [tmp_path], ALL)
    assert found.schema == COLUMNS
    assert (found["label"].to_pylist(), found["confidence"].to_pylist()) == (
        ["k\u00e4fer"] * 4, [0.75] * 4,
    )  # fmt: skip


def test_a_log_of_an_earlier_version_counts_each_row_once(tmp_path):
    pq.write_table(pa.Table.from_pylist([row("a"), row("b")], COLUMNS), tmp_path / "1.parquet")
    line = json.dumps(row("c"), default=datetime.isoformat) + "\n"
    for name in ("1.jsonl", "2.jsonl"):  # a server was killed before it had removed the first
        (tmp_path / name).write_text(line)
    (tmp_path / "3.partial").write_bytes(b"PAR1")
    found = read(Project(tmp_path / "clone"), "vit", [tmp_path], ALL)
    assert found["sha256"].to_pylist() == ["a", "b", "c"]


@pytest.mark.parametrize("text", ['{"a": 1}\n', "no JSON\n"])
def test_another_file_is_refused_by_name(tmp_path, text):
    (tmp_path / "1.jsonl").write_text(text)
    with pytest.raises(UsageError, match="has a file that is no log of predictions"):
        read(Project(tmp_path / "clone"), "vit", [tmp_path], ALL)
