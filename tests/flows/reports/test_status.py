"""What `retrain history` says of decisions."""

from flows.reports.status import comparison_of

FOUND = {"difference": 0.02, "low": -0.01, "high": 0.05}


def considered(metric):
    return {
        "metric": metric,
        "comparisons": {"champion": {"images": 360, "metrics": {metric: FOUND}}},
    }


def test_a_decision_shows_the_metric_by_which_it_was_made():
    """Whatever `gate.metric` is now."""
    points, plain = (comparison_of(considered(metric)) for metric in ("accuracy", "macro_recall"))
    assert points["says"] == "+2.0 points (-1.0 to +5.0)"
    assert plain["says"] == "+0.0200 (-0.0100 to +0.0500)"
    assert [found["metric"] for found in (points, plain)] == ["accuracy", "macro_recall"]


def test_what_a_person_has_decided_rests_on_no_comparison():
    assert comparison_of({}) is None
