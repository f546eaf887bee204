"""The ledger: entries that nothing overwrites, and the alias that follows them."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
from mlflow import MlflowClient

from retrain.errors import ChampionChangedError
from retrain.project import Project
from retrain.registry import decisions, ledger, packages, tracking, versions
from tests.retrain.registry.helpers import RULES, decision, history, register


@pytest.fixture
def pair(project, name, tmp_path):
    """Two registered versions."""
    return tuple(register(project, name, model, tmp_path) for model in "ab")


def alias(project: Project, name: str) -> int:
    return versions.champion(project, name).version


@pytest.fixture
def promoted(project, pair):
    """The same; they have been champion one after the other. With a client of the registry."""
    decisions.apply(project, pair[0], decision(1))
    decisions.apply(project, pair[1], decision(2, previous=1))
    return *pair, tracking.client(project)


def test_the_ledger_keeps_every_decision_in_order_with_its_document(project, name, pair):
    document = {"rules": [*RULES] * 1000, "slices": {"night": 0.5}}
    given = [
        decision(1, document=document, reference=True),
        decision(2, "rejected", previous=1),
        decision(2, previous=1),
    ]
    for each in given:
        assert not decisions.is_applied(project, name, each)
        decisions.apply(project, pair[each.version - 1], each)
        assert decisions.is_applied(project, name, each)
    written = decisions.read(project, name)
    entries = written.entries
    assert {**written.aliases} == {"champion": 2, "reference": 1}
    assert [entry.number for entry in entries] == [1, 2, 3]
    assert all(entry.is_of(each) for entry, each in zip(entries, given, strict=True))
    assert decisions.document_of(project, written, entries[0]) == document
    client = tracking.client(project)
    same = client.get_run(written.run).data.params["000001"]
    assert decisions.write(client, written.run, 1, same)


def test_a_rejection_is_the_verdict_of_its_version_and_told_at_its_run(project, name, pair):
    found = decisions.apply(project, pair[0], decision(1, "rejected"))
    assert found.verdict == "not better"
    assert versions.champion(project, name) is None
    tags = tracking.client(project).get_run(found.run_id).data.tags
    assert "**Rejected**" in tags[tracking.NOTE]
    assert (tags["retrain.verdict"], tags["retrain.version"]) == ("not better", f"{name} 1")


def test_a_ledger_that_was_deleted_says_how_to_bring_it_back(project, name, promoted):
    first, _, client = promoted
    run, again = decisions.read(project, name).run, decision(1, previous=2)
    client.delete_run(run)
    with pytest.raises(ValueError, match=f"mlflow runs restore --run-id {run}"):
        decisions.apply(project, first, again)
    client.restore_run(run)
    decisions.apply(project, first, again)
    assert alias(project, name) == 1


def test_decisions_count_although_the_registered_model_was_deleted(
    project, name, promoted, tmp_path
):
    written, client = decisions.read(project, name), promoted[2]
    said = f"of {name} is gone, or lacks its tag.* run {written.run} still has 2 decisions"
    client.delete_registered_model(name)
    for make_again in (lambda: None, lambda: client.create_registered_model(name)):
        make_again()  # as a person may do it in MLflow
        for read in (tracking.read_model, tracking._ask):
            found = read(project, name)
            assert (found.entries, found.run) == (written.entries, written.run)
        for decide in (
            lambda: versions.champion(project, name),
            lambda: versions.find(project, name, "champion"),
            lambda: versions.ledger_run(project, name),  # to register a version
            lambda: decisions.apply(project, promoted[1], decision(2)),
        ):
            with pytest.raises(ValueError, match=said):
                decide()
        assert name in tracking.model_names(project)
    client.delete_registered_model(name)
    client.delete_run(written.run)  # as the sentence says, to begin anew
    assert name not in tracking.model_names(project)
    decisions.apply(project, register(project, name, "d", tmp_path), decision(1))
    assert [entry.number for entry in history(project, name)] == [1]


def test_a_moved_alias_is_named_and_set_right(project, name, promoted, capsys):
    first, _, client = promoted
    client.set_registered_model_alias(name, "champion", "1")
    assert alias(project, name) == 2  # whatever the alias says
    assert capsys.readouterr().err == ""
    decisions.apply(project, first, decision(1, "rejected", previous=2))
    said = f"Version 1 has the alias champion of {name}, but its ledger says version 2"
    assert capsys.readouterr().err == f"{said}: it is set right.\n"
    assert decisions.read(project, name).fault is None
    assert len(history(project, name)) == 3


def test_a_champion_that_was_deleted_is_named_and_no_run_is_the_first(project, name, promoted):
    first, _, client = promoted
    client.delete_model_version(name, "2")
    said = f"{name} has no champion, but its ledger says version 2: that was deleted"
    with pytest.raises(ValueError, match=f"{said}.* retrain rollback {name} --to VERSION"):
        versions.champion(project, name)
    with pytest.raises(ChampionChangedError):
        decisions.apply(project, first, replace(decision(1), verdict="first"))
    back = decision(1, "rolled back", previous=2, reason="deleted", document=None)
    decisions.apply(project, first, back)
    assert decisions.read(project, name).line == (alias(project, name),) == (1,)


@pytest.fixture
def there(project, tmp_path, monkeypatch):
    """Another clone with the same registry."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", project.tracking_uri)
    (tmp_path / "there").mkdir()
    return Project(tmp_path / "there")


def test_what_a_machine_left_undone_is_done_by_any(project, name, pair, there):
    decisions.apply(project, pair[0], decision(1))
    client, run = tracking.client(project), decisions.read(project, name).run
    left = ledger.text_of(decision(2, previous=1), name)  # by a run that was killed after this
    assert decisions.write(client, run, 2, left)
    assert not decisions.read(project, name).is_settled
    with pytest.raises(ChampionChangedError, match="champion is version 2 by now"):
        decisions.apply(there, pair[0], decision(1, previous=1))
    assert alias(project, name) == 2
    assert decisions.read(project, name).is_settled
    assert client.get_model_version(name, "2").description.startswith("**Promoted**")


def test_an_entry_that_cannot_be_read_is_named_and_nothing_is_decided(project, name, promoted):
    run = decisions.read(project, name).run
    promoted[2].log_param(run, "note", "of a person")
    with pytest.raises(ValueError, match=f"ledger of {name}: entry note was changed, so that"):
        versions.champion(project, name)


def test_a_slow_machine_gives_the_alias_to_no_earlier_champion(
    project, name, pair, there, monkeypatch
):
    description = packages.description

    def late(*arguments):
        """Another machine carries out what this one is at, and decides once more."""
        monkeypatch.setattr(packages, "description", description)
        decisions.apply(there, pair[1], decision(2, previous=1))
        monkeypatch.setattr(MlflowClient, "set_registered_model_alias", lambda *_: pytest.fail())
        return description(*arguments)

    monkeypatch.setattr(packages, "description", late)
    decisions.apply(project, pair[0], decision(1))
    assert alias(project, name) == 2
    assert [entry.version for entry in history(project, name)] == [1, 2]


def test_what_waits_is_decided_once(project, name, pair):
    decisions.apply(project, pair[0], decision(1))
    decisions.apply(project, pair[1], decision(2, "waiting", previous=1))
    said = decision(2, "rejected", previous=1, reviews=2, reason="no")
    decisions.apply(project, pair[1], said)
    with pytest.raises(ValueError, match=f"{name} version 2 waits for approval no more"):
        decisions.apply(project, pair[1], decision(2, previous=1, reviews=2, reason="yes"))
    assert decisions.apply(project, pair[1], said).version == 2  # a repeated call
    assert alias(project, name) == 1


@pytest.mark.parametrize("action", ["promoted", "rejected"])
def test_of_two_machines_that_decide_at_once_one_is_first(
    project, name, tmp_path, monkeypatch, there, action
):
    made = [register(project, name, model, tmp_path) for model in "abc"]
    decisions.apply(project, made[0], decision(1))
    write, has_to_compare_again = decisions.write, action == "promoted"

    def late(*arguments):
        """Another machine decides when this one has read the ledger."""
        monkeypatch.setattr(decisions, "write", write)
        decisions.apply(there, made[2], decision(3, action, previous=1))
        return write(*arguments)

    monkeypatch.setattr(decisions, "write", late)
    refused = pytest.raises(ChampionChangedError, match="champion is version 3 by now")
    with refused if has_to_compare_again else nullcontext():
        decisions.apply(project, made[1], decision(2, action, previous=1))
    written = decisions.read(project, name)
    assert written.is_settled
    decided = [entry.version for entry in written.entries]
    assert decided == ([1, 3] if has_to_compare_again else [1, 3, 2])
    assert alias(project, name) == written.champion
