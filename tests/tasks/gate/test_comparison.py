"""The comparison as a step: which images it is of, and which number it has."""

import hashlib
from dataclasses import replace
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


def write(folder, wrong, known=CLASSES, labels=LABELS, groups=None) -> Artifact:
    """Predictions that are wrong for as many of the first images."""
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
    return Artifact("evaluate", "k", "d", folder, {})


def compared(tmp_path, ours: int, theirs: int, rules=RULES, sites=()):
    mine, other = write(tmp_path / "ours", ours), write(tmp_path / "theirs", theirs)
    if sites:
        mine = divided(mine, sites)
    return compare_champion(rules, mine, other, OPPONENT, None)


def test_the_predictions_are_compared_image_by_image(tmp_path):
    found = compared(tmp_path, 3, 20, Gate(no_worse=("recall[bee]", "log_loss")))
    assert (found["images"], found["learnt"], found["other_classes"]) == (200, 0, 0)
    accuracy = found["metrics"]["accuracy"]
    assert (accuracy["gained"], accuracy["lost"], accuracy["outcome"]) == (17, 0, "better")
    assert accuracy["challenger"] == pytest.approx(197 / 200)
    assert accuracy["opponent"] == pytest.approx(180 / 200)
    assert list(found["metrics"]) == ["accuracy", "recall[bee]", "log_loss"]
    outcomes = [each["outcome"] for each in found["metrics"].values()]
    assert outcomes == ["better", "better", "cannot tell"]  # an unseen image may lose 16 nats
    assert found["metrics"]["log_loss"]["difference"] == pytest.approx(
        17 / 200 * np.log(9), rel=1e-5
    )


def learnt(file, rows):
    """Writes which of the images a model has learnt."""
    file.parent.mkdir(exist_ok=True)
    np.save(file, np.array(sorted(image_id(sha256(row)) for row in rows), np.uint64))
    return file


@pytest.mark.parametrize(
    ("count", "images", "gained"), [(150, 50, 10), (170, 30, 0), (171, 29, None)]
)
def test_images_that_the_opponent_has_learnt_are_left_out(tmp_path, knows, count, images, gained):
    knows(learnt(tmp_path / LEARNT, range(count)))
    found = compared(tmp_path, 3, 160)
    assert (found["images"], found["learnt"], found["recorded"]) == (images, count, True)
    assert found["metrics"].get("accuracy", {}).get("gained") == gained  # of 29 none
    assert found["not_compared"] == []
    assert found["start_recorded"] is False
    # The start of the challenger may have learnt some, too.
    learnt(tmp_path / "ours" / REPORT / LEARNT, [0, 199])
    artifacts = (Artifact("evaluate", "k", "d", tmp_path / name, {}) for name in ("ours", "theirs"))
    known = compare_champion(RULES, *artifacts, OPPONENT, None)
    assert (known["learnt"], known["start_recorded"]) == (count + 1, True)


def test_images_that_belong_to_a_learnt_one_are_left_out_with_it(tmp_path, knows):
    """As near duplicates that came to the test split together, when one more of them came."""
    knows(learnt(tmp_path / LEARNT, [0, 50, 51]))
    groups = np.arange(200) // 10
    mine, other = (write(tmp_path / name, 3, groups=groups) for name in ("ours", "theirs"))
    found = compare_champion(Gate(min_compared=10), mine, other, OPPONENT, None)
    assert (found["images"], found["groups"], found["learnt"]) == (180, 18, 20)


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
    classes = tuple("abcdefghij")
    labels = ("a", "b") * 100
    mine, other = (
        write(tmp_path / name, wrong, classes, labels)
        for name, wrong in (("ours", 8), ("theirs", 0))
    )
    rules = Gate(metric="macro_recall", margin=0.01, no_worse=("recall[c]", "macro_f1"))
    found = compare_champion(rules, mine, other, OPPONENT, None)
    recall = found["metrics"]["macro_recall"]
    assert recall["difference"] == pytest.approx(-0.04)
    assert recall["outcome"] == "worse"
    assert found["absent"] == list("cdefghij")
    assert found["not_compared"] == ["recall[c]"]
    assert list(found["metrics"]) == ["macro_recall", "macro_f1"]


def test_groups_are_counted_and_compared_in_place_of_images(tmp_path):
    """Twenty-nine groups are too few; of thirty, nine that are lost whole are worse."""
    for count, outcome in ((29, None), (30, "worse")):
        groups = np.arange(200) * count // 200
        mine = write(tmp_path / f"ours {count}", 60, groups=groups)
        other = write(tmp_path / f"theirs {count}", 0)
        found = compare_champion(RULES, mine, other, OPPONENT, None)
        assert (found["images"], found["groups"]) == (200, count)
        assert found["metrics"].get("accuracy", {}).get("outcome") == outcome


def divided(scores: Artifact, sites) -> Artifact:
    """An evaluation with slices of the column `site`, by the site of each image."""
    pq.write_table(pa.table({"site": sites}), scores.folder / FILE)
    slices = [{"column": "site", "value": value} for value in sorted({*sites})]
    return replace(scores, facts={"slices": slices})


def test_slices_are_compared_by_their_images(tmp_path):
    sites = ["Lyon"] * 60 + ["Oslo"] * 111 + ["Bath"] * 29
    rules = Gate(slices=("site",), no_worse=("accuracy[site]",))
    metrics = compared(tmp_path, 20, 3, rules, sites=sites)["metrics"]
    assert list(metrics) == ["accuracy", "accuracy[site=Lyon]", "accuracy[site=Oslo]"]
    lyon, oslo = metrics["accuracy[site=Lyon]"], metrics["accuracy[site=Oslo]"]
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
    version = SimpleNamespace(version=number, **digests)
    evaluation = Artifact("evaluate_champion", "k", "d", Path(), {"metrics": {"accuracy": 0.9}})
    registered = SimpleNamespace(version=version)
    registered.as_input = registered
    return SimpleNamespace(registered=registered, evaluation=evaluation)


def opponents(tmp_path, challenger, reference=None):
    """What a challenger is compared with, and the version that each comparison is with."""
    given = {}

    def run(step, scores, evaluation, registered):
        given[step.name] = registered.version.version
        return Artifact(step.name, "k", "d", Path(), {"of": step.name})

    scores = Artifact("evaluate", "k", "d", tmp_path, challenger)
    with following(SimpleNamespace(output=run)):
        made = compare_with(scores, scored(3), reference)
    return made, given


@pytest.mark.parametrize(
    ("challenger", "is_compared"),
    [
        ({"package": "other", "train": "other"}, True),
        ({"package": "p3", "train": "other"}, False),
        ({"package": "other", "train": "t3"}, True),
    ],
)
def test_a_model_is_compared_unless_it_is_the_opponent(tmp_path, challenger, is_compared):
    made, given = opponents(tmp_path, challenger)
    champion, reference = made
    assert champion.comparison == ({"of": "compare_champion"} if is_compared else None)
    assert (champion.version, champion.train_digest) == (3, "t3")
    assert champion.metrics == {"accuracy": 0.9}
    assert reference is None
    assert list(given) == ["compare_champion"] * is_compared


def test_the_reference_is_compared_by_a_step_of_its_own(tmp_path):
    made, given = opponents(tmp_path, {"package": "other", "train": "other"}, scored(2))
    assert made[1].comparison == {"of": "compare_reference"}
    assert given == {"compare_champion": 3, "compare_reference": 2}


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
