"""The verdicts, by what the comparisons found."""

from dataclasses import replace

import pytest

from retrain.workload import Gate
from tasks.data.champion import Opponent, Opponents
from tests.tasks.gate.deciding import METRICS, against, decide, found, scores


def test_a_model_is_not_promoted_by_a_class_that_was_not_compared():
    comparison = found("better", "recall[dog]", not_compared=["recall[cat]"], absent=["cat"])
    rules = Gate(metric="recall[cat]", no_worse=("recall[dog]",))
    decision = decide(rules, scores(), against(comparison))
    assert (decision["passed"], decision["verdict"]) == (False, "cannot tell")
    assert not any("recall[cat]" in rule["rule"] for rule in decision["rules"])
    assert decision["says"] == [
        "The compared images have none of 1 classes: cat.",
        "It cannot be told whether recall[cat] is worse than that of the champion, version 3: "
        "fewer than 30 images (gate.min_compared).",
    ]


@pytest.mark.parametrize(
    ("outcome", "rules", "passed", "margin"),
    [
        ("better", Gate(), True, " - 0.02"),
        ("not worse", Gate(), True, " - 0.02"),
        ("worse", Gate(), False, " - 0.02"),
        ("cannot tell", Gate(), False, " - 0.02"),
        ("not worse", Gate(promotes=("better",)), False, ""),
        ("cannot tell", Gate(promotes=("better", "not worse", "cannot tell")), True, " - 0.02"),
    ],
)
def test_what_an_outcome_leads_to_is_configured(outcome, rules, passed, margin):
    decision = decide(rules, scores(), against(found(outcome)))
    assert decision["verdict"] == outcome
    assert decision["passed"] is passed
    [rule] = decision["rules"]
    assert rule == {
        "rule": f"accuracy surely > champion 3 (0.9400){margin}",
        "value": 0.95,
        "bound": pytest.approx(0.92 if margin else 0.94),
        "passed": passed,
    }
    assert decision["champion"] == {"version": 3, "metrics": METRICS}
    assert decision["reference"] is (outcome == "better")


@pytest.mark.parametrize(
    ("champion", "reference", "verdict", "passed", "becomes"),
    [
        ("better", "better", "better", True, True),
        ("better", "not worse", "better", True, False),
        ("better", "worse", "worse", False, False),
        ("better", "cannot tell", "cannot tell", False, False),
        ("not worse", "not worse", "not worse", True, False),
        ("worse", "better", "worse", False, True),
    ],
)
@pytest.mark.parametrize("rules", [Gate(), Gate(promotes=("better",))])
def test_a_model_must_not_be_worse_than_the_best_so_far(
    champion, reference, verdict, passed, becomes, rules
):
    decision = decide(rules, scores(), against(found(champion), found(reference)))
    passed = passed and champion in rules.promotes  # the reference need not be surpassed
    assert (decision["verdict"], decision["passed"]) == (verdict, passed)
    assert decision["reference"] is becomes
    assert list(decision["comparisons"]) == ["champion", "reference"]


@pytest.mark.parametrize(("outcome", "passed"), [("cannot tell", True), ("worse", False)])
def test_other_metrics_must_not_be_surely_worse(outcome, passed):
    comparison = found("better")
    comparison["metrics"]["recall[cat]"] = found(outcome)["metrics"]["accuracy"]
    decision = decide(
        Gate(no_worse=("recall[cat]",)), scores(), against(comparison, found("better"))
    )
    assert decision["passed"] is passed
    assert decision["verdict"] == ("better" if passed else "worse")
    rule = decision["rules"][1]
    assert rule["rule"] == "recall[cat] not surely worse than champion 3 (0.9400)"
    assert (rule["bound"], rule["passed"]) == (0.94, passed)
    assert len(decision["rules"]) == (3 if passed else 2)


def test_too_few_images_are_no_comparison():
    nothing = found("better") | {"metrics": {}, "images": 12, "learnt": 348}
    decision = decide(Gate(), scores(), against(nothing))
    assert (decision["verdict"], decision["passed"]) == ("not comparable", False)
    assert decision["says"] == [
        "348 test images were left out: this model or the champion, version 3, was trained on "
        "them.",
        "Not comparable with the champion, version 3: 12 test images are left, and "
        "gate.min_compared is 30.",
    ]


@pytest.mark.parametrize(("bound", "passed"), [(0.9, True), (0.99, False)])
def test_the_champion_itself_is_not_compared_with_itself(bound, passed):
    same = Opponents(Opponent(3, "my package", "my training", METRICS, None), None)
    decision = decide(Gate(min={"accuracy": bound}), scores(), same)
    assert (decision["verdict"], decision["passed"]) == ("champion already", passed)
    assert (len(decision["rules"]), decision["reference"]) == (1, False)
    other = Opponents(same.champion, Opponent(2, "p2", "t2", METRICS, found("better")))
    decision = decide(Gate(min={"accuracy": bound}), scores(), other)
    assert (decision["says"], list(decision["comparisons"])) == ([], ["reference"])


@pytest.mark.parametrize(
    ("rules", "challenger_value", "champion_value", "verdict"),
    [
        (Gate(), 0.95, 0.95, "repackaged"),
        (Gate(), 0.96, 0.95, "repackaged"),
        (Gate(), 0.94, 0.95, "worse"),
        (Gate(metric="log_loss"), 0.2 + 1e-9, 0.2, "repackaged"),
        (Gate(metric="log_loss"), 0.21, 0.2, "worse"),
        (Gate(min={"worst_class_recall": 0.91}), 0.95, 0.95, "below bounds"),
    ],
)
def test_the_champions_own_training_in_another_package_must_not_be_worse(
    rules, challenger_value, champion_value, verdict
):
    same = Opponent(3, "older package", "my training", {rules.metric: champion_value}, None)
    opponents = Opponents(same, None)
    decision = decide(rules, scores(**{rules.metric: challenger_value}), opponents)
    assert decision["verdict"] == verdict
    assert decision["passed"] is (verdict == "repackaged")
    assert decision["reference"]  # it takes the place of the other package
    compared = found("not worse", rules.metric)
    other = Opponents(same, replace(same, version=2, comparison=compared))
    assert not decide(rules, scores(**{rules.metric: challenger_value}), other)["reference"]
