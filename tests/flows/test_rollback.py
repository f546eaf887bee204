"""A real clone goes back to the champion before, and its next runs respect that."""

import pytest

from tests.flows.conftest import ran

REASON = "night images got worse"


@pytest.mark.slow
def test_what_was_rolled_back_comes_back_only_on_demand(clone, first):
    clone.edit("params.yaml", "epochs: 2", "epochs: 8")  # in the file: it is no trial
    better = clone.train()
    assert better["model"]["aliases"] == ["champion", "reference"]
    number, before = better["model"]["version"], first["model"]["version"]

    done = clone.json("rollback", "vit", "--reason", REASON)
    assert (done["previous"], done["version"]) == (number, before)

    withheld = clone.train()
    assert ran(withheld) == []
    assert (withheld["model"]["aliases"], withheld["rejected"]) == ([], True)
    said = f"version {number} was rolled back on {done['time'][:10]}: {REASON}"
    assert f"vit version {number} is not promoted: {said}" in withheld["outcome"]
    again = clone.train()
    assert again["unchanged"]
    assert f"version {number} is not promoted: {said}" in again["outcome"]
    assert clone.json("status", "vit")[0]["champion"]["version"] == before

    promoted = clone.train("--promote")
    assert promoted["model"] == better["model"]
    actions = [entry["action"] for entry in clone.json("history", "vit")]
    assert actions == ["promoted", "promoted", "rolled back", "rejected", "promoted"]
    assert "No ledger was changed." in clone.retrain("verify").stdout
