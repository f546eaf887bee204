"""What a person decides: an approval, a rejection, a rollback, and what the next run does."""

import json
from functools import partial
from unittest.mock import Mock

import pytest
from mlflow import MlflowClient

from flows import rollback
from retrain.cli.main import main
from retrain.errors import ChampionChangedError, UsageError
from retrain.project import Project
from retrain.registry import decisions, ledger, tracking, versions
from retrain.step import DataVersion
from tasks.promote import approval
from tests.tasks.promote.conftest import (
    AGAIN,
    MANUAL,
    ROWS,
    approve,
    champion,
    history,
    reject,
    roll_back,
    train,
)
from tests.tasks.toy_model import write_scores

WRONG = "wrong labels in week 12"
REASON = "the night images look right"
pytestmark = pytest.mark.usefixtures("not_loaded")


def standing(project: Project) -> tuple[int | None, int | None]:
    """The champion, and the version that waits."""
    entry = decisions.read(project, "toy").waiting
    return champion(project), entry and entry.version


def test_what_passes_waits_once_and_nothing_is_served(project, run, dry_run, pair):
    facts = run(pair[1], "better", 1, rules=MANUAL, run_id="next week")
    assert (facts["version"], facts["aliases"], facts["waiting"]) == (2, [], True)
    assert dry_run(pair[1], "better", 1, rules=MANUAL) == facts
    assert [entry.action for entry in history(project)] == ["promoted", "waiting"]
    assert standing(project) == (1, 2)
    assert dry_run(pair[1], "better", 1) is None  # with automatic approval it is promoted
    assert "waiting" not in run(pair[1], "better", 1)
    assert standing(project) == (2, None)


def test_what_is_approved_is_champion_with_the_reason_and_the_document(project, pair):
    done = approve(project, f" {REASON} ")
    _, waited, promoted = history(project)
    assert (promoted.action, promoted.reason, promoted.who) == ("promoted", REASON, ledger.who())
    assert (promoted.document, promoted.reviews) == (waited.document, waited.number)
    assert standing(project) == (2, None)
    assert versions.reference(project, "toy").version == 2
    assert done["outcome"] == (
        "toy version 2 is approved and is the new champion, in place of version 1 "
        f"({ledger.who()}: {REASON})"
    )


def test_where_there_is_no_champion_the_first_model_waits(project, run):
    run(train(project), "first", rules=MANUAL)
    waiting = decisions.read(project, "toy").waiting
    told = partial(approval.approval_status, "toy", waiting)
    assert ": retrain approve toy --reason WHY, or" in told(None)
    assert told(3).endswith(
        "; it was compared with no champion, but version 3 is champion by now. Compare it again: "
        "retrain train toy"
    )
    said = f"toy version 1 is approved and is the first champion ({ledger.who()}: {REASON})"
    assert approve(project, REASON)["outcome"] == said


@pytest.mark.parametrize("reason", [REASON, "another one"])
def test_the_same_call_ends_an_approval_that_was_killed_and_no_other(
    project, pair, monkeypatch, reason
):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(
            MlflowClient, "set_registered_model_alias", Mock(side_effect=KeyboardInterrupt)
        )
        approve(project, REASON)
    if reason == REASON:
        assert approve(project, reason)["version"] == 2
    else:
        with pytest.raises(ValueError, match="No version of toy waits for approval"):
            approve(project, reason)
    assert [(entry.action, entry.reason) for entry in history(project)][2:] == [
        ("promoted", REASON)
    ]
    assert standing(project) == (2, None)


def test_what_is_rejected_waits_again_only_on_demand(project, run, dry_run, pair):
    done = reject(project, REASON)
    assert done["outcome"].endswith(f": {REASON}); version 1 stays the champion")
    assert standing(project) == (1, None)
    facts = run(pair[1], "better", 1, rules=MANUAL)
    assert facts["withheld"] == f"version 2 was rejected on {done['time'][:10]}: {REASON}"
    # Nor is it promoted when approval is automatic by now.
    assert run(pair[1], "better", 1) == dry_run(pair[1], "better", 1, rules=MANUAL) == facts
    assert run(pair[1], "better", 1, rules=MANUAL, intent=AGAIN)["waiting"]
    assert run(pair[1], "better", 1, rules=MANUAL)["waiting"]  # the demand stands
    reject(project, REASON)
    other = DataVersion("data-2", tracked=True)
    assert "withheld" in run(pair[1], "better", 1, rules=MANUAL, data=other)


def test_a_comparison_with_a_champion_of_the_past_is_not_approved(project, run, pair):
    run(train(project, 2), "better", 1)
    with pytest.raises(ChampionChangedError, match="but version 3 is champion by now"):
        approve(project, REASON)
    assert standing(project) == (3, 2)
    run(pair[1], "better", 3, rules=MANUAL)
    assert approve(project, REASON)["version"] == champion(project) == 2


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("packages/{0.package}/requirements.txt", r"requirements\.txt in .* has changed since"),
        ("decisions/{0.document}.json", "the document of entry 2, .*, was changed"),
    ],
)
def test_what_was_changed_since_is_only_rejected(project, pair, place, message):
    [file] = project.root.glob(f"mlruns/**/{place.format(history(project)[-1])}")
    file.write_text(f"{file.read_text()}\n")
    with pytest.raises(ValueError, match=message):
        approve(project, REASON)
    assert standing(project) == (1, 2)
    assert reject(project, REASON)["version"] == 2


def test_a_version_that_was_deleted_is_registered_again_by_a_run(project, run, pair):
    tracking.client(project).delete_model_version("toy", "2")
    with pytest.raises(ValueError, match="toy version 2 was deleted; run again: retrain train toy"):
        reject(project, REASON)
    assert run(pair[1], "better", 1, rules=MANUAL)["version"] == 3
    assert approve(project, REASON)["version"] == champion(project) == 3


def test_an_alias_of_somebody_else_is_named_and_hides_no_other_workload(
    project, pair, place_of_commands, capsys
):
    client = tracking.client(project)
    client.create_registered_model("pets")
    client.create_model_version("pets", "file:///elsewhere")
    client.set_registered_model_alias("pets", "champion", "1")
    assert main(["status", "--json"]) == 0
    found = {each["workload"]: each for each in json.loads(capsys.readouterr().out)}
    assert (found["toy"]["champion"]["version"], found["pets"]["champion"]) == (1, None)
    assert "somebody has given the alias champion to version 1" in found["pets"]["fault"]


def test_the_commands_show_what_waits_and_decide(project, run, pair, place_of_commands, capsys):
    assert main(["status"]) == 0
    assert "toy version 2 waits for approval since " in capsys.readouterr().out
    assert main(["approve", "toy", "--reason", REASON, "--version", "3"]) == 2
    assert main(["reject", "toy", "--reason", "too few night images", "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["action"], done["version"], done["previous"]) == ("rejected", 2, 1)
    run(train(project, 2), "better", 1, rules=MANUAL)
    assert main(["approve", "toy", "--reason", REASON, "--version", "3"]) == 0
    assert main(["history", "toy"]) == 0
    shown = capsys.readouterr().out
    assert "1, not yet 3" in shown
    assert "1 -> 3" in shown

    assert main(["history", "toy", "--last", "1"]) == 0
    assert "4 are older: retrain history toy --last 0" in capsys.readouterr().out
    with pytest.raises(UsageError, match="Did you mean 'toy'"):
        approval.decide(project, "tyo", "promoted", REASON)


def test_going_back_twice_goes_back_two_promotions(project, three):
    first = roll_back(project, WRONG)
    assert (first["previous"], first["version"], champion(project)) == (3, 2, 2)
    second = roll_back(project, WRONG)
    assert (second["previous"], second["version"], champion(project)) == (2, 1, 1)
    assert second["outcome"] == "toy version 1 is the champion again instead of version 2"
    assert versions.reference(project, "toy").version == 3  # an older one is not the best so far
    with pytest.raises(ValueError, match="toy has no champion before version 1 to go back to"):
        roll_back(project, WRONG)
    entry = history(project)[3]
    told = ("action", "previous", "version", "reason", "who", "time")
    assert {name: getattr(entry, name) for name in told}.items() <= first.items()


def test_a_rollback_goes_to_the_version_that_is_asked_for(project, three):
    client = tracking.client(project)
    client.set_registered_model_alias("toy", versions.REFERENCE, "1")
    assert roll_back(project, WRONG, 2)["version"] == champion(project) == 2
    assert versions.reference(project, "toy").version == 1  # where a person has moved it
    assert roll_back(project, "it was the data", 3)["version"] == champion(project) == 3


@pytest.mark.parametrize(
    ("reason", "to", "error", "message"),
    [
        (WRONG, 3, UsageError, "toy version 3 is the champion already"),
        (WRONG, 7, UsageError, r"toy version 7 was never champion. It was: 1, 2\."),
        (WRONG, 1, ValueError, "toy version 1 was deleted; choose another with --to"),
        ("  ", 2, UsageError, "needs a reason"),
        ("x" * 501, 2, ValueError, "may have 500 characters"),
    ],
)
def test_what_cannot_be_done_is_refused(project, three, reason, to, error, message):
    tracking.client(project).delete_model_version("toy", "1")
    with pytest.raises(error, match=message):
        roll_back(project, reason, to)
    assert (champion(project), len(history(project))) == (3, 3)


def test_the_training_that_was_rolled_back_does_not_come_back_in_another_package(
    project, run, three
):
    again = partial(run, three[2], "better", 2)
    scores = write_scores(project.root / "scores", three[2], ROWS, "bf16")
    done = roll_back(project, WRONG)
    facts = again(scores=scores)
    withheld = f"the training of version 4 was rolled back on {done['time'][:10]}: {WRONG}"
    assert (facts["version"], facts["aliases"], facts["withheld"]) == (4, [], withheld)
    other = versions.get(project, "toy", 4)
    assert (other.package_digest, other.train_digest) == (scores.facts["package"], "digest2")
    for number in (3, 4):  # nor if nobody but the ledger knows the version any more
        tracking.client(project).delete_model_version("toy", str(number))
    facts = again()
    assert (facts["version"], facts["withheld"]) == (5, withheld.replace("4", "5", 1))
    assert again(intent=AGAIN)["aliases"] == ["champion", "reference"]


def test_a_person_is_told_what_was_deleted(project, three, place_of_commands, capsys):
    client = tracking.client(project)
    client.set_model_version_tag("toy", "3", versions.RECORD, "gone")
    assert roll_back(project, "its record is gone")["version"] == champion(project) == 2
    client.delete_registered_model("toy")
    said = "The registered model of toy is gone"
    for command in ("status", "verify --json", "rollback toy --reason x --to 1", "lineage toy",
                    "gc --yes"):  # fmt: skip
        assert (main(command.split()) > 0) == (command != "status")
        assert said in "".join(capsys.readouterr()).replace("\n", " ")
    assert len(history(project)) == 4


@pytest.mark.slow
def test_a_deployment_goes_back_and_is_named_in_the_ledger(
    project, three, place_of_commands, prefect_session, monkeypatch
):
    from prefect.client.orchestration import get_client
    from prefect.flow_engine import run_flow

    given = {"workload": "toy", "reason": WRONG}
    flow = rollback.rollback
    with get_client(sync_client=True) as client:
        made = client.create_deployment(client.create_flow(flow), name="toy")
        run = client.create_flow_run_from_deployment(made, parameters=given)
        monkeypatch.setenv("PREFECT__FLOW_RUN_ID", str(run.id))  # as a worker does
        assert run_flow(flow, run, given)["who"] == "rollback/toy"
    assert champion(project) == 2
