"""The logs of servers are read."""

import pytest

from models.serving import PredictionLog
from retrain.errors import UsageError
from retrain.project import Project
from tasks.production.answers import COLUMNS, read


def test_a_log_of_a_server_is_read_without_a_torn_line(tmp_path):
    answer = {"label": "k\u00e4fer", "probabilities": {"k\u00e4fer": 0.75}}
    for _ in range(2):  # two processes write to one folder
        log = PredictionLog(tmp_path, "weights")
        log.put([b"1", b"2"], [answer] * 2)
        log.close()
    first, _ = sorted(tmp_path.iterdir())
    first.write_text(first.read_text() + '{"sha256": "torn')
    found = read(Project(tmp_path / "clone"), "vit", [tmp_path])
    assert [*found] == COLUMNS.names
    assert (found["label"].tolist(), found["confidence"].tolist()) == (
        ["k\u00e4fer"] * 4,
        [0.75] * 4,
    )


@pytest.mark.parametrize("text", ['{"a": 1}\n', "no JSON\n"])
def test_another_file_is_refused_by_name(tmp_path, text):
    (tmp_path / "1.jsonl").write_text(text)
    with pytest.raises(UsageError, match=r"1\.jsonl is no log of predictions"):
        read(Project(tmp_path / "clone"), "vit", [tmp_path])
