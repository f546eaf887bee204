"""The card of a model: what it says, where it is kept, and where it is shown."""

import json
from dataclasses import replace

import pytest

from retrain.registry import packages, tracking, versions
from retrain.step import DataVersion
from retrain.store import Artifact
from tasks.data.metrics import ACCEPTS_NOTHING
from tasks.promote import card
from tests.tasks.promote.conftest import COMPARE, train
from tests.tasks.toy_model import LABELS, write_model


@pytest.fixture
def trained(tmp_path):
    """What `train` leaves, with its facts and its manifest."""
    made = write_model(tmp_path)
    numerics = {"precision": "bf16", "attention": "sdpa", "compiled": False, "threads": 1}
    facts = {"parameters": 5432, "numerics": numerics, "batch_size": 64, "best_epoch": 3}
    return replace(made, facts=made.facts | facts, provenance={"commit": "c0ffee"})


def scores(folder, *rows, **facts) -> Artifact:
    """An evaluation with these classes: name, images, recall."""
    folder.mkdir(exist_ok=True)
    table = [
        {"label": label, "precision": 0.5, "recall": recall, "f1": 0.5, "rows": count}
        for label, count, recall in rows
    ]
    (folder / "classes.json").write_text(json.dumps({"classes": table}))
    total = sum(count for _, count, _ in rows)
    given = {"metrics": {"accuracy": 0.9, "log_loss": 0.25, "rows": total}, "precision": "fp32"}
    return Artifact(
        "evaluate",
        "k",
        "d",
        folder,
        given | {"package": "p" * 64, "package_bytes": 12_345_678, "min_confidence": None} | facts,
    )


def described(trained, evaluation, slices=(), **facts) -> str:
    validated = {
        "rows": {"train": 700, "val": 100, "test": 200}, "quarantined": 3, "near_duplicates": 0,
        "classes": {"ant": 400, "bee": 250, "cat": 150, "dog": 200},
    }  # fmt: skip
    decision = {"verdict": "better", "says": ["Accuracy is better.", "So it is."], "slices": slices}
    return card.describe(
        "toy", DataVersion("data-1", True), validated | facts, trained, evaluation, decision
    )


def test_the_card_has_the_slices(trained, tmp_path):
    few = {"column": "site", "value": "a|b", "images": 9, "accuracy": 0.5, "low": 0.2, "high": 0.8}
    third = few | {"column": "side", "value": "lowest", "images": 91, "from": 8.0, "to": 16.0}
    slices = (few | {"judged": False}, third | {"judged": True})
    text = described(trained, scores(tmp_path / "scores", ("ant", 100, 0.5)), slices)
    assert "| site: a\\|b | 9 (too few to judge) | 0.5000 | 0.2000 to 0.8000 |" in text
    assert "| side: lowest (8 to 16) | 91 | 0.5000 | 0.2000 to 0.8000 |" in text
    assert "They were measured by class, site, side, and by nothing else" in text


def test_the_card_says_what_is_known(trained, tmp_path):
    rows = [("ant", 80, 0.95), ("bee", 60, 0.9), ("cat", 29, 0.5), ("dog", 31, 1.0)]
    text = described(trained, scores(tmp_path / "scores", *rows))
    for line in (
        "# toy",
        "An image classifier with 4 classes: ant, bee, cat, dog. It takes images of 8 x 8 pixels, "
        "grey (resize crop, bicubic).",
        "Version `data-1`: 700 train, 100 val, 200 test images. 3 were set aside.",
        "The classes have from 150 images (cat) to 400 (ant).",
        "200 images that the model was not trained on. It answers in fp32.",
        # Wilson's interval of 180 of 200.
        "| accuracy | 0.9000 | 0.851 to 0.934 |",
        "| log_loss | 0.2500 |  |",
        "| dog | 31 | 1.0000 | 0.890 to 1.000 | 0.5000 |",
        "The gate says: it is better than the champion.",
        "So it is.",
        "Family vit, 5,432 parameters, best epoch 3, batches of 64, precision bf16.",
        f"Commit `c0ffee`, weights `{trained.facts['weights']}`.",
        "- Classes with fewer than 30 test images: cat (29). Of these little is known.",
    ):
        assert line in text.splitlines(), line
    assert "look almost" not in text
    assert "bf16, a probability" not in text


@pytest.mark.parametrize(
    ("least", "coverage", "said", "interval"),
    [
        (0.8731, 0.75, "It accepts an answer if the probability of its label is at least 0.8731.",
         "0.8000 | 0.729 to 0.856 |"),
        (ACCEPTS_NOTHING, 0.0, "It accepts no answer.", "0.8000 |  |"),
    ],
)  # fmt: skip
def test_the_card_says_what_the_model_accepts(trained, tmp_path, least, coverage, said, interval):
    metrics = {"accuracy": 0.7, "coverage": coverage, "accepted_precision": 0.8, "rows": 200}
    made = scores(tmp_path / "scores", ("ant", 200, 0.7), metrics=metrics, min_confidence=least)
    text = described(trained, made)
    assert said in text
    assert f"| accepted_precision | {interval}" in text


def test_it_is_kept_with_the_run_and_has_the_last_decision_of_the_gate(project, run):
    trained = train(project)
    run(trained, "cannot tell")
    version = versions.get(project, "toy", 1)
    assert "The gate says: it cannot be told" in packages.read_card(project, version)
    run(trained, "first", intent=COMPARE)
    text = packages.read_card(project, version)
    assert text.startswith("# toy\n")
    assert f"4 classes: {', '.join(LABELS)}." in text
    assert "The gate says: there was no champion" in text
    assert "cannot be told" not in text
    shown = tracking.client(project).get_model_version("toy", "1").description
    assert shown.startswith("**Compared** on ")
    assert shown.count("there was no champion to compare it with") == 1  # not twice
    assert shown.endswith(text.partition("## Training")[2])
    tags = tracking.client(project).get_run(version.run_id).data.tags
    assert tags[tracking.NOTE] == f"toy version 1. {shown.splitlines()[0]}"
    assert not list(packages.download(project, version).rglob("*.md"))
    assert packages.read_card(project, replace(version, package_digest="older")) is None
