"""A promotion by rules of the gate that are not those of `params.yaml` says so everywhere."""

import pytest

from retrain.project import Project
from retrain.registry import packages, tracking, versions
from tests.flows.conftest import copy_clone

WORSE = ("--set", "train.epochs=1", "--set", "train.lr=0.0001")
LOOSE = ("--set", "gate.margin=0.99", "--set", "gate.promotes=[better, not worse, cannot tell]")
CHANGED = (
    "gate.margin 0.02 -> 0.99, "
    'gate.promotes ["better", "not worse"] -> ["better", "not worse", "cannot tell"]'
)


def in_one_line(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.slow
def test_a_promotion_by_loosened_rules_is_marked_and_said_before_and_no_reference(
    clone, first, tmp_path
):
    copy = copy_clone(clone, tmp_path / "clone")
    compared = copy.train(*WORSE, *LOOSE)
    assert "rules of the gate" not in str(compared["warnings"])  # it promotes nothing
    promoted = copy.train(*WORSE, *LOOSE, "--promote")
    number = promoted["model"]["version"]
    assert (promoted["state"], promoted["model"]["aliases"]) == ("Promoted", ["champion"])
    before = f"promoted, by rules of the gate that are not those of params.yaml: {CHANGED}."
    assert before in promoted["warnings"][-1]
    assert f"Rules of the gate were not those of params.yaml: {CHANGED}." in promoted["outcome"]
    page = (copy.root / promoted["look"]["report"]).read_text()
    assert "gate.margin 0.02 -&gt; 0.99" in page
    assert f"promoted by changed rules of the gate: {CHANGED}." in in_one_line(
        copy.retrain("status").stdout
    )
    assert [entry["changed_rules"] for entry in copy.json("history", "vit")] == [
        None,
        CHANGED,
        CHANGED,
    ]
    assert "gate.margin 0.02" in copy.retrain("history", "vit").stdout
    for arguments in (("lineage", "vit"), ("lineage", "vit", "--card")):
        assert "by changed rules: gate.margin 0.02" in in_one_line(copy.retrain(*arguments).stdout)
    project = Project(copy.root)
    client, version = tracking.client(project), versions.champion(project, "vit")
    description = client.get_model_version("vit", str(number)).description
    note = client.get_run(version.run_id).data.tags[tracking.NOTE]
    for text in (description, note, packages.read_card(project, version)):
        assert f"by changed rules: {CHANGED}" in text

    copy.retrain("rollback", "vit", "--reason", "what was promoted was worse")
    copy.retrain("rollback", "vit", "--to", str(number), "--reason", "it was better at night")
    assert versions.champion(project, "vit").version == number
    assert versions.reference(project, "vit").version == first["model"]["version"]
    assert "changed rules" not in copy.retrain("status").stdout
