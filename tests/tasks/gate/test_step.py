from dataclasses import replace
from pathlib import Path

import pytest

from retrain.store import Artifact
from retrain.workload import Gate
from tasks.data.champion import Champion
from tasks.gate.step import gate

NONE = Champion(None, None, None, {})


def scores(**metrics: float) -> Artifact:
    given = {"accuracy": 0.95, "log_loss": 0.2, "worst_class_recall": 0.9} | metrics
    facts = {
        "metrics": given,
        "lower_is_better": ["log_loss", "wait"],
        "package": "my package",
        "train": "my training",
    }
    return Artifact("evaluate", "k", "d", Path(), facts)


def champion(**metrics: float) -> Champion:
    given = {"accuracy": 0.94, "log_loss": 0.2} | metrics
    return Champion(3, "their package", "their training", given)


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
    ("rules", "challenger_value", "champion_value", "better"),
    [
        (Gate(), 0.95, 0.94, True),
        (Gate(), 0.95, 0.95, False),
        (Gate(), 0.95, 0.96, False),
        (Gate(margin=0.02), 0.95, 0.94, False),
        (Gate(margin=0.02), 0.97, 0.94, True),
        (Gate(metric="log_loss"), 0.1, 0.2, True),
        (Gate(metric="log_loss"), 0.2, 0.2, False),
        (Gate(metric="log_loss", margin=0.05), 0.18, 0.2, False),
        (Gate(metric="wait"), 3.0, 4.0, True),
        (Gate(metric="wait"), 4.0, 3.0, False),
    ],
)
def test_the_champion_has_to_be_beaten_by_more_than_the_margin(
    rules, challenger_value, champion_value, better
):
    decision = decide(
        rules,
        scores(**{rules.metric: challenger_value}),
        champion(**{rules.metric: champion_value}),
    )
    assert decision["passed"] is better
    assert decision["verdict"] == ("better" if better else "not better")
    assert decision["champion"]["version"] == 3


def test_the_rule_against_the_champion_says_what_was_compared():
    decision = decide(Gate(margin=0.005), scores(), champion())
    comparison = decision["rules"][-1]
    assert comparison["rule"] == "accuracy > champion 3 (0.9400) + 0.005"
    assert comparison["bound"] == pytest.approx(0.945)
    assert comparison["value"] == 0.95


@pytest.mark.parametrize(("bound", "passed"), [(0.9, True), (0.99, False)])
def test_the_champion_itself_is_not_compared_with_itself(bound, passed):
    same = Champion(3, "my package", "my training", {"accuracy": 0.95})
    decision = decide(Gate(min={"accuracy": bound}), scores(), same)
    assert decision["verdict"] == "champion already"
    assert decision["passed"] is passed
    assert len(decision["rules"]) == 1


@pytest.mark.parametrize(
    ("rules", "challenger_value", "champion_value", "verdict"),
    [
        (Gate(), 0.95, 0.95, "repackaged"),
        (Gate(margin=0.02), 0.95, 0.95, "repackaged"),
        (Gate(), 0.96, 0.95, "repackaged"),
        (Gate(), 0.94, 0.95, "not better"),
        (Gate(metric="log_loss"), 0.2 + 1e-9, 0.2, "repackaged"),
        (Gate(metric="log_loss"), 0.21, 0.2, "not better"),
        (Gate(min={"worst_class_recall": 0.91}), 0.95, 0.95, "below bounds"),
    ],
)
def test_the_champions_own_training_in_another_package_must_not_be_worse(
    rules, challenger_value, champion_value, verdict
):
    same = Champion(3, "older package", "my training", {rules.metric: champion_value})
    decision = decide(rules, scores(**{rules.metric: challenger_value}), same)
    assert decision["verdict"] == verdict
    assert decision["passed"] is (verdict == "repackaged")


def test_a_champion_of_before_packages_were_known_is_compared_by_its_training():
    old = Champion(3, None, "my training", {"accuracy": 0.95})
    assert decide(Gate(), scores(), old)["verdict"] == "repackaged"
    assert decide(Gate(), scores(), replace(old, train_digest="other"))["verdict"] == "not better"
