"""Processes that SIGKILL ends between every two calls to the registry, and the next ones.

`kills.py` runs them; here is what must have come of it.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

MOVES = "set_registered_model_alias champion"
NAMES = ("first", "better", "approved", "rolled back")


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What came of all of them."""
    folder = tmp_path_factory.mktemp("kills")
    command = [sys.executable, "-m", "tests.tasks.promote.kills", str(folder)]
    root = Path(__file__).parents[3]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "told.json").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_the_next_process_ends_where_one_that_was_not_killed_does(told, name):
    one = told[name]
    assert {"log_param", MOVES, "set_registered_model_tag"} <= {*one["calls"]}
    assert one["last"]["faults"] == []
    assert one["last"]["unfinished"] == 0
    for number, (_, last) in one["points"].items():
        assert last == one["last"], (number, one["calls"])


@pytest.mark.parametrize("name", NAMES)
def test_until_the_alias_moves_the_champion_is_served_and_nothing_is_wrong(told, name):
    one = told[name]
    before = one["points"][min(one["points"], key=int)][0]
    moved = one["calls"].index(MOVES)
    assert before["champion"] != one["end"]["champion"]
    for number, (between, _) in one["points"].items():
        expected = one["end"] if int(number) > moved else before
        assert between["champion"] == expected["champion"], (number, one["calls"])
        assert between["faults"] == [], (number, one["calls"])
        assert len(between["versions"]) <= len(one["end"]["versions"])


def test_each_decision_is_in_the_ledger_once(told):
    actions = {name: [entry["action"] for entry in told[name]["last"]["ledger"]] for name in NAMES}
    assert actions == {
        "first": ["promoted"],
        "better": ["promoted", "promoted"],
        "approved": ["promoted", "waiting", "promoted"],
        "rolled back": ["promoted", "promoted", "rolled back"],
    }
    served = {name: told[name]["last"]["aliases"] for name in NAMES}
    assert {name: int(each["champion"]) for name, each in served.items()} == {
        "first": 1,
        "better": 2,
        "approved": 2,
        "rolled back": 1,
    }
