"""The ledger: entries that nothing overwrites, and the alias that follows them."""

import json
import threading
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from retrain import tracking
from retrain.errors import ChampionChangedError
from retrain.project import Project
from retrain.registry import decisions, ledger, ledger_run, versions
from retrain.registry.ledger import Decision
from retrain.registry.snapshot import Model
from tests import templates
from tests.retrain.registry.helpers import RULES, decision, history, register


@pytest.fixture
def pair(project, name, tmp_path):
    """Two registered versions."""
    return tuple(register(project, name, model, tmp_path) for model in "ab")


def alias(project: Project, name: str) -> int:
    return versions.champion(project, name).version


def test_the_ledger_keeps_every_decision_in_order(project, name, pair):
    given = [decision(1), decision(2, "rejected", previous=1), decision(2, previous=1)]
    for version, each in zip((pair[0], pair[1], pair[1]), given, strict=True):
        decisions.apply(project, version, each)
    written = history(project, name)
    assert [entry.number for entry in written] == [1, 2, 3]
    assert all(entry.is_of(each) for entry, each in zip(written, given, strict=True))
    assert [entry.before for entry in written] == ["", written[0].digest, written[1].digest]


def test_a_decision_of_any_size_is_kept_in_its_document(project, name, pair):
    document = {"rules": [*RULES] * 1000, "slices": {"night": 0.5}}
    decisions.apply(project, pair[0], decision(1, document=document))
    written = decisions.read(project, name)
    [entry] = written.entries
    assert json.loads(ledger_run.document(project, written, entry.document)) == document
    assert decisions.rules(project, written, entry) == document["rules"]
    client = tracking.client(project)
    assert not ledger_run.write(client, written.run, 1, "{}")  # MLflow refuses another value
    assert ledger_run.write(client, written.run, 1, written.values["000001"])


def test_a_decision_is_applied_when_it_was_carried_out(project, name, pair):
    decisions.apply(project, pair[0], decision(1))
    decisions.apply(project, pair[1], decision(2, previous=1))
    decisions.apply(project, pair[0], decision(1, "rejected", previous=2))
    assert decisions.is_applied(project, name, decision(1, "rejected", previous=2))
    assert not decisions.is_applied(project, name, decision(2, "rejected", previous=1))
    assert decisions.is_applied(project, name, decision(2, previous=1))
    assert not decisions.is_applied(project, name, decision(1))


def test_a_decision_against_another_champion_is_refused(project, name, pair):
    decisions.apply(project, pair[0], decision(1))
    with pytest.raises(ChampionChangedError, match="champion is version 1 by now"):
        decisions.apply(project, pair[1], decision(2, previous=None))
    assert len(history(project, name)) == 1


def test_a_ledger_that_was_deleted_says_how_to_bring_it_back(project, name, pair):
    decisions.apply(project, pair[0], decision(1))
    run = decisions.read(project, name).run
    tracking.client(project).delete_run(run)
    with pytest.raises(ValueError, match=f"mlflow runs restore --run-id {run}"):
        decisions.apply(project, pair[1], decision(2, previous=1))
    tracking.client(project).restore_run(run)
    decisions.apply(project, pair[1], decision(2, previous=1))
    assert alias(project, name) == 2


def test_what_a_kill_left_undone_is_done_before_the_next_decision(project, name, pair, monkeypatch):
    from mlflow import MlflowClient

    decisions.apply(project, pair[0], decision(1))
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(MlflowClient, "set_registered_model_alias", _killed)
        decisions.apply(project, pair[1], decision(2, previous=1))
    assert alias(project, name) == 1
    assert [entry.number for entry in decisions.read(project, name).unfinished] == [2]
    with pytest.raises(ChampionChangedError):
        decisions.apply(project, pair[0], decision(1, "rejected", previous=1))
    assert alias(project, name) == 2
    assert not decisions.read(project, name).unfinished


def _killed(*_):
    raise KeyboardInterrupt


def test_an_alias_that_a_person_has_moved_stays(project, name, pair):
    decisions.apply(project, pair[0], decision(1))
    decisions.apply(project, pair[1], decision(2, previous=1))
    tracking.client(project).set_registered_model_alias(name, "champion", "1")
    decisions.settle(project, name)
    decisions.apply(project, pair[0], decision(1, "rejected", previous=1))
    assert alias(project, name) == 1
    decisions.apply(project, pair[1], decision(2, previous=1))
    assert alias(project, name) == 2
    assert len(history(project, name)) == 4


ACTIONS = {"<": "rolled back", "?": "waiting", "~": "compared", "-": "rejected", "!": "rejected"}


def ledger_of(steps: str, same: Collection[int] = ()) -> ledger.Ledger:
    """A ledger of promotions, or what the sign before a version says; `!` is a person's.

    Args:
        steps: An entry each.
        same: The versions that come from one training.
    """
    values, before = {}, None
    for number, step in enumerate(steps.split(), 1):
        action = ACTIONS.get(step[0], "promoted")
        fields = {"action": action, "version": int(step[-1]), "previous": before, "verdict": ""}
        fields |= {"reviews": 1 if step[0] == "!" else None, "reference": "*" in step}
        fields["training"] = "the same" if fields["version"] in same else None
        values[f"{number:06d}"] = json.dumps(fields | {"time": "", "before": ""})
        before = int(step[-1]) if action in ("promoted", "rolled back") else before
    return ledger.read(Model("vit", ledger=values))


@pytest.mark.parametrize(
    ("steps", "line", "withdrawn"),
    [
        ("1 2 3", (1, 2, 3), {}),
        ("1 2 3 <2", (1, 2), {3: 4}),
        ("1 2 3 <2 <1", (1,), {2: 5, 3: 4}),
        ("1 2 3 <1", (1,), {2: 4, 3: 4}),
        ("1 2 3 <2 4", (1, 2, 4), {3: 4}),
        ("1 2 <1 2", (1, 2), {}),
        ("1 2 <1 ?2", (1,), {}),
        ("1 2 1 <2", (1, 2), {1: 4}),
        ("1 2 3 <1 <3", (1, 3), {2: 4}),
        ("1 2 <2", (1, 2), {}),
        ("1 2 2", (1, 2), {}),
        ("1 ?2 !2", (1,), {2: 3}),
        ("1 ?2 !2 ?2", (1,), {}),
        ("1 -2 ~3", (1,), {}),
    ],
)
def test_a_rollback_goes_back_in_the_line_of_champions(steps, line, withdrawn):
    written = ledger_of(steps)
    assert written.line == line
    assert {version: entry.number for version, entry in written.withdrawn.items()} == withdrawn
    last = [entry for entry in written.entries if entry.appoints][-1]
    assert written.appointment == last


@pytest.mark.parametrize(
    ("steps", "waits"),
    [
        ("1", None),
        ("1 ?2", 2),
        ("1 ?2 ?3", 3),
        ("1 ?2 ?3 ?2", 2),
        ("1 ?2 ~2", 2),
        ("1 ?2 -3", 2),
        ("1 ?2 3", 2),
        ("1 ?2 3 ?2 2", None),
        ("1 ?2 -2", None),
        ("1 ?2 ?3 -3", None),
        ("1 ?2 2", None),
    ],
)
def test_the_last_version_waits_until_something_is_decided_about_it(steps, waits):
    found = ledger_of(steps).waiting
    assert (found and found.version) == waits


@pytest.mark.parametrize(
    ("steps", "best"), [("1", None), ("*1 2", 1), ("*1 *2 3", 2), ("*1 *2 <1", 1), ("-*1", None)]
)
def test_the_reference_is_the_best_that_was_not_taken_back(steps, best):
    found = ledger_of(steps).best
    assert (found and found.version) == best


@pytest.mark.parametrize(
    ("steps", "versions", "against"),
    [
        ("1 2 <1", {2}, 3),
        ("1 2 <1", {2, 4}, 3),
        ("1 2 <1", {4}, None),
        ("1 2 <1", {1, 2}, None),  # version 1 is a package of the same training, and champion
        ("1 ?2 !2 ?3", {2, 3}, None),
        ("1 ?2 !2 -3", {2, 3}, 3),
        ("1 ?3 ?2 !2", {2, 3}, 4),
    ],
)
def test_a_person_is_against_a_training_unless_one_of_its_packages_came_later(
    steps, versions, against
):
    found = ledger_of(steps, versions).withdrawn.get("the same")
    assert (found and found.number) == against


def test_a_decision_is_the_last_one_on_its_version_with_no_champion_after_it():
    written = ledger_of("1 -2 ~3")
    again = Decision("rejected", 2, 1, "")
    assert written.latest(again).number == 2
    assert written.latest(Decision("promoted", 1, None, "")).number == 1
    for other in ({"verdict": "x"}, {"reason": "x"}, {"data": "x"}, {"document": {}}):
        assert written.latest(replace(again, **other)) is None
    assert ledger_of("1 -2 3").latest(again) is None
    waits = Decision("waiting", 2, 1, "")
    assert ledger_of("1 ?2 -3").latest(waits).number == 2
    assert ledger_of("1 ?2 ?3").latest(waits) is None


def test_what_waits_is_decided_once_with_the_name_of_the_person(project, name, pair):
    decisions.apply(project, pair[0], decision(1))
    decisions.apply(project, pair[1], decision(2, "waiting", previous=1))
    said = decision(2, "rejected", previous=1, reviews=2, reason="no", who="ada")
    decisions.apply(project, pair[1], said)
    with pytest.raises(ValueError, match=f"{name} version 2 waits for approval no more"):
        decisions.apply(project, pair[1], decision(2, previous=1, reviews=2, reason="yes"))
    assert decisions.apply(project, pair[1], said).version == 2  # a repeated call
    written = decisions.read(project, name)
    assert [entry.who == "ada" for entry in written.entries] == [False, False, True]
    assert written.withdrawn == {2: written.entries[-1]}
    assert alias(project, name) == 1


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """A database that two clones use, with a champion and two more versions."""
    templates.place_mlflow_database(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    project = Project(tmp_path / "here")
    project.root.mkdir()
    made = [register(project, "toy", model, tmp_path) for model in "abc"]
    decisions.apply(project, made[0], decision(1))
    return project


def in_two_clones(action: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Decides about versions 2 and 3 at once, each in a clone and a thread of its own.

    Both have read the ledger before either writes to it.

    Returns:
        By the version, what came of each attempt to write, or that the champion has changed.
    """
    barrier, write, mine = threading.Barrier(2), ledger_run.write, threading.local()

    def late(*arguments):
        if not mine.attempts:
            barrier.wait(timeout=120)
        mine.attempts.append(write(*arguments))
        return mine.attempts[-1]

    def decide(place: str, number: int):
        mine.attempts = []
        project = Project(tmp_path / place)
        version = versions.get(project, "toy", number)
        try:
            decisions.apply(project, version, decision(number, action, previous=1))
        except ChampionChangedError as error:
            mine.attempts.append(str(error))
        return mine.attempts

    monkeypatch.setattr(ledger_run, "write", late)
    with ThreadPoolExecutor(2) as pool:
        both = pool.map(decide, ("here", "there"), (2, 3))
        return dict(zip((2, 3), both, strict=True))


def test_of_two_machines_that_promote_at_once_one_has_to_compare_again(
    shared, tmp_path, monkeypatch
):
    project = shared
    told = in_two_clones("promoted", tmp_path, monkeypatch)
    [winner] = [number for number, said in told.items() if said == [True]]
    [loser] = set(told) - {winner}
    lost, why = told[loser]
    assert lost is False
    assert f"champion is version {winner} by now" in why
    assert alias(project, "toy") == winner
    written = decisions.read(project, "toy")
    assert [(each.number, each.version) for each in written.entries] == [(1, 1), (2, winner)]
    assert not written.unfinished


def test_of_two_machines_that_reject_at_once_one_takes_the_next_number(
    shared, tmp_path, monkeypatch
):
    project = shared
    told = in_two_clones("rejected", tmp_path, monkeypatch)
    assert sorted(told.values()) == [[False, True], [True]]
    written = history(project, "toy")
    assert [entry.number for entry in written] == [1, 2, 3]
    assert {entry.version for entry in written[1:]} == {2, 3}
    assert written[2].before == written[1].digest
