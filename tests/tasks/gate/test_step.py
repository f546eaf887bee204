"""The verdicts, by what the comparisons found."""

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
        "The compared images have none of the classes cat.",
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
    same = Opponents(Opponent(3, "my training", METRICS, None), None)
    decision = decide(Gate(min={"accuracy": bound}), scores(), same)
    assert (decision["verdict"], decision["passed"]) == ("champion already", passed)
    assert (len(decision["rules"]), decision["reference"]) == (1, False)
    other = Opponents(same.champion, Opponent(2, "t2", METRICS, found("better")))
    decision = decide(Gate(min={"accuracy": bound}), scores(), other)
    assert (decision["says"], list(decision["comparisons"])) == ([], ["reference"])


@pytest.mark.parametrize(
    ("metric", "mine", "theirs", "verdict"),
    [
        ("accuracy", 0.95, 0.95, "repackaged"),
        ("accuracy", 0.96, 0.95, "repackaged"),
        ("accuracy", 0.931, 0.95, "repackaged"),
        ("accuracy", 0.929, 0.95, "worse"),
        ("recall[3]", 0.95, 0.95, "repackaged"),
        ("recall[3]", 0.9, 0.95, "worse"),
        ("log_loss", 0.219, 0.2, "repackaged"),
        ("log_loss", 0.221, 0.2, "worse"),
    ],
)
def test_the_champions_own_training_in_another_package_is_judged_by_the_margin(
    metric, mine, theirs, verdict
):
    comparison = found("cannot tell", metric)
    comparison["metrics"][metric] |= {"challenger": mine, "opponent": theirs}
    same = Opponent(3, "my training", {}, comparison)
    decision = decide(Gate(metric=metric), scores(), Opponents(same, None))
    assert decision["verdict"] == verdict
    assert decision["passed"] is (verdict == "repackaged")
    [rule] = decision["rules"]
    assert rule["passed"] is decision["passed"]
    assert decision["reference"]  # it takes the place of the other package
    better = Opponent(2, "another training", {}, found("worse"))
    decision = decide(Gate(metric=metric), scores(), Opponents(same, better))
    assert (decision["verdict"], decision["reference"]) == (verdict, False)


def test_the_champions_own_training_is_guarded_like_another_one():
    comparison = found("not worse")
    comparison["metrics"]["recall[3]"] = found("worse")["metrics"]["accuracy"]
    same = Opponents(Opponent(3, "my training", {}, comparison), None)
    decision = decide(Gate(no_worse=("recall[3]",)), scores(), same)
    assert (decision["verdict"], decision["passed"]) == ("worse", False)
    below = decide(Gate(min={"worst_class_recall": 0.91}), scores(), same)
    assert below["verdict"] == "below bounds"


@pytest.mark.parametrize("no_worse", [(), ("recall[dog]",)])
def test_a_metric_of_a_class_without_images_is_cannot_tell_whatever_else_is_compared(no_worse):
    comparison = found("better", "recall[dog]", not_compared=["recall[cat]"])
    if not no_worse:
        comparison["metrics"] = {}
    rules = Gate(metric="recall[cat]", no_worse=no_worse)
    decision = decide(rules, scores(), against(comparison))
    assert (decision["verdict"], decision["passed"]) == ("cannot tell", False)
    assert not any("images are left" in sentence for sentence in decision["says"])
