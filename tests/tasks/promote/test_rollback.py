"""Rollbacks: to which version, with which checks, and what the next run does."""

import json

import pytest

from flows import rollback
from retrain.cli.main import main
from retrain.code import source_of
from retrain.errors import UsageError
from retrain.project import Project
from retrain.registry import packages, tracking, versions
from retrain.step import DataVersion
from tasks.promote import package as packaging
from tasks.promote.step import Intent
from tests.tasks.promote.conftest import (
    COMPARE,
    DATA,
    FAST,
    PROMOTE,
    champion,
    history,
    roll_back,
)

REASON = "wrong labels in week 12"


pytestmark = pytest.mark.usefixtures("not_loaded")


def folder_of(project: Project, number: int):
    version = versions.get(project, "toy", number)
    return packages.fetch(project, version, project.root)


def test_going_back_twice_goes_back_two_promotions(project, three):
    first = roll_back(project, REASON)
    assert (first["previous"], first["version"], champion(project)) == (3, 2, 2)
    assert versions.reference(project, "toy").version == 2  # the best so far was taken back
    second = roll_back(project, "worse yet")
    assert (second["previous"], second["version"], champion(project)) == (2, 1, 1)
    with pytest.raises(ValueError, match="toy has no champion before version 1 to go back to"):
        roll_back(project, REASON)
    entry = history(project)[3]
    assert (entry.action, entry.previous, entry.version) == ("rolled back", 3, 2)
    assert (entry.reason, entry.who, entry.time) == (REASON, first["who"], first["time"])
    description = tracking.client(project).get_model_version("toy", "1").description
    assert description.startswith("**Rolled back**")
    assert "worse yet" in description


def test_a_rollback_goes_to_the_version_that_is_asked_for(project, three):
    client = tracking.client(project)
    client.set_registered_model_alias("toy", versions.REFERENCE, "1")
    assert roll_back(project, REASON, 2)["version"] == champion(project) == 2
    assert versions.reference(project, "toy").version == 1  # which no rollback has taken back
    assert roll_back(project, REASON, 1)["version"] == champion(project) == 1
    assert roll_back(project, "it was the data", 3)["version"] == champion(project) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((REASON, 3), "toy version 3 is the champion already"),
        ((REASON, 7), "toy version 7 was never champion. It was: 1, 2."),
        (("  ", None), "needs a reason"),
    ],
)
def test_what_cannot_be_meant_is_refused(project, three, arguments, message):
    with pytest.raises(UsageError, match=message):
        roll_back(project, *arguments)
    assert (champion(project), len(history(project))) == (3, 3)


@pytest.mark.parametrize(
    "name", ["artifacts/model/model.safetensors", "code/models/serving.py", "requirements.txt"]
)
def test_a_version_whose_files_are_not_as_registered_is_refused_with_the_name(project, three, name):
    file = folder_of(project, 2) / name
    content = file.read_bytes()
    file.write_bytes(content + b" ")
    with pytest.raises(ValueError, match=f"2 cannot be served: {name} in .* has changed since"):
        roll_back(project, REASON)
    file.unlink()
    with pytest.raises(ValueError, match=f"toy version 2 cannot be served: {name} in .* is gone"):
        roll_back(project, REASON)
    assert (champion(project), len(history(project))) == (3, 3)
    file.write_bytes(content)
    assert roll_back(project, REASON)["version"] == 2


def test_a_version_that_was_deleted_is_refused(project, three):
    tracking.client(project).delete_model_version("toy", "2")
    with pytest.raises(ValueError, match="toy version 2 was deleted; choose another with --to"):
        roll_back(project, REASON)


@pytest.fixture
def again(project, run, three):
    """Runs with the model that was rolled back."""

    def call(intent=PROMOTE, data=DATA, scores=None):
        number = champion(project)
        return run(three[2], "better", number, scores, intent=intent, data=data)

    return call


def test_what_was_rolled_back_is_not_promoted_again_by_the_same_run(project, again, look, three):
    done = roll_back(project, REASON)
    assert look(three[2], "better", 2) is None
    facts = again()
    assert facts["withheld"] == f"version 3 was rolled back on {done['time'][:10]}: {REASON}"
    assert (facts["version"], facts["aliases"], champion(project)) == (3, [], 2)
    entry = history(project)[-1]
    assert (entry.action, entry.verdict, entry.reason) == ("rejected", "better", facts["withheld"])
    assert again() == look(three[2], "better", 2) == facts
    assert len(history(project)) == 5


def test_it_is_promoted_again_on_demand_and_not_because_other_data_changed(project, again):
    roll_back(project, REASON)
    assert "withheld" not in again(COMPARE)
    other = DataVersion("data-2", tracked=True)  # with another file in another workload's folder
    assert again(data=other)["withheld"].startswith("version 3 was rolled back on ")
    assert champion(project) == 2
    assert again(Intent(promote=True, again=True))["aliases"] == ["champion", "reference"]
    roll_back(project, REASON)
    assert "withheld" in again()
    assert champion(project) == 2


def test_the_training_that_was_rolled_back_does_not_come_back_in_another_package(
    project, again, three, in_another_package, monkeypatch
):
    done = roll_back(project, REASON)
    facts = again(scores=in_another_package(three[2], "image.py", "import ", "MENDED = 1\nimport "))
    withheld = f"the training of version 4 was rolled back on {done['time'][:10]}: {REASON}"
    assert (facts["version"], facts["aliases"], facts["withheld"]) == (4, [], withheld)
    for number in (3, 4):  # nor if nobody but the ledger knows the version any more
        tracking.client(project).delete_model_version("toy", str(number))
    monkeypatch.setattr(packaging, "source_of", source_of)
    facts = again()
    assert (facts["version"], facts["withheld"]) == (5, withheld.replace("4", "5", 1))
    assert again(Intent(promote=True, again=True))["aliases"] == ["champion", "reference"]


def test_the_commands_go_back_and_tell_of_it(project, three, place_of_commands, capsys):
    assert main(["rollback", "toy", "--reason", REASON, "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["previous"], done["version"], done["reason"]) == (3, 2, REASON)
    assert main(["rollback", "toy", "--reason", REASON]) == 0
    said = f"toy version 1 is the champion again instead of version 2.\n{FAST}.\n"
    assert capsys.readouterr().out == said
    assert main(["rollback", "toy", "--reason", REASON]) == 1
    assert "no champion before version 1" in capsys.readouterr().err
    assert main(["rollback", "tyo", "--reason", REASON]) == 2
    assert "Did you mean 'toy'?" in capsys.readouterr().err

    assert main(["history", "toy"]) == 0
    shown = capsys.readouterr().out
    assert "3 -> 2" in shown
    assert main(["history", "toy", "--last", "1"]) == 0
    shown = capsys.readouterr().out
    assert "3 -> 2" not in shown
    assert "4 are older: retrain history toy --last 0" in shown
    assert main(["history", "toy", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["action"] for each in told] == ["promoted"] * 3 + ["rolled back"] * 2
    assert [len(each["rules"]) for each in told] == [1, 1, 1, 0, 0]

    assert main(["verify"]) == 0
    assert "No ledger was changed." in capsys.readouterr().out
    tracking.client(project).set_registered_model_alias("toy", "champion", "3")
    assert main(["verify", "--json"]) == 1
    [fault] = json.loads(capsys.readouterr().out)["ledgers"]
    assert fault["model"] == "toy"


@pytest.mark.slow
def test_a_deployment_goes_back_and_is_named_in_the_ledger(
    project, three, place_of_commands, prefect_session, monkeypatch
):
    from prefect.client.orchestration import get_client
    from prefect.flow_engine import run_flow

    given = {"workload": "toy", "reason": REASON}
    flow = rollback.rollback
    with get_client(sync_client=True) as client:
        made = client.create_deployment(client.create_flow(flow), name="toy")
        run = client.create_flow_run_from_deployment(made, parameters=given)
        monkeypatch.setenv("PREFECT__FLOW_RUN_ID", str(run.id))  # as a worker does
        assert run_flow(flow, run, given)["who"] == "rollback/toy"
    assert champion(project) == 2
