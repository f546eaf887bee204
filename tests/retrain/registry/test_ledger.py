"""What follows from the entries of a ledger: the line of champions, what waits, what is against."""

import json
from dataclasses import replace

import pytest

from retrain.registry import ledger
from tests.retrain.registry.helpers import RULES, decision

ACTIONS = {"<": "rolled back", "?": "waiting", "~": "compared", "-": "rejected", "!": "rejected"}


def ledger_of(steps, same=()):
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
        fields["training"] = "the same" if fields["version"] in same else f"of {step[-1]}"
        values[f"{number:06d}"] = json.dumps(fields | {"time": ""})
        before = int(step[-1]) if action in ("promoted", "rolled back") else before
    return ledger.Ledger("vit", ledger.parse("vit", values))


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
    found = {known: entry.number for known, entry in written.withdrawn.items()}
    trainings = {f"of {version}": number for version, number in withdrawn.items()}
    assert found == withdrawn | trainings
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


REJECTED, WAITS = ledger.Decision("rejected", 2, 1, ""), ledger.Decision("waiting", 2, 1, "")


@pytest.mark.parametrize(
    ("steps", "asked", "number"),
    [
        ("1 -2 ~3", REJECTED, 2),
        ("1 -2 ~3", ledger.Decision("promoted", 1, None, ""), 1),
        ("1 -2 ~3", replace(REJECTED, verdict="x"), None),
        ("1 -2 ~3", replace(REJECTED, reason="x"), None),
        ("1 -2 ~3", replace(REJECTED, data="x"), None),
        ("1 -2 ~3", replace(REJECTED, document={}), None),
        ("1 -2 3", REJECTED, None),
        ("1 ?2 -3", WAITS, 2),
        ("1 ?2 ?3", WAITS, None),
    ],
)
def test_a_decision_is_the_last_one_on_its_version_with_no_champion_after_it(steps, asked, number):
    found = ledger_of(steps).latest(asked)
    assert (found and found.number) == number


@pytest.mark.parametrize(
    ("steps", "alias", "there", "fault", "is_settled"),
    [
        ("", None, (1,), None, True),
        ("", 1, (1,), "vit has no champion in its ledger, but somebody has given the alias", True),
        ("1 2", 2, (1, 2), None, True),
        (
            "1 2",
            1,
            (1, 2),
            "Version 1 has the alias champion of vit, but its ledger says vers",
            False,
        ),
        (
            "1 2",
            None,
            (1, 2),
            "No version has the alias champion of vit, but its ledger says",
            False,
        ),
        (
            "1 2",
            None,
            (1,),
            "vit has no champion, but its ledger says version 2: that was del",
            True,
        ),
        ("1 2", None, (), "The registered model of vit is gone, or lacks its tag", True),
    ],
)
def test_what_is_wrong_with_the_champion_is_said(steps, alias, there, fault, is_settled):
    entries = ledger_of(steps).entries
    tags = {"retrain.verdict": entries[-1].mark} if entries else {}
    rows = dict.fromkeys(there, ledger.Row("run", "file:///package", 0, tags))
    aliases = {"champion": alias} if alias else {}
    found = ledger.Ledger("vit", entries, "run", bool(there), aliases, rows)
    assert found.is_settled == is_settled
    assert (found.fault or "None").startswith(str(fault))
    untold = dict.fromkeys(there, ledger.Row("run", "file:///package", 0, {}))
    last = entries[-1] if entries and entries[-1].version in there else None
    assert replace(found, versions=untold).untold == last


def test_an_entry_is_refused_that_is_longer_than_mlflow_takes():
    free = 6000 - len(ledger.text_of(decision(1, changed_rules=""), "vit"))
    assert len(ledger.text_of(decision(1, changed_rules="x" * free), "vit")) == 6000
    for given in ({"reason": "x" * 501}, {"changed_rules": "x" * (free + 1)}):
        with pytest.raises(ValueError, match=r"too long for its ledger: .* 500 characters"):
            ledger.text_of(decision(1, **given), "vit")
    written = ledger.text_of(decision(1, reason="\u00b5" * 500), "vit")
    [entry] = ledger.parse("vit", {"000007": written})
    assert (entry.number, entry.reason) == (7, "\u00b5" * 500)
    assert entry.document == ledger.digest_of_document({"rules": RULES})


@pytest.mark.parametrize(
    ("reason", "changed", "why"),
    [
        (None, None, ""),
        ("night", None, "night"),
        (None, "margin", "by changed rules: margin"),
        ("night", "margin", "night; by changed rules: margin"),
    ],
)
def test_why_something_was_decided_is_the_reason_and_the_rules_that_were_changed(
    reason, changed, why
):
    assert decision(1, reason=reason, changed_rules=changed).why == why
