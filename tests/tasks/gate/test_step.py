"""The verdicts, by what the comparisons found, and what a person is told of them."""

import json
import tempfile
from pathlib import Path

import pytest

from retrain.store import Artifact
from retrain.workload import Data, Gate, Model, Workload
from tasks.data.champion import Opponent
from tasks.gate.step import gate

NONE = (None, None)
TABLE = [
    {"label": "cat", "recall": 0.9, "precision": 1.0, "f1": 0.95, "rows": 200, "predicted": 180},
    {"label": "dog", "recall": 1.0, "precision": 0.9, "f1": 0.95, "rows": 160, "predicted": 180},
]
NEW = {"label": "new", "recall": 0.0, "precision": 0.0, "f1": 0.0, "rows": 2, "predicted": 1}
FOLDERS = tempfile.TemporaryDirectory()


def scores(table=TABLE, slices=(), **metrics: float) -> Artifact:
    """An evaluation in a folder of its own."""
    rows = sum(row["rows"] for row in table)
    given = {"accuracy": 0.95, "log_loss": 0.2, "worst_class_recall": 0.9, "rows": rows} | metrics
    folder = Path(tempfile.mkdtemp(dir=FOLDERS.name))
    (folder / "classes.json").write_text(json.dumps({"classes": table}))
    facts = {
        "metrics": given,
        "slices": [*slices],
        "package": "my package",
        "train": "my training",
        "test_images": "test images",
    }
    return Artifact("evaluate", "k", "d", folder, facts)


def found(outcome: str, metric="accuracy", **others) -> dict:
    """What a comparison found."""
    of = {
        "challenger": 0.95, "opponent": 0.94, "gained": 7, "lost": 3, "difference": 0.01,
        "low": 0.005, "high": 0.025, "outcome": outcome,
    }  # fmt: skip
    facts = {
        "images": 360, "groups": 360, "units": {"cat": 180, "dog": 180},
        "learnt": 0, "recorded": True, "start_recorded": True, "other_classes": 0, "level": 0.05,
        "absent": [], "new_classes": [], "not_compared": [],
    }  # fmt: skip
    return facts | {"metrics": {metric: of}} | others


def against(champion=None, reference=None) -> tuple[Opponent | None, ...]:
    """A champion, version 3, and a reference, version 2, each with what its comparison found."""
    return tuple(
        None if each is None else Opponent(version, f"t{version}", METRICS, each)
        for version, each in ((3, champion), (2, reference))
    )


METRICS = {"accuracy": 0.94, "log_loss": 0.2}


def decide(rules: Gate, challenger: Artifact, opponents: tuple[Opponent | None, ...]) -> dict:
    return gate(rules, challenger, *opponents)


def test_a_model_is_not_promoted_by_a_class_that_was_not_compared():
    comparison = found("better", "recall[dog]", not_compared=["recall[cat]"], absent=["cat"])
    rules = Gate(metric="recall[cat]", no_worse=("recall[dog]",))
    decision = decide(rules, scores(), against(comparison))
    assert (decision["passed"], decision["verdict"]) == (False, "cannot tell")
    assert not any("recall[cat]" in rule["rule"] for rule in decision["rules"])
    assert decision["says"] == [
        "The compared images have none of the classes cat.",
        "It cannot be told whether recall[cat] is worse than that of the champion, version 3: "
        "fewer than 30 images, or groups of them (gate.min_compared).",
    ]


@pytest.mark.parametrize(
    ("outcome", "rules", "passed", "margin"),
    [
        ("better", Gate(), True, True),
        ("not worse", Gate(), True, True),
        ("worse", Gate(), False, True),
        ("cannot tell", Gate(), False, True),
        ("not worse", Gate(promotes=("better",)), False, False),
        ("cannot tell", Gate(promotes=("better", "not worse", "cannot tell")), True, True),
    ],
)
def test_what_an_outcome_leads_to_is_configured(outcome, rules, passed, margin):
    decision = decide(rules, scores(), against(found(outcome)))
    assert decision["verdict"] == outcome
    assert decision["passed"] is passed
    [rule] = decision["rules"]
    assert rule.pop("says").startswith(f"accuracy against champion 3: {outcome}: 1.0 points better")
    words = "at most 2.0 points worse than" if margin else "better than"
    assert rule == {
        "rule": f"accuracy {words} champion 3 (0.9400)",
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
    assert rule["rule"] == "recall[cat] not worse than champion 3 (0.9400)"
    assert (rule["bound"], rule["passed"]) == (0.94, passed)
    assert len(decision["rules"]) == (3 if passed else 2)


def test_too_few_images_are_no_comparison():
    decision = decide(Gate(), scores(), against(found("better") | {"metrics": {}, "groups": 12}))
    assert (decision["verdict"], decision["passed"]) == ("not comparable", False)


@pytest.mark.parametrize(("bound", "passed"), [(0.9, True), (0.99, False)])
def test_the_champion_itself_is_not_compared_with_itself(bound, passed):
    same = (Opponent(3, "my training", METRICS, None), None)
    decision = decide(Gate(min={"accuracy": bound}), scores(), same)
    assert (decision["verdict"], decision["passed"]) == ("champion already", passed)
    assert (len(decision["rules"]), decision["reference"]) == (1, False)
    other = (same[0], Opponent(2, "t2", METRICS, found("better")))
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
    decision = decide(Gate(metric=metric), scores(), (same, None))
    assert decision["verdict"] == verdict
    assert decision["passed"] is (verdict == "repackaged")
    [rule] = decision["rules"]
    assert rule["passed"] is decision["passed"]
    assert decision["reference"]  # it takes the place of the other package
    better = Opponent(2, "another training", {}, found("worse"))
    decision = decide(Gate(metric=metric), scores(), (same, better))
    assert (decision["verdict"], decision["reference"]) == (verdict, False)


def test_the_champions_own_training_is_guarded_like_another_one():
    comparison = found("not worse")
    comparison["metrics"]["recall[3]"] = found("worse")["metrics"]["accuracy"]
    same = (Opponent(3, "my training", {}, comparison), None)
    decision = decide(Gate(no_worse=("recall[3]",)), scores(), same)
    assert (decision["verdict"], decision["passed"]) == ("worse", False)
    below = decide(Gate(min={"worst_class_recall": 0.91}), scores(), same)
    assert below["verdict"] == "below bounds"


def test_the_first_model_within_its_bounds_passes():
    decision = decide(Gate(min={"accuracy": 0.9}, max={"log_loss": 0.5}), scores(), NONE)
    assert decision["passed"]
    assert decision["verdict"] == "first"
    assert decision["champion"] is None
    assert decision["reference"]
    assert decision["rules"] == [
        {"rule": "accuracy >= 0.9", "value": 0.95, "bound": 0.9, "passed": True},
        {"rule": "log_loss <= 0.5", "value": 0.2, "bound": 0.5, "passed": True},
    ]


def with_new(images: int) -> Artifact:
    """An evaluation with a third class, of as many images, of which none is right."""
    return scores([*TABLE, NEW | {"rows": images}])


BETTER = against(found("better"))
FEW = scores([*(row | {"rows": 9} for row in TABLE), NEW])
SLICED = scores(
    slices=[
        {"column": "site", "value": "Lyon", "images": 100, "accuracy": 0.9},
        {"column": "site", "value": "Oslo", "images": 30, "accuracy": 0.75},
        {"column": "site", "value": "Bath", "images": 29, "accuracy": 0.1},
    ]
)


@pytest.mark.parametrize(
    ("bound", "challenger", "opponents", "rule", "value", "passed"),
    [
        ({"worst_class_recall": 0.91}, scores(), NONE, "worst_class_recall >= 0.91", 0.9, False),
        ({"worst_class_recall": 0.91}, scores(), BETTER, "worst_class_recall >= 0.91", 0.9, False),
        ({"recall[cat]": 0.85}, scores(), NONE, "recall[cat] >= 0.85", 0.9, True),
        ({"recall[cat]": 0.95}, scores(), NONE, "recall[cat] >= 0.95", 0.9, False),
        # A class, like a slice, is judged with 30 images or more.
        ({"worst_class_recall": 0.8}, with_new(29), BETTER, "worst_class_recall >= 0.8", 0.9, True),
        ({"worst_class_recall": 0.8}, with_new(30), BETTER, "worst_class_recall >= 0.8", 0, False),
        (
            {"recall[new]": 0.8}, with_new(29), BETTER,
            "recall[new] >= 0.8, not judged with 29 images", 0.0, None,
        ),
        ({"recall[new]": 0.8}, with_new(30), BETTER, "recall[new] >= 0.8", 0.0, False),
        (
            {"worst_class_recall": 0.5}, scores([NEW]), BETTER,
            "worst_class_recall >= 0.5, not judged with 2 images", 0.0, None,
        ),
        (
            {"accuracy": 0.99}, scores([NEW]), BETTER,
            "accuracy >= 0.99, not judged with 2 images", 0.95, None,
        ),
        # But the first model has to meet it with any number.
        ({"accuracy": 0.96}, FEW, NONE, "accuracy >= 0.96", 0.95, False),
        ({"accuracy": 0.9}, FEW, NONE, "accuracy >= 0.9", 0.95, True),
        ({"recall[new]": 0.1}, FEW, NONE, "recall[new] >= 0.1", 0.0, False),
        ({"accuracy[site=Oslo]": 0.8}, SLICED, BETTER, "accuracy[site=Oslo] >= 0.8", 0.75, False),
        ({"accuracy[site=Oslo]": 0.7}, SLICED, BETTER, "accuracy[site=Oslo] >= 0.7", 0.75, True),
        ({"accuracy[site]": 0.8}, SLICED, BETTER, "accuracy[site=Oslo] >= 0.8", 0.75, False),
        (
            {"accuracy[site=Bath]": 0.8}, SLICED, BETTER,
            "accuracy[site=Bath] >= 0.8, not judged with 29 images", 0.1, None,
        ),
    ],
)  # fmt: skip
def test_a_bound_is_judged_where_there_are_enough_images(
    bound, challenger, opponents, rule, value, passed
):
    decision = decide(Gate(slices=("site",), min=bound), challenger, opponents)
    judged = decision["rules"][0]
    assert (judged["rule"], judged["value"], judged["passed"]) == (rule, value, passed)
    assert decision["passed"] is (passed is not False)
    assert (decision["verdict"] == "below bounds") is (passed is False)


def test_a_slice_is_shown_whether_it_is_judged_or_not_and_an_unknown_class_is_named():
    decision = decide(Gate(slices=("site",)), SLICED, BETTER)
    assert [each["judged"] for each in decision["slices"]] == [True, True, False]
    with pytest.raises(ValueError, match="the test split has no class 'ant'"):
        decide(Gate(min={"recall[ant]": 0.5}), scores(), NONE)


def workload(**rules) -> Workload:
    return Workload(
        name="toy",
        data=Data(path="data"),
        model=Model(family="vit"),
        gate=Gate(**rules),
    )


@pytest.mark.parametrize(
    ("rules", "fault"),
    [
        ({"min": {"accuracy[site]": 0.9}}, "accuracy[site]: add 'site' to gate.slices."),
        ({"no_worse": ("accuracy[a=b]",), "slices": ("c",)}, "accuracy[a=b]: add 'a' to"),
        ({"max": {"accuracy[a]": 1.0}, "slices": ("a",)}, "gate.max.accuracy[a]: no metric"),
        ({"metric": "acuracy"}, "gate.metric: no metric 'acuracy'. Did you mean 'accuracy'?"),
        ({"metric": "rows"}, "gate.metric: no metric 'rows'."),
        ({"min": {"rows": 100}}, "gate.min.rows: no metric 'rows'."),
        ({"max": {"recall": 0.5}}, "gate.max.recall: no metric 'recall'."),
        ({"metric": "calibration_error"}, "gate.metric: two models cannot be compared by"),
        ({"no_worse": ("worst_class_recall",)}, "gate.no_worse: worst_class_recall: two models"),
    ],
)
def test_rules_that_nothing_can_be_judged_by_are_found_before_a_run(rules, fault):
    [found] = gate.check(workload(**rules), None)  # type: ignore[arg-type]
    assert found.startswith(fault)


def test_rules_about_slices_and_classes_may_be_of_any_value():
    names = ("accuracy[site=Oslo]", "accuracy[site]", "recall[cat]")
    rules = {"min": dict.fromkeys(names, 0.5), "no_worse": names, "slices": ("site",)}
    assert list(gate.check(workload(**rules), None)) == []  # type: ignore[arg-type]


def test_a_class_that_the_champion_does_not_know_is_named():
    opponents = against(found("better", new_classes=["new"]))
    decision = decide(Gate(), scores([*TABLE, NEW]), opponents)
    assert decision["passed"]
    assert decision["new_classes"] == [{"label": "new", "rows": 2, "recall": 0.0}]


NEVER = "Class 'new' is never predicted; it has 40 test images."
UNSEEN = scores([*TABLE, NEW | {"rows": 40, "predicted": 0}])
IN_GROUPS = found("cannot tell", groups=72, units={"cat": 36, "dog": 36})
ABSENT = [f"n{number}" for number in range(12)]
LEFT_OUT = found("better", learnt=1, other_classes=2, recorded=False, absent=ABSENT)
LOST_START = found("better", start_recorded=False)


@pytest.mark.parametrize(
    ("rules", "challenger", "opponents", "says"),
    [
        (Gate(), UNSEEN, NONE, [NEVER]),
        (Gate(), UNSEEN, BETTER, [..., ..., NEVER]),
        (
            Gate(),
            scores(),
            BETTER,
            [
                "Accuracy is +1.0 points (+0.5 to +2.5) against the champion, version 3, on 360 "
                "images, of which 7 only this model has right and 3 only the other: better at a "
                "level of 0.05.",
                "With 360 test images, a model that is as good usually passes with a margin of 5.3 "
                "points; that of 2.0 points needs about 2,289.",
            ],
        ),
        (
            Gate(metric="log_loss"),
            scores(),
            against(found("better", "log_loss")),
            [
                "Log_loss is +0.0100 (+0.0050 to +0.0250) against the champion, version 3, on 360 "
                "images, of which 7 only this model has right and 3 only the other: better at a "
                "level of 0.05.",
            ],
        ),
        *(
            (
                Gate(margin=margin),
                scores(),
                against(IN_GROUPS),
                [
                    ...,
                    "With 360 test images in 72 groups, a model that is as good usually passes "
                    "with a margin of 13.0 points.",
                ],
            )
            for margin in (0, 0.2)
        ),
        (
            Gate(),
            scores(),
            against(LEFT_OUT),
            [
                "1 test image was left out: this model or the champion, version 3, was trained on "
                "them, or on images of their groups.",
                "2 test images were left out: this model or the champion, version 3, does not know "
                "their classes.",
                "It is not known which images the champion, version 3, was trained on; none were "
                "left out for that.",
                "The compared images have none of the classes n0, n1, n2, n3, n4, n5, n6, n7, n8, "
                "n9 and 2 more.",
                ...,
                ...,
            ],
        ),
        (
            Gate(),
            scores(),
            against(LOST_START),
            [
                "It is not known which images the model that this one started from was trained "
                "on; none were left out for that.",
                ...,
                ...,
            ],
        ),
        (
            Gate(),
            scores(),
            against(found("better") | {"metrics": {}, "images": 12, "groups": 12, "learnt": 348}),
            [
                "348 test images were left out: this model or the champion, version 3, was trained "
                "on them, or on images of their groups.",
                "Not comparable with the champion, version 3: 12 test images are left, and "
                "gate.min_compared is 30.",
            ],
        ),
    ],
)
def test_what_was_found_is_said(rules, challenger, opponents, says):
    said = decide(rules, challenger, opponents)["says"]
    assert len(said) == len(says)
    assert [each for each, known in zip(said, says, strict=True) if known is not ...] == [
        known for known in says if known is not ...
    ]


def test_a_loss_has_to_be_lower():
    opponents = against(found("better", "log_loss"))
    [rule] = decide(Gate(metric="log_loss"), scores(), opponents)["rules"]
    assert rule["rule"] == "log_loss at most 0.0200 worse than champion 3 (0.9400)"
    assert rule["bound"] == pytest.approx(0.96)
