import json
from dataclasses import replace
from pathlib import Path

import pytest

from retrain.store import Artifact
from retrain.workload import Data, Gate, Model, Workload
from tasks.data.champion import Opponent, Opponents
from tasks.data.slices import NO_SLICES, Slices
from tasks.gate.step import gate

NONE = Opponents(None, None)
TABLE = [
    {"label": "cat", "recall": 0.9, "precision": 1.0, "f1": 0.95, "rows": 200, "predicted": 180},
    {"label": "dog", "recall": 1.0, "precision": 0.9, "f1": 0.95, "rows": 160, "predicted": 180},
]
FOLDERS = iter(range(1_000_000))


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def scores(table=TABLE, **metrics: float) -> Artifact:
    """An evaluation in the present folder."""
    rows = sum(row["rows"] for row in table)
    given = {"accuracy": 0.95, "log_loss": 0.2, "worst_class_recall": 0.9, "rows": rows} | metrics
    folder = Path(str(next(FOLDERS)))
    folder.mkdir()
    (folder / "per_class.json").write_text(json.dumps(table))
    facts = {
        "metrics": given,
        "lower_is_better": ["log_loss"],
        "package": "my package",
        "train": "my training",
        "test_images": "test images",
    }
    return Artifact("evaluate", "k", "d", folder, facts)


def found(outcome: str, metric="accuracy", **others) -> dict:
    """What a comparison found."""
    of = {
        "challenger": 0.95, "opponent": 0.94, "gained": 7, "lost": 3, "difference": 0.01,
        "low": -0.005, "high": 0.025, "outcome": outcome, "visible": 0.023,
    }  # fmt: skip
    facts = {
        "images": 360, "learnt": 0, "recorded": True, "other_classes": 0, "level": 0.05,
        "absent": [], "new_classes": [], "not_compared": [],
    }  # fmt: skip
    return facts | {"metrics": {metric: of}} | others


def against(champion=None, reference=None) -> Opponents:
    """A champion, version 3, and a reference, version 2, each with what its comparison found."""
    made = (
        None if each is None else Opponent(version, f"p{version}", f"t{version}", METRICS, each)
        for version, each in ((3, champion), (2, reference))
    )
    return Opponents(*made)


METRICS = {"accuracy": 0.94, "log_loss": 0.2}


def decide(rules: Gate, challenger: Artifact, opponents: Opponents, slices=NO_SLICES) -> dict:
    return gate(rules, challenger, opponents, slices, None)  # type: ignore[arg-type]


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


@pytest.mark.parametrize("opponents", [NONE, against(found("better"))])
def test_a_model_outside_its_bounds_does_not_pass_even_if_it_is_better(opponents):
    decision = decide(Gate(min={"worst_class_recall": 0.91}), scores(), opponents)
    assert decision["rules"][0]["value"] == 0.9
    assert not decision["passed"]
    assert decision["verdict"] == "below bounds"
    assert [rule["passed"] for rule in decision["rules"]][:1] == [False]


@pytest.mark.parametrize(("bound", "passed"), [(0.85, True), (0.95, False)])
def test_a_bound_may_be_on_one_class(bound, passed):
    decision = decide(Gate(min={"recall[cat]": bound}), scores(), NONE)
    assert decision["passed"] is passed
    assert decision["rules"][0]["value"] == 0.9
    with pytest.raises(ValueError, match="the test split has no class 'ant'"):
        decide(Gate(min={"recall[ant]": bound}), scores(), NONE)


NEW = {"label": "new", "recall": 0.0, "precision": 0.0, "f1": 0.0, "rows": 2, "predicted": 1}


@pytest.mark.parametrize("name", ["worst_class_recall", "recall[cat]"])
def test_a_bound_does_not_fail_by_a_class_of_two_images(name):
    decision = decide(Gate(min={name: 0.85}), scores([*TABLE, NEW]), NONE)
    assert (decision["passed"], decision["rules"][0]["value"]) == (True, 0.9)


@pytest.mark.parametrize(
    ("rules", "table", "words"),
    [
        (Gate(min={"recall[new]": 0.5}), [*TABLE, NEW], "recall[new] >= 0.5, not judged with 2"),
        (
            Gate(min={"worst_class_recall": 0.5}),
            [NEW],
            "worst_class_recall >= 0.5, not judged with",
        ),
        (Gate(max={"log_loss": 0.1}), [NEW], "log_loss <= 0.1, not judged with 2 images"),
    ],
)
def test_a_bound_on_few_images_is_shown_and_decides_nothing(rules, table, words):
    decision = decide(rules, scores(table), NONE)
    [rule] = decision["rules"]
    assert rule["rule"].startswith(words)
    assert rule["passed"] is None
    assert (decision["passed"], decision["verdict"]) == (True, "first")


def test_a_class_that_the_champion_does_not_know_is_named():
    opponents = against(found("better", new_classes=["new"]))
    decision = decide(Gate(), scores([*TABLE, NEW]), opponents)
    assert decision["passed"]
    assert decision["new_classes"] == [{"label": "new", "rows": 2, "recall": 0.0}]
    assert decision["says"][-1] == (
        "Class 'new' is new: the champion does not know it. It has 2 test images, and its recall "
        "is 0.0000."
    )


def test_a_class_that_is_never_predicted_is_named():
    table = [*TABLE, NEW | {"rows": 40, "predicted": 0}]
    for opponents in (NONE, against(found("better"))):
        says = decide(Gate(), scores(table), opponents)["says"]
        assert says[-1] == "Class 'new' is never predicted; it has 40 test images."


def test_a_rule_that_no_image_can_judge_is_said():
    comparison = found("better", absent=["cat"], not_compared=["recall[cat]"])
    decision = decide(Gate(no_worse=("recall[cat]",)), scores(), against(comparison))
    assert not any("recall" in rule["rule"] for rule in decision["rules"])
    assert decision["says"][0] == "The compared images have none of 1 classes: cat."
    assert decision["says"][1].startswith("It cannot be told whether recall[cat] is worse than")


def test_a_model_is_not_promoted_by_a_class_that_was_not_compared():
    comparison = found("better", "recall[dog]", not_compared=["recall[cat]"])
    rules = Gate(metric="recall[cat]", no_worse=("recall[dog]",))
    decision = decide(rules, scores(), against(comparison))
    assert (decision["passed"], decision["verdict"]) == (False, "cannot tell")


@pytest.mark.parametrize(("size", "passed"), [(49_990_000, True), (83_240_000, False)])
def test_a_package_may_be_too_large(size, passed):
    challenger = scores()
    challenger = replace(challenger, facts=challenger.facts | {"package_bytes": size})
    decision = decide(Gate(max_package_mb=50), challenger, NONE)
    assert (decision["passed"], decision["verdict"] == "below bounds") == (passed, not passed)
    [rule] = decision["rules"]
    assert rule["rule"] == "size of the package <= 50 MB"
    assert rule.get("says") == (
        None
        if passed
        else "the package has 83.24 MB, more than gate.max_package_mb: 50; take a smaller network, "
        "or raise the bound"
    )


BATH = "accuracy[site=Bath]"


def slices(*parts: tuple[str, int, float]) -> Slices:
    """Slices of the column `site`: the value, the images and the accuracy of each."""
    facts = [
        {"column": "site", "value": value, "images": images, "accuracy": accuracy}
        for value, images, accuracy in parts
    ]
    output = Artifact("slice", "k", "d", Path(), {})
    return Slices(output, replace(output, facts={"slices": facts}))


@pytest.mark.parametrize(
    ("bound", "rule", "passed"),
    [
        ({"accuracy[site=Oslo]": 0.8}, "accuracy[site=Oslo] >= 0.8", False),
        ({"accuracy[site=Oslo]": 0.7}, "accuracy[site=Oslo] >= 0.7", True),
        ({"accuracy[site]": 0.8}, "accuracy[site=Oslo] >= 0.8", False),
        (
            {"accuracy[site=Bath]": 0.8},
            "accuracy[site=Bath] >= 0.8, not judged with 29 images",
            True,
        ),
    ],
)
def test_a_bound_may_be_on_slices(bound, rule, passed):
    parts = slices(("Lyon", 100, 0.9), ("Oslo", 30, 0.75), ("Bath", 29, 0.1))
    decision = decide(Gate(slices=("site",), min=bound), scores(), NONE, parts)
    assert [each["rule"] for each in decision["rules"]] == [rule]
    assert decision["passed"] is passed
    assert [each["judged"] for each in decision["slices"]] == [True, True, False]


def test_a_bound_on_slices_that_are_all_small_judges_nothing():
    decision = decide(Gate(min={"accuracy[site]": 0.9}), scores(), NONE, slices(("Lyon", 8, 0.5)))
    [rule] = decision["rules"]
    assert rule["rule"] == "accuracy[site] >= 0.9, not judged with 8 images"
    assert (rule["value"], rule["passed"]) == (0.5, None)
    assert decision["passed"]


def workload(**rules) -> Workload:
    return Workload(
        name="toy", data=Data(path="data"), model=Model(family="vit"), gate=Gate(**rules)
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


@pytest.mark.parametrize(
    ("outcome", "rules", "passed"),
    [
        ("better", Gate(), True),
        ("not worse", Gate(), True),
        ("worse", Gate(), False),
        ("cannot tell", Gate(), False),
        ("not worse", Gate(promotes=("better",)), False),
        ("cannot tell", Gate(promotes=("better", "not worse", "cannot tell")), True),
    ],
)
def test_what_an_outcome_leads_to_is_configured(outcome, rules, passed):
    decision = decide(rules, scores(), against(found(outcome)))
    assert decision["verdict"] == outcome
    assert decision["passed"] is passed
    assert [rule["passed"] for rule in decision["rules"]] == [passed]
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
def test_a_model_must_not_be_worse_than_the_best_so_far(
    champion, reference, verdict, passed, becomes
):
    decision = decide(Gate(), scores(), against(found(champion), found(reference)))
    assert (decision["verdict"], decision["passed"]) == (verdict, passed)
    assert decision["reference"] is becomes
    assert list(decision["comparisons"]) == ["champion", "reference"]


def test_the_reference_need_not_be_surpassed_where_the_champion_has_to_be():
    rules = Gate(promotes=("better",))
    assert decide(rules, scores(), against(found("better"), found("not worse")))["passed"]


@pytest.mark.parametrize(("outcome", "passed"), [("cannot tell", True), ("worse", False)])
def test_other_metrics_must_not_be_surely_worse(outcome, passed):
    comparison = found("better")
    comparison["metrics"]["recall[cat]"] = found(outcome)["metrics"]["accuracy"]
    decision = decide(Gate(no_worse=("recall[cat]",)), scores(), against(comparison))
    assert decision["passed"] is passed
    assert decision["verdict"] == ("better" if passed else "worse")
    assert decision["rules"][-1]["rule"] == "recall[cat] not surely worse than champion 3 (0.9400)"


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


def test_what_was_found_is_said():
    assert decide(Gate(), scores(), against(found("better")))["says"] == [
        "Accuracy is +1.0 points against the champion, version 3, on 360 images: better. The true "
        "difference is between -0.5 points and +2.5 points (wrong on either side in 5 % of cases).",
        "7 images only this model has right, 3 only version 3.",
        "With 360 test images, an improvement below 2.3 points cannot be seen; the margin of 2.0 "
        "points needs about 476.",
    ]


def test_it_is_a_warning_if_only_large_improvements_can_be_seen():
    comparison = found("cannot tell")
    comparison["metrics"]["accuracy"]["visible"] = 0.061
    says = decide(Gate(margin=0), scores(), against(comparison))["says"]
    assert says[-1] == (
        "Warning: with 360 test images, an improvement below 6.1 points cannot be seen. Add test "
        "images."
    )


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        ("not worse", "not worse, except by less than the margin"),
        ("worse", "360 images: worse"),
        ("cannot tell", "it cannot be told which is better"),
    ],
)
def test_each_outcome_has_its_words(outcome, words):
    assert words in decide(Gate(), scores(), against(found(outcome)))["says"][0]


def test_a_loss_is_said_as_it_is_and_lower():
    opponents = against(found("better", "log_loss"))
    decision = decide(Gate(metric="log_loss"), scores(), opponents)
    assert decision["rules"][0]["rule"] == "log_loss surely < champion 3 (0.9400) + 0.02"
    assert decision["says"][0].startswith("Log_loss is +0.0100 against the champion, version 3")
    assert decision["says"][1].startswith(
        "With 360 test images, an improvement below 0.0230 cannot be seen; the margin of 0.0200 "
    )


def test_what_was_left_out_is_said():
    comparison = found("better", learnt=1, other_classes=2)
    says = decide(Gate(), scores(), against(comparison, found("better")))["says"]
    assert says[0].startswith("1 test image was left out: this model or the champion, version 3,")
    assert says[1].startswith("2 test images were left out: this model or the champion, version 3,")


def test_it_is_said_if_nobody_knows_what_an_opponent_was_trained_on():
    says = decide(Gate(), scores(), against(found("better", recorded=False)))["says"]
    assert says[0] == (
        "It is not recorded which images the champion, version 3, was trained on; none were left "
        "out."
    )


def test_the_rule_against_the_champion_says_what_was_compared():
    rule = decide(Gate(margin=0.005), scores(), against(found("better")))["rules"][-1]
    assert rule["rule"] == "accuracy surely > champion 3 (0.9400) - 0.005"
    assert rule["bound"] == pytest.approx(0.935)
    assert rule["value"] == 0.95


@pytest.mark.parametrize(("bound", "passed"), [(0.9, True), (0.99, False)])
def test_the_champion_itself_is_not_compared_with_itself(bound, passed):
    same = Opponents(Opponent(3, "my package", "my training", METRICS, None), None)
    decision = decide(Gate(min={"accuracy": bound}), scores(), same)
    assert decision["verdict"] == "champion already"
    assert decision["passed"] is passed
    assert len(decision["rules"]) == 1


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
