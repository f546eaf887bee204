"""The comparison as a step: which images it is of, and which number it has."""

import hashlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retrain.runs.run import following
from retrain.step import REPORT
from retrain.store import Artifact
from retrain.workload import Gate
from tasks.data import predictions
from tasks.data.champion import Opponent
from tasks.data.image_facts import image_id
from tasks.data.predictions import LEARNT
from tasks.data.slices import FILE
from tasks.gate import comparison
from tasks.gate.comparison import compare_champion, compare_with, too_few_images

CLASSES = ("ant", "bee")
LABELS = CLASSES * 100
RULES = Gate()
OPPONENT = SimpleNamespace(project=None, version=None)


@pytest.fixture(autouse=True)
def knows(monkeypatch):
    """Sets the file with the images that the opponent has learnt; first they are not known."""

    def learnt(file: Path | None) -> None:
        monkeypatch.setattr(comparison, "learnt_images", lambda project, version: file)

    learnt(None)
    return learnt


def sha256(row: int) -> str:
    return hashlib.sha256(str(row).encode()).hexdigest()


def write(folder, wrong, known=CLASSES, labels=LABELS, groups=None, sites=()) -> Artifact:
    """Predictions that are wrong for as many of the first images, and a slice for each site."""
    rows = len(labels)
    predicted = [
        known[(known.index(label) + (row < wrong)) % len(known)] if label in known else known[0]
        for row, label in enumerate(labels)
    ]
    described = {
        "path": [f"{row}.png" for row in range(rows)],
        "sha256": [f"encoded {row}" for row in range(rows)],
        "pixels": [sha256(row) for row in range(rows)],
        "label": list(labels),
    }
    best = np.array([known.index(name) for name in predicted])
    probabilities = np.full((rows, len(known)), 0.1, np.float32)
    probabilities[np.arange(rows), best] = 0.9
    folder.mkdir(parents=True)
    predictions.write(pa.table(described), [probabilities], known, folder / predictions.FILE)
    np.save(folder / predictions.GROUPS, np.arange(rows) if groups is None else groups)
    pq.write_table(pa.table({"site": [*sites]}), folder / FILE)
    slices = [{"column": "site", "value": value} for value in sorted({*sites})]
    return Artifact("evaluate", "k", "d", folder, {"slices": slices})


def compared(tmp_path, ours: int, theirs: int, rules=RULES, **of_ours):
    mine, other = write(tmp_path / "ours", ours, **of_ours), write(tmp_path / "theirs", theirs)
    return compare_champion(rules, mine, other, OPPONENT, None)


def test_the_predictions_are_compared_image_by_image(tmp_path):
    found = compared(tmp_path, 3, 20, Gate(no_worse=("recall[bee]", "log_loss")))
    assert (found["images"], found["learnt"], found["other_classes"]) == (200, 0, 0)
    accuracy, recall, log_loss = found["metrics"].values()
    assert list(found["metrics"]) == ["accuracy", "recall[bee]", "log_loss"]
    assert (accuracy["gained"], accuracy["lost"], accuracy["outcome"]) == (17, 0, "better")
    values = accuracy["challenger"], accuracy["opponent"]
    assert values == pytest.approx((197 / 200, 180 / 200))
    # An unseen image may lose 16 nats.
    assert (recall["outcome"], log_loss["outcome"]) == ("better", "cannot tell")
    assert log_loss["difference"] == pytest.approx(17 / 200 * np.log(9), rel=1e-5)


def learnt(file, rows):
    """Writes which of the images a model has learnt."""
    file.parent.mkdir(exist_ok=True)
    np.save(file, np.array(sorted(image_id(sha256(row)) for row in rows), np.uint64))
    return file


FIVES = np.arange(200) // 5


@pytest.mark.parametrize(
    ("rows", "groups", "images", "units", "gained", "more"),
    [
        (range(150), None, 50, 50, 10, 1),
        (range(170), None, 30, 30, 0, 1),
        (range(171), None, 29, 29, None, 1),  # too few
        # As near duplicates that came to the test split together, when one more of them came.
        ([0, 50, 51], FIVES, 190, 38, 150, 5),
    ],
)
def test_images_that_a_model_has_learnt_are_left_out_with_their_groups(
    tmp_path, knows, rows, groups, images, units, gained, more
):
    knows(learnt(tmp_path / LEARNT, rows))
    both = write(tmp_path / "ours", 3, groups=groups), write(tmp_path / "theirs", 160)
    found = compare_champion(RULES, *both, OPPONENT, None)
    assert (found["images"], found["groups"], found["learnt"]) == (images, units, 200 - images)
    assert (found["recorded"], found["start_recorded"]) == (True, False)
    assert found["metrics"].get("accuracy", {}).get("gained") == gained
    assert found["not_compared"] == []
    # The start of the challenger may have learnt some, too.
    learnt(tmp_path / "ours" / REPORT / LEARNT, [0, 199])
    known = compare_champion(RULES, *both, OPPONENT, None)
    assert (known["learnt"], known["start_recorded"]) == (200 - images + more, True)


def test_only_classes_that_both_know_are_compared(tmp_path):
    labels = ("ant", "bee", "cat") * 50
    mine = write(tmp_path / "ours", 3, ("ant", "bee", "cat"), labels)
    other = write(tmp_path / "theirs", 9, ("ant", "bee", "dog"), labels)
    found = compare_champion(Gate(), mine, other, OPPONENT, None)
    assert (found["images"], found["other_classes"], found["recorded"]) == (100, 50, False)
    assert found["metrics"]["accuracy"]["gained"] == 4
    assert found["new_classes"] == ["cat"]


def test_a_class_that_the_compared_images_lack_does_not_count_in_an_average(tmp_path):
    """Of ten classes two are left, and four of a hundred images of each are lost."""
    classes, labels = tuple("abcdefghij"), ("a", "b") * 100
    both = (write(tmp_path / str(wrong), wrong, classes, labels) for wrong in (8, 0))
    rules = Gate(metric="macro_recall", margin=0.01, no_worse=("recall[c]", "macro_f1"))
    found = compare_champion(rules, *both, OPPONENT, None)
    recall = found["metrics"]["macro_recall"]
    assert (recall["difference"], recall["outcome"]) == (pytest.approx(-0.04), "worse")
    assert (found["absent"], found["not_compared"]) == (list("cdefghij"), ["recall[c]"])
    assert list(found["metrics"]) == ["macro_recall", "macro_f1"]


@pytest.mark.parametrize(("count", "outcome"), [(29, None), (30, "worse")])
def test_groups_are_counted_and_compared_in_place_of_images(tmp_path, count, outcome):
    """Twenty-nine groups are too few; of thirty, nine that are lost whole are worse."""
    found = compared(tmp_path, 60, 0, groups=np.arange(200) * count // 200)
    assert (found["images"], found["groups"]) == (200, count)
    assert found["metrics"].get("accuracy", {}).get("outcome") == outcome


def test_slices_are_compared_by_their_images(tmp_path):
    sites = ["Lyon"] * 60 + ["Oslo"] * 111 + ["Bath"] * 29
    rules = Gate(slices=("site",), no_worse=("accuracy[site]",))
    metrics = compared(tmp_path, 20, 3, rules, sites=sites)["metrics"]
    assert list(metrics) == ["accuracy", "accuracy[site=Lyon]", "accuracy[site=Oslo]"]
    _, lyon, oslo = metrics.values()
    assert (lyon["lost"], lyon["outcome"]) == (17, "worse")
    assert (oslo["lost"], oslo["challenger"]) == (0, 1.0)
    one = Gate(slices=("site",), no_worse=("accuracy[site=Lyon]", "accuracy[site=Bath]"))
    found = compared(tmp_path / "alone", 20, 3, one, sites=sites)
    assert list(found["metrics"]) == ["accuracy", "accuracy[site=Lyon]"]
    assert found["not_compared"] == ["accuracy[site=Bath]"]


def test_of_many_slices_one_has_to_be_surer_to_be_worse(tmp_path):
    """Five lost images and none gained are worse alone (1/32), and not among five slices."""
    sites = [str(row // 40) for row in range(200)]
    for name, outcome in (("accuracy[site=0]", "worse"), ("accuracy[site]", "cannot tell")):
        rules = Gate(slices=("site",), no_worse=(name,))
        metrics = compared(tmp_path / name, 5, 0, rules, sites=sites)["metrics"]
        assert metrics["accuracy[site=0]"]["outcome"] == outcome


def scored(number: int) -> SimpleNamespace:
    """A version as the registry would give it, with its scores."""
    digests = {"package_digest": f"p{number}", "train_digest": f"t{number}"}
    registered = SimpleNamespace(
        version=SimpleNamespace(version=number, **digests), as_input=number
    )
    evaluation = Artifact("evaluate_champion", "k", "d", Path(), {"metrics": {"accuracy": 0.9}})
    return SimpleNamespace(registered=registered, evaluation=evaluation)


@pytest.mark.parametrize(
    ("package", "train", "compared_with"),
    [("other", "other", [3, 2]), ("other", "t3", [3, 2]), ("p3", "other", [2]), ("p2", "t2", [3])],
)
def test_a_model_is_compared_unless_it_is_the_opponent(tmp_path, package, train, compared_with):
    def run(step, scores, evaluation, version):
        return Artifact(step.name, "k", "d", Path(), {"by": step.name, "of": version})

    scores = Artifact("evaluate", "k", "d", tmp_path, {"package": package, "train": train})
    with following(SimpleNamespace(output=run)):
        made = compare_with(scores, scored(3), scored(2))
        assert compare_with(scores, None, None) == (None, None)
    assert made == tuple(
        Opponent(
            n, f"t{n}", {"accuracy": 0.9}, {"by": name, "of": n} if n in compared_with else None
        )
        for n, name in {3: "compare_champion", 2: "compare_reference"}.items()
    )


@pytest.mark.parametrize(
    ("metric", "margin", "is_told"),
    [
        ("accuracy", 0.02, True),
        ("accuracy", 0.2, False),
        ("accuracy", 0.0, False),  # a model has to be better, whatever the images can show
        ("log_loss", 0.02, False),  # which has no scale of its own
        ("recall[ant]", 0.02, True),
        ("recall[cat]", 0.02, False),  # no class of the test split
    ],
)
def test_it_is_told_when_the_test_images_are_too_few_for_the_margin(metric, margin, is_told):
    facts = {"test_units": {"ant": 50, "bee": 50}, "rows": {"test": 100}, "test_groups": 100}
    checked = Artifact("validate", "k", "d", Path(), facts)
    sentence = too_few_images(Gate(metric=metric, margin=margin), checked)
    assert (sentence is not None) is is_told
    assert sentence is None or "usually passes with a margin of" in sentence
