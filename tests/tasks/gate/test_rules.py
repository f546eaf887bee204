"""The bounds that every model has to reach, and rules that cannot be."""

from dataclasses import replace

import pytest

from retrain.store import Artifact
from retrain.workload import Data, Evaluate, Gate, Model, Workload
from tasks.gate.step import gate
from tests.tasks.gate.deciding import NEW, NONE, TABLE, against, decide, found, scores


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


def test_a_bound_on_slices_that_are_all_small_judges_nothing():
    decision = decide(
        Gate(min={"accuracy[site]": 0.9}), sliced(("Lyon", 8, 0.5)), against(found("better"))
    )
    rule = decision["rules"][0]
    assert rule["rule"] == "accuracy[site] >= 0.9, not judged with 8 images"
    assert (rule["value"], rule["passed"]) == (0.5, None)
    assert decision["passed"]


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
