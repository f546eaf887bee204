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


@pytest.mark.parametrize(
    ("outcome", "rules", "passed", "words", "bound"),
    [
        ("better", Gate(), True, "accuracy at most 2.0 points worse than", 0.92),
        ("not worse", Gate(), True, "accuracy at most 2.0 points worse than", 0.92),
        ("worse", Gate(), False, "accuracy at most 2.0 points worse than", 0.92),
        ("cannot tell", Gate(), False, "accuracy at most 2.0 points worse than", 0.92),
        ("not worse", Gate(promotes=("better",)), False, "accuracy better than", 0.94),
        (
            "cannot tell", Gate(promotes=("better", "not worse", "cannot tell")), True,
            "accuracy at most 2.0 points worse than", 0.92,
        ),
        ("better", Gate(metric="log_loss"), True, "log_loss at most 0.0200 worse than", 0.96),
    ],
)  # fmt: skip
def test_what_an_outcome_leads_to_is_configured(outcome, rules, passed, words, bound):
    decision = gate(rules, scores(), *against(found(outcome, rules.metric)))
    assert (decision["verdict"], decision["passed"]) == (outcome, passed)
    [rule] = decision["rules"]
    assert rule.pop("says").startswith(f"{rules.metric} against champion 3: {outcome}: ")
    known = {"rule": f"{words} champion 3 (0.9400)", "value": 0.95, "passed": passed}
    assert rule == known | {"bound": pytest.approx(bound)}
    assert decision["champion"] == {"version": 3, "metrics": METRICS}
    assert decision["reference"] is (outcome == "better")


SAME = Opponent(3, "my training", METRICS, None)


@pytest.mark.parametrize(
    ("rules", "opponents", "verdict", "passed", "becomes", "compared", "judged"),
    [
        *(
            (
                rules,
                against(found(champion), found(reference)),
                verdict,
                passed and champion in rules.promotes,  # the reference need not be surpassed
                becomes,
                ["champion", "reference"],
                1 if champion == "worse" or champion not in rules.promotes else 2,
            )
            for rules in (Gate(), Gate(promotes=("better",)))
            for champion, reference, verdict, passed, becomes in (
                ("better", "better", "better", True, True),
                ("better", "not worse", "better", True, False),
                ("better", "worse", "worse", False, False),
                ("better", "cannot tell", "cannot tell", False, False),
                ("not worse", "not worse", "not worse", True, False),
                ("worse", "better", "worse", False, True),
            )
        ),
        *(  # the champion itself is not compared with itself
            (
                Gate(min={"accuracy": bound}),
                (SAME, reference),
                "champion already",
                passed,
                False,
                ["reference"] * (reference is not None),
                1,
            )
            for bound, passed in ((0.9, True), (0.99, False))
            for reference in (None, Opponent(2, "t2", METRICS, found("better")))
        ),
    ],
)
def test_a_model_must_not_be_worse_than_the_best_so_far(
    rules, opponents, verdict, passed, becomes, compared, judged
):
    decision = gate(rules, scores(), *opponents)
    assert (decision["verdict"], decision["passed"]) == (verdict, passed)
    assert decision["reference"] is becomes
    assert list(decision["comparisons"]) == compared
    assert len(decision["rules"]) == judged
    assert bool(decision["says"]) is (verdict != "champion already")


@pytest.mark.parametrize(
    ("outcome", "verdict", "passed", "rules"),
    [("cannot tell", "better", True, 3), ("worse", "worse", False, 2)],
)
def test_other_metrics_must_not_be_surely_worse(outcome, verdict, passed, rules):
    comparison = found("better")
    comparison["metrics"]["recall[cat]"] = found(outcome)["metrics"]["accuracy"]
    opponents = against(comparison, found("better"))
    decision = gate(Gate(no_worse=("recall[cat]",)), scores(), *opponents)
    assert (decision["passed"], decision["verdict"]) == (passed, verdict)
    assert len(decision["rules"]) == rules  # the reference's is judged after the champion's
    words = "recall[cat] not worse than champion 3 (0.9400)"
    known = {"rule": words, "bound": 0.94, "passed": passed}
    assert decision["rules"][1].items() >= known.items()


@pytest.mark.parametrize(
    ("rules", "mine", "theirs", "verdict"),
    [
        (Gate(), 0.95, 0.95, "repackaged"),
        (Gate(), 0.96, 0.95, "repackaged"),
        (Gate(), 0.93, 0.95, "repackaged"),
        (Gate(), 0.929, 0.95, "worse"),
        (Gate(metric="recall[3]"), 0.95, 0.95, "repackaged"),
        (Gate(metric="recall[3]"), 0.9, 0.95, "worse"),
        (Gate(metric="log_loss"), 0.219, 0.2, "repackaged"),
        (Gate(metric="log_loss"), 0.221, 0.2, "worse"),
        (Gate(no_worse=("recall[3]",)), 0.95, 0.95, "worse"),
        (Gate(min={"worst_class_recall": 0.91}), 0.95, 0.95, "below bounds"),
    ],
)
def test_the_champions_own_training_in_another_package_is_judged_by_the_margin(
    rules, mine, theirs, verdict
):
    comparison = found("cannot tell", rules.metric)
    comparison["metrics"][rules.metric] |= {"challenger": mine, "opponent": theirs}
    for metric in rules.no_worse:
        comparison["metrics"][metric] = found("worse")["metrics"]["accuracy"]
    same = Opponent(3, "my training", {}, comparison)
    # It takes the place of the other package, and whether another reference is better is no matter.
    for reference in (None, Opponent(2, "another training", {}, found("worse"))):
        decision = gate(rules, scores(), same, reference)
        assert (decision["verdict"], decision["reference"]) == (verdict, reference is None)
        assert decision["passed"] is (verdict == "repackaged")
        assert all(rule["passed"] for rule in decision["rules"]) is decision["passed"]


def test_the_first_model_within_its_bounds_passes():
    decision = gate(Gate(min={"accuracy": 0.9}, max={"log_loss": 0.5}), scores(TABLE[::-1]), *NONE)
    told = [decision[name] for name in ("passed", "verdict", "champion", "reference")]
    assert told == [True, "first", None, True]
    assert decision["rules"] == [
        {"rule": "accuracy >= 0.9", "value": 0.95, "bound": 0.9, "passed": True},
        {"rule": "log_loss <= 0.5", "value": 0.2, "bound": 0.5, "passed": True},
    ]
    assert decision["says"] == [
        "To answer always 'cat', the most frequent class, gives an accuracy of 0.5556."
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
    decision = gate(Gate(slices=("site",), min=bound), challenger, *opponents)
    judged = decision["rules"][0]
    assert (judged["rule"], judged["value"], judged["passed"]) == (rule, value, passed)
    assert decision["passed"] is (passed is not False)
    assert (decision["verdict"] == "below bounds") is (passed is False)


def test_slices_and_classes_are_shown_that_are_not_judged_and_an_unknown_class_is_named():
    opponents = against(found("better", new_classes=["new"]))
    challenger = scores([*TABLE, NEW], SLICED.facts["slices"])
    decision = gate(Gate(slices=("site",)), challenger, *opponents)
    assert decision["passed"]
    assert [each["judged"] for each in decision["slices"]] == [True, True, False]
    assert decision["new_classes"] == [{"label": "new", "rows": 2, "recall": 0.0}]
    with pytest.raises(ValueError, match="the test split has no class 'ant'"):
        gate(Gate(min={"recall[ant]": 0.5}), scores(), *NONE)


ANY_VALUE = ("accuracy[site=Oslo]", "accuracy[site]", "recall[cat]")


@pytest.mark.parametrize(
    ("rules", "fault"),
    [
        ({"min": dict.fromkeys(ANY_VALUE, 0.5), "no_worse": ANY_VALUE, "slices": ("site",)}, ""),
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
    model = Model(family="vit")
    workload = Workload(name="toy", data=Data(path="data"), model=model, gate=Gate(**rules))
    faults = [*gate.check(workload, None)]  # type: ignore[arg-type]
    assert [each[: len(fault)] for each in faults] == [fault] * bool(fault)


NEVER = "Class 'new' is never predicted; it has 40 test images."
UNSEEN = scores([*TABLE, NEW | {"rows": 40, "predicted": 0}])
ABSENT = [f"n{number}" for number in range(12)]
LEFT_OUT = found("better", learnt=1, other_classes=2, recorded=False, absent=ABSENT)


@pytest.mark.parametrize(
    ("rules", "challenger", "opponents", "verdict", "says"),
    [
        (Gate(), UNSEEN, NONE, "first", [NEVER]),
        (Gate(), UNSEEN, BETTER, "better", [..., ..., NEVER]),
        (Gate(), scores(), against(found("better", groups=30)), "better", [..., ...]),
        (
            Gate(), scores(), BETTER, "better",
            [
                "Accuracy is +1.0 points (+0.5 to +2.5) against the champion, version 3, on 360 "
                "images, of which 7 only this model has right and 3 only the other: better at a "
                "level of 0.05.",
                "With 360 test images, a model that is as good usually passes with a margin of 5.3 "
                "points; that of 2.0 points needs about 2,289.",
            ],
        ),
        (
            Gate(metric="log_loss"), scores(), against(found("better", "log_loss")), "better",
            [
                "Log_loss is +0.0100 (+0.0050 to +0.0250) against the champion, version 3, on 360 "
                "images, of which 7 only this model has right and 3 only the other: better at a "
                "level of 0.05.",
            ],
        ),
        *(
            (
                Gate(margin=margin), scores(),
                against(found("cannot tell", groups=72, units={"cat": 36, "dog": 36})),
                "cannot tell",
                [
                    ...,
                    "With 360 test images in 72 groups, a model that is as good usually passes "
                    "with a margin of 13.0 points.",
                ],
            )
            for margin in (0, 0.2)
        ),
        (
            Gate(), scores(), against(LEFT_OUT), "better",
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
            Gate(), scores(), against(found("better", start_recorded=False)), "better",
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
            "not comparable",
            [
                "348 test images were left out: this model or the champion, version 3, was trained "
                "on them, or on images of their groups.",
                "Not comparable with the champion, version 3: 12 test images are left, and "
                "gate.min_compared is 30.",
            ],
        ),
        (  # a model is not promoted by a class that was not compared
            Gate(metric="recall[cat]", no_worse=("recall[dog]",)),
            scores(),
            against(found("better", "recall[dog]", not_compared=["recall[cat]"], absent=["cat"])),
            "cannot tell",
            [
                "The compared images have none of the classes cat.",
                "It cannot be told whether recall[cat] is worse than that of the champion, version "
                "3: fewer than 30 images, or groups of them (gate.min_compared).",
            ],
        ),
    ],
)  # fmt: skip
def test_what_was_found_is_said(rules, challenger, opponents, verdict, says):
    decision = gate(rules, challenger, *opponents)
    assert decision["verdict"] == verdict
    assert decision["passed"] is (verdict in ("first", "better"))
    said = [each for each in decision["says"] if not each.startswith("To answer always ")]
    assert len(said) == len(says)
    assert [each for each, known in zip(said, says, strict=True) if known is not ...] == [
        known for known in says if known is not ...
    ]
