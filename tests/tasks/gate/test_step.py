from pathlib import Path

import pytest

from retrain.errors import UsageError
from retrain.store import Artifact
from retrain.workload import Gate
from tasks.gate.step import Champion, gate

NONE = Champion(None, None, {})


def scores(**metrics: float) -> Artifact:
    given = {"accuracy": 0.95, "log_loss": 0.2, "worst_class_recall": 0.9} | metrics
    return Artifact("evaluate", "k", "d", Path(), {"metrics": given, "weights": "mine"})


def champion(**metrics: float) -> Champion:
    return Champion(3, "theirs", {"accuracy": 0.94, "log_loss": 0.2} | metrics)


def decide(rules: Gate, challenger: Artifact, against: Champion) -> dict:
    return gate(rules, challenger, against, None)  # type: ignore[arg-type]


def test_the_first_model_within_its_bounds_passes():
    decision = decide(Gate(min={"accuracy": 0.9}, max={"log_loss": 0.5}), scores(), NONE)
    assert decision["passed"]
    assert decision["verdict"] == "first"
    assert decision["champion"] is None
    assert decision["rules"] == [
        {"rule": "accuracy >= 0.9", "value": 0.95, "bound": 0.9, "passed": True},
        {"rule": "log_loss <= 0.5", "value": 0.2, "bound": 0.5, "passed": True},
    ]


@pytest.mark.parametrize("against", [NONE, champion()])
def test_a_model_outside_its_bounds_does_not_pass_even_if_it_is_better(against):
    decision = decide(Gate(min={"worst_class_recall": 0.91}), scores(), against)
    assert not decision["passed"]
    assert decision["verdict"] == "below bounds"
    assert [rule["passed"] for rule in decision["rules"]][:1] == [False]


@pytest.mark.parametrize(
    ("rules", "mine", "theirs", "better"),
    [
        (Gate(), 0.95, 0.94, True),
        (Gate(), 0.95, 0.95, False),
        (Gate(), 0.95, 0.96, False),
        (Gate(margin=0.02), 0.95, 0.94, False),
        (Gate(margin=0.02), 0.97, 0.94, True),
        (Gate(metric="log_loss"), 0.1, 0.2, True),
        (Gate(metric="log_loss"), 0.2, 0.2, False),
        (Gate(metric="log_loss", margin=0.05), 0.18, 0.2, False),
    ],
)
def test_the_champion_has_to_be_beaten_by_more_than_the_margin(rules, mine, theirs, better):
    decision = decide(rules, scores(**{rules.metric: mine}), champion(**{rules.metric: theirs}))
    assert decision["passed"] is better
    assert decision["verdict"] == ("better" if better else "not better")
    assert decision["champion"]["version"] == 3


def test_the_rule_against_the_champion_says_what_was_compared():
    decision = decide(Gate(margin=0.005), scores(), champion())
    duel = decision["rules"][-1]
    assert duel["rule"] == "accuracy > champion 3 (0.9400) + 0.005"
    assert duel["bound"] == pytest.approx(0.945)
    assert duel["value"] == 0.95


@pytest.mark.parametrize(("bound", "passed"), [(0.9, True), (0.99, False)])
def test_the_champion_itself_is_not_compared_with_itself(bound, passed):
    same = Champion(3, "mine", {"accuracy": 0.95})
    decision = decide(Gate(min={"accuracy": bound}), scores(), same)
    assert decision["verdict"] == "champion already"
    assert decision["passed"] is passed
    assert len(decision["rules"]) == 1


def test_a_rule_about_an_unknown_metric_is_refused():
    with pytest.raises(UsageError, match="no metric 'f1'"):
        decide(Gate(min={"f1": 0.9}), scores(), NONE)
