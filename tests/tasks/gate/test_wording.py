"""What a person is told of a decision."""

import pytest

from retrain.workload import Gate
from tasks.gate.step import too_few_images
from tests.tasks.gate.deciding import NEW, NONE, TABLE, against, decide, found, scores


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
