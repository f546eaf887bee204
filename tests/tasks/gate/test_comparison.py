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


def opponent(learnt: Path | None = None) -> SimpleNamespace:
    """A version that has learnt the images in a file; None if they are not known."""
    return SimpleNamespace(project=None, version=learnt)


@pytest.fixture(autouse=True)
def versions(monkeypatch):
    """The versions are those of `opponent`."""
    monkeypatch.setattr(comparison, "learnt_images", lambda project, version: version)


def sha256(row: int) -> str:
    return hashlib.sha256(str(row).encode()).hexdigest()


def write(folder, wrong, known=CLASSES, labels=LABELS, groups=None, sites=()) -> Artifact:
    """Predictions that are wrong for as many of the first images, and a slice for each site."""
    rows = len(labels)
    best = [
        (known.index(label) + (row < wrong)) % len(known) if label in known else 0
        for row, label in enumerate(labels)
    ]
    described = {
        "path": [f"{row}.png" for row in range(rows)],
        "sha256": [f"encoded {row}" for row in range(rows)],
        "pixels": [sha256(row) for row in range(rows)],
        "label": list(labels),
    }
    probabilities = np.full((rows, len(known)), 0.1, np.float32)
    probabilities[np.arange(rows), best] = 0.9
    folder.mkdir(parents=True)
    predictions.write(pa.table(described), [probabilities], known, folder / predictions.FILE)
    np.save(folder / predictions.GROUPS, np.arange(rows) if groups is None else groups)
    pq.write_table(pa.table({"site": [*sites]}), folder / FILE)
    slices = [{"column": "site", "value": value} for value in sorted({*sites})]
    return Artifact("evaluate", "k", "d", folder, {"slices": slices})


def learnt(file, rows):
    """Writes which of the images a model has learnt."""
    file.parent.mkdir(exist_ok=True)
    np.save(file, np.array(sorted(image_id(sha256(row)) for row in rows), np.uint64))
    return file


@pytest.mark.parametrize(
    ("rows", "groups", "images", "units", "gained", "more"),
    [
        (range(150), None, 50, 50, 10, 1),
        (range(170), None, 30, 30, 0, 1),
        (range(171), None, 29, 29, None, 1),  # too few
        # As near duplicates that came to the test split together, when one more of them came.
        ([0, 50, 51], np.arange(200) // 5, 190, 38, 150, 5),
    ],
)
def test_images_that_a_model_has_learnt_are_left_out_with_their_groups(
    tmp_path, rows, groups, images, units, gained, more
):
    other = opponent(learnt(tmp_path / LEARNT, rows))
    both = write(tmp_path / "ours", 3, groups=groups), write(tmp_path / "theirs", 160)
    found = compare_champion(Gate(), *both, other, None)
    assert (found["images"], found["groups"], found["learnt"]) == (images, units, 200 - images)
    assert (found["recorded"], found["start_recorded"]) == (True, False)
    assert found["metrics"].get("accuracy", {}).get("gained") == gained
    assert found["not_compared"] == []
    # The start of the challenger may have learnt some, too.
    learnt(tmp_path / "ours" / REPORT / LEARNT, [0, 199])
    known = compare_champion(Gate(), *both, other, None)
    assert (known["learnt"], known["start_recorded"]) == (200 - images + more, True)


THREE = ("ant", "bee", "cat") * 50
TEN = tuple("abcdefghij")
SITES = ["Lyon"] * 60 + ["Oslo"] * 111 + ["Bath"] * 29
FORTIES = [str(row // 40) for row in range(200)]


@pytest.mark.parametrize(
    ("ours", "theirs", "rules", "facts", "metrics"),
    [
        (
            {"wrong": 3},
            {"wrong": 20},
            {"no_worse": ("recall[bee]", "log_loss")},
            {"images": 200, "learnt": 0, "other_classes": 0},
            {
                "accuracy": {
                    "gained": 17,
                    "lost": 0,
                    "outcome": "better",
                    "challenger": pytest.approx(197 / 200),
                    "opponent": pytest.approx(180 / 200),
                },
                "recall[bee]": {"outcome": "better"},
                "log_loss": {  # an unseen image may lose 16 nats
                    "outcome": "cannot tell",
                    "difference": pytest.approx(17 / 200 * np.log(9), rel=1e-5),
                },
            },
        ),
        (  # only the classes that both know are compared
            {"wrong": 3, "known": ("ant", "bee", "cat"), "labels": THREE},
            {"wrong": 9, "known": ("ant", "bee", "dog"), "labels": THREE},
            {},
            {"images": 100, "other_classes": 50, "recorded": False, "new_classes": ["cat"]},
            {"accuracy": {"gained": 4}},
        ),
        (  # of ten classes two are left, and four of a hundred images of each are lost
            {"wrong": 8, "known": TEN, "labels": ("a", "b") * 100},
            {"wrong": 0, "known": TEN, "labels": ("a", "b") * 100},
            {"metric": "macro_recall", "margin": 0.01, "no_worse": ("recall[c]", "macro_f1")},
            {"absent": list("cdefghij"), "not_compared": ["recall[c]"]},
            {
                "macro_recall": {"difference": pytest.approx(-0.04), "outcome": "worse"},
                "macro_f1": {},
            },
        ),
        (  # of a single class the mean recall is the accuracy
            {"wrong": 5, "labels": ("bee",) * 200},
            {"wrong": 17, "labels": ("bee",) * 200},
            {"metric": "macro_recall", "no_worse": ("accuracy",)},
            {"absent": ["ant"]},
            {
                name: {"difference": pytest.approx(0.06), "outcome": "better"}
                for name in ("macro_recall", "accuracy")
            },
        ),
        *(  # groups count in place of images: 29 are too few; of 30, nine lost ones are worse
            (
                {"wrong": 60, "groups": np.arange(200) * count // 200},
                {"wrong": 0},
                {},
                {"images": 200, "groups": count},
                metrics,
            )
            for count, metrics in ((29, {}), (30, {"accuracy": {"outcome": "worse"}}))
        ),
        (
            {"wrong": 20, "sites": SITES},
            {"wrong": 3},
            {"slices": ("site",), "no_worse": ("accuracy[site]",)},
            {"not_compared": []},
            {
                "accuracy": {},
                "accuracy[site=Lyon]": {"lost": 17, "outcome": "worse"},
                "accuracy[site=Oslo]": {"lost": 0, "challenger": 1.0},
            },
        ),
        (
            {"wrong": 20, "sites": SITES},
            {"wrong": 3},
            {"slices": ("site",), "no_worse": ("accuracy[site=Lyon]", "accuracy[site=Bath]")},
            {"not_compared": ["accuracy[site=Bath]"]},
            {"accuracy": {}, "accuracy[site=Lyon]": {}},
        ),
        (
            {"wrong": 3, "sites": [*SITES[:170], *["Bath"] * 30]},
            {"wrong": 20},
            {"slices": ("site",), "no_worse": ("accuracy[site]",)},
            {"not_compared": []},
            {
                "accuracy": {},
                "accuracy[site=Bath]": {"outcome": "cannot tell"},
                "accuracy[site=Lyon]": {"gained": 17, "outcome": "better"},
                "accuracy[site=Oslo]": {},
            },
        ),
        *(  # five lost images and none gained are worse alone (1/32), and not among five slices
            (
                {"wrong": 5, "sites": FORTIES},
                {"wrong": 0},
                {"slices": ("site",), "no_worse": (name,)},
                {},
                {"accuracy": {}, "accuracy[site=0]": {"outcome": outcome}} | more,
            )
            for name, outcome, more in (
                ("accuracy[site=0]", "worse", {}),
                (
                    "accuracy[site]",
                    "cannot tell",
                    {f"accuracy[site={number}]": {} for number in range(1, 5)},
                ),
            )
        ),
    ],
)
def test_models_are_compared_by_the_same_images(tmp_path, ours, theirs, rules, facts, metrics):
    both = write(tmp_path / "ours", **ours), write(tmp_path / "theirs", **theirs)
    found = compare_champion(Gate(**rules), *both, opponent(), None)
    assert found.items() >= facts.items()
    assert list(found["metrics"]) == list(metrics)
    for name, values in metrics.items():
        assert found["metrics"][name].items() >= values.items(), name


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
