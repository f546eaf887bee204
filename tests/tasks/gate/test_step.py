"""The verdicts, by what the comparisons found, and what a person is told of them."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from retrain.project import Project
from retrain.step import Workspace
from retrain.store import Artifact
from retrain.workload import Data, Evaluate, Gate, Model, Workload
from tasks.data.champion import Opponent, Opponents
from tasks.gate.step import gate, too_few_images

NONE = Opponents(None, None)
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
        "low": 0.005, "high": 0.025, "outcome": outcome, "visible": 0.023,
    }  # fmt: skip
    facts = {
        "images": 360, "learnt": 0, "recorded": True, "other_classes": 0, "level": 0.05,
        "absent": [], "new_classes": [], "not_compared": [],
    }  # fmt: skip
    return facts | {"metrics": {metric: of}} | others


def against(champion=None, reference=None) -> Opponents:
    """A champion, version 3, and a reference, version 2, each with what its comparison found."""
    made = (
        None if each is None else Opponent(version, f"t{version}", METRICS, each)
        for version, each in ((3, champion), (2, reference))
    )
    return Opponents(*made)


METRICS = {"accuracy": 0.94, "log_loss": 0.2}


def decide(rules: Gate, challenger: Artifact, opponents: Opponents) -> dict:
    place = Path(tempfile.gettempdir())
    workspace = Workspace(place, place, "key", "toy", Project(place / "nowhere"))
    return gate(rules, challenger, opponents, workspace)


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


@pytest.mark.parametrize(
    ("name", "images", "value", "passed"),
    [
        ("worst_class_recall", 2, 0.9, True),
        ("worst_class_recall", 29, 0.9, True),
        ("worst_class_recall", 30, 0.0, False),
        ("recall[new]", 29, 0.0, None),
        ("recall[new]", 30, 0.0, False),
    ],
)
def test_a_bound_is_judged_on_the_classes_with_enough_images(name, images, value, passed):
    table = [*TABLE, NEW | {"rows": images}]
    [rule, _] = decide(Gate(min={name: 0.85}), scores(table), against(found("better")))["rules"]
    assert (rule["value"], rule["passed"]) == (value, passed)


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
    decision = decide(rules, scores(table), against(found("better")))
    rule = decision["rules"][0]
    assert rule["rule"].startswith(words)
    assert rule["passed"] is None
    assert (decision["passed"], decision["verdict"]) == (True, "better")


def test_the_first_model_has_to_meet_its_bounds_on_any_number_of_images():
    table = [row | {"rows": 9} for row in TABLE] + [NEW]
    for bound in ({"accuracy": 0.96}, {"recall[new]": 0.1}, {"worst_class_recall": 0.1}):
        decision = decide(Gate(min=bound), scores(table), NONE)
        assert (decision["passed"], decision["verdict"]) == (False, "below bounds")
    assert decide(Gate(min={"accuracy": 0.9}), scores(table), NONE)["passed"]


@pytest.mark.parametrize(("size", "passed"), [(50_000_000, True), (83_240_000, False)])
def test_a_package_may_be_too_large(size, passed):
    challenger = scores()
    challenger = replace(challenger, facts=challenger.facts | {"package_bytes": size})
    decision = decide(Gate(max_package_mb=50), challenger, NONE)
    assert (decision["passed"], decision["verdict"] == "below bounds") == (passed, not passed)
    [rule] = decision["rules"]
    assert (rule["rule"], rule["value"]) == ("size of the package <= 50 MB", size / 1e6)


@pytest.mark.parametrize(("coverage", "passed"), [(0.7, True), (0.6, False), (0.0, False)])
def test_a_bound_may_be_on_what_a_model_accepts_and_it_has_to_accept_something(coverage, passed):
    challenger = scores(coverage=coverage, accepted_precision=0.99)
    decision = decide(Gate(min={"coverage": 0.65}), challenger, NONE)
    assert decision["passed"] is passed
    bound, any_at_all = decision["rules"]
    assert (bound["rule"], any_at_all["rule"]) == ("coverage >= 0.65", "coverage > 0")
    assert any_at_all["passed"] is (coverage > 0)


def sliced(*parts: tuple[str, int, float]) -> Artifact:
    """An evaluation with slices of the column `site`: the value, images and accuracy of each."""
    slices = [
        {"column": "site", "value": value, "images": images, "accuracy": accuracy}
        for value, images, accuracy in parts
    ]
    return scores(slices=slices)


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
    challenger = sliced(("Lyon", 100, 0.9), ("Oslo", 30, 0.75), ("Bath", 29, 0.1))
    decision = decide(Gate(slices=("site",), min=bound), challenger, against(found("better")))
    assert decision["rules"][0]["rule"] == rule
    assert decision["passed"] is passed
    assert [each["judged"] for each in decision["slices"]] == [True, True, False]


def workload(min_precision: float | None = None, **rules) -> Workload:
    return Workload(
        name="toy",
        data=Data(path="data"),
        model=Model(family="vit"),
        evaluate=Evaluate(min_precision=min_precision),
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
        ({"min": {"coverage": 0.5}}, "gate.min.coverage: there is no coverage without evaluate."),
        (
            {"metric": "accepted_precision", "min_precision": 0.9},
            "gate.metric: two models cannot be compared by accepted_precision, only bounded by it",
        ),
    ],
)
def test_rules_that_nothing_can_be_judged_by_are_found_before_a_run(rules, fault):
    [found] = gate.check(workload(**rules), None)  # type: ignore[arg-type]
    assert found.startswith(fault)


def test_rules_about_slices_and_classes_may_be_of_any_value():
    names = ("accuracy[site=Oslo]", "accuracy[site]", "recall[cat]")
    rules = {"min": dict.fromkeys(names, 0.5), "no_worse": names, "slices": ("site",)}
    assert list(gate.check(workload(**rules), None)) == []  # type: ignore[arg-type]
    rules = {"min": {"coverage": 0.5, "accepted_precision": 0.9}, "min_precision": 0.95}
    assert list(gate.check(workload(**rules), None)) == []  # type: ignore[arg-type]


def test_a_class_that_the_champion_does_not_know_is_named():
    opponents = against(found("better", new_classes=["new"]))
    decision = decide(Gate(), scores([*TABLE, NEW]), opponents)
    assert decision["passed"]
    assert decision["new_classes"] == [{"label": "new", "rows": 2, "recall": 0.0}]


def test_a_class_that_is_never_predicted_is_named():
    table = [*TABLE, NEW | {"rows": 40, "predicted": 0}]
    for opponents in (NONE, against(found("better"))):
        says = decide(Gate(), scores(table), opponents)["says"]
        assert says[-1] == "Class 'new' is never predicted; it has 40 test images."


def test_what_was_found_is_said():
    assert decide(Gate(), scores(), against(found("better")))["says"] == [
        "Accuracy is +1.0 points (+0.5 to +2.5) against the champion, version 3, on 360 images, of "
        "which 7 only this model has right and 3 only the other: better at a level of 0.05.",
        "With 360 test images, an improvement below 2.3 points cannot be seen; the margin of 2.0 "
        "points needs about 476.",
    ]


@pytest.mark.parametrize("margin", [0, 0.1])
def test_a_margin_that_can_be_seen_needs_no_more_images(margin):
    comparison = found("cannot tell")
    comparison["metrics"]["accuracy"]["visible"] = 0.061
    assert decide(Gate(margin=margin), scores(), against(comparison))["says"][-1] == (
        "With 360 test images, an improvement below 6.1 points cannot be seen."
    )


@pytest.mark.parametrize(
    ("images", "margin", "metric", "compared", "needs"),
    [
        (360, 0.02, "accuracy", True, "2.0 points: that needs about 476."),
        (475, 0.02, "accuracy", True, "2.0 points: that needs about 476."),
        (476, 0.02, "accuracy", True, None),
        (360, 0.01, "accuracy", True, "1.0 points: that needs about 1,904."),
        (360, 0.0, "accuracy", True, None),
        # (1.6449 + 0.8416)^2 / margin
        (360, 0.01, "accuracy", False, "1.0 points: that needs at least 619."),
        (360, 0.02, "accuracy", False, None),
        (360, 0.001, "log_loss", False, None),  # nothing is known of it before a comparison
        (360, 0.001, "log_loss", True, None),  # which was by another metric
    ],
)
def test_a_test_split_that_is_too_small_for_the_margin_is_told_of(
    images, margin, metric, compared, needs
):
    comparison = found("better") if compared else None  # of 360 images
    sentence = too_few_images(Gate(margin=margin, metric=metric), images, comparison)
    start = f"{images} test images are too few to see a difference of accuracy as small as "
    assert sentence == (needs and f"{start}gate.margin, {needs}")


def test_a_loss_is_said_as_it_is_and_lower():
    opponents = against(found("better", "log_loss"))
    decision = decide(Gate(metric="log_loss"), scores(), opponents)
    assert decision["rules"][0]["rule"] == "log_loss surely < champion 3 (0.9400) + 0.02"
    assert decision["rules"][0]["bound"] == pytest.approx(0.96)
    assert decision["says"][0].startswith("Log_loss is +0.0100 (+0.0050 to +0.0250) against the")
    assert decision["says"][1].startswith(
        "With 360 test images, an improvement below 0.0230 cannot be seen; the margin of 0.0200 "
    )


def test_what_was_left_out_is_said():
    absent = [f"n{number}" for number in range(12)]
    comparison = found("better", learnt=1, other_classes=2, recorded=False, absent=absent)
    says = decide(Gate(), scores(), against(comparison, found("better")))["says"]
    assert says[:4] == [
        "1 test image was left out: this model or the champion, version 3, was trained on them.",
        "2 test images were left out: this model or the champion, version 3, does not know their "
        "classes.",
        "It is not known which images the champion, version 3, was trained on; none were left out "
        "for that.",
        "The compared images have none of the classes n0, n1, n2, n3, n4, n5, n6, n7, n8, n9 and 2 "
        "more.",
    ]
    ten = decide(Gate(), scores(), against(found("better", absent=absent[:10])))["says"]
    assert ten[0].endswith("n8, n9.")
