"""How many test images a comparison needs, against the decisions of the gate itself."""

import numpy as np
import pyarrow as pa
import pytest

from retrain.workload import Gate
from tasks.data.metrics import Predictions
from tasks.data.sample_size import (
    DIFFERING,
    smallest_margin,
    units_needed,
    units_of,
    units_of_metric,
)
from tasks.gate import bootstrap
from tasks.gate.bootstrap import Pairs
from tasks.gate.paired import compare

LEVEL = Gate().level
SPLITS = ([25, 24], [80, 82], [500, 500], [156, 6], [400, 20], [100] * 10)


def drawn(units, random):
    """The answers of two equally good models, each of which is wrong where the other is right."""
    labels, classes = np.repeat(np.arange(len(units)), units), len(units)
    kind = random.choice(3, len(labels), p=[DIFFERING / 2, DIFFERING / 2, 1 - DIFFERING])
    likely, models = np.full(len(labels), 0.9, np.float32), []
    for wrong in (0, 1):
        answer = np.where(kind == wrong, (labels + 1) % classes, labels)
        models.append(Predictions(labels, answer, likely, likely))
    return Pairs(tuple(map(str, range(classes))), classes, *models, np.arange(len(labels)))


@pytest.mark.parametrize("metric", ["accuracy", "macro_recall"])
@pytest.mark.parametrize("units", SPLITS[1::2], ids=str)
def test_an_equally_good_model_passes_with_the_margin_in_four_of_five_draws(
    units, metric, monkeypatch
):
    monkeypatch.setattr(bootstrap, "DRAWS", 500)
    monkeypatch.setattr(bootstrap, "FEWEST_DRAWS", 500)
    random, margin = np.random.default_rng(1), smallest_margin(metric, units, LEVEL)
    outcomes = [compare(drawn(units, random), metric, margin, LEVEL)["outcome"] for _ in range(60)]
    passed = sum(outcome in ("better", "not worse") for outcome in outcomes)
    assert passed >= 44  # of 60; with a probability of 0.8 in 95 % of such tests


@pytest.mark.parametrize("metric", ["accuracy", "macro_recall", "macro_f1"])
@pytest.mark.parametrize("units", SPLITS, ids=str)
def test_as_many_as_are_needed_allow_the_margin_and_fewer_do_not(units, metric):
    margin = smallest_margin(metric, units, LEVEL) / 3
    needed = units_needed(metric, units, LEVEL, margin)
    scaled = (np.multiply(units, part * needed / sum(units)).tolist() for part in (1, 0.98))
    enough, few = (smallest_margin(metric, each, LEVEL) for each in scaled)
    assert enough <= margin < few
    assert units_needed(metric, units, LEVEL, 0.9) == sum(units)


def test_a_class_counts_alone_and_a_loss_has_no_scale():
    assert units_of_metric("recall[b]", {"a": 100, "b": 30}) == [30]
    assert smallest_margin("recall[b]", [30], LEVEL) == smallest_margin("accuracy", [30], LEVEL)
    assert smallest_margin("log_loss", [30], LEVEL) is None
    assert units_needed("log_loss", [30], LEVEL, 0.1) is None


def test_images_that_belong_together_count_once():
    labels, groups = ["b", "a", "a", "b", "a"], [1, 2, 2, 1, 3]
    assert units_of(*(pa.chunked_array([each]) for each in (labels, groups))) == {"a": 2, "b": 1}
