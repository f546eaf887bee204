"""Two versions on any images: which count, what is found, and what is said."""

import hashlib
import json
import re
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retrain.runs import console
from retrain.workload import Gate
from tasks.data.metrics import METRICS
from tasks.data.predictions import image_id
from tasks.gate import any_two
from tasks.gate.any_two import IMAGES, read_answers, sentences
from tasks.predict.predict import schema

CLASSES = ("ant", "bee")
A, B = "toy version 1", "toy version 2"


def shown(labels) -> pa.Table:
    """Images of these classes; each has content of its own."""
    digests = [hashlib.sha256(str(row).encode()).hexdigest() for row in range(len(labels))]
    paths = [f"{row}.png" for row in range(len(labels))]
    columns = (paths, [digest[::-1] for digest in digests], list(labels), digests)
    return pa.table([pa.array(column, pa.string()) for column in columns], IMAGES)


def answers(folder, images, given, known=CLASSES, confidence=0.75):
    """What the flow `predict` writes for these labels; None for an image that it cannot classify.

    The other classes share the rest of the probability.
    """
    rest = (1 - confidence) / (len(known) - 1)
    rows = [
        {
            "path": image["path"],
            "label": label,
            "probabilities": label and [confidence if name == label else rest for name in known],
            "sha256": image["sha256"],
            "error": None if label else "no image",
        }
        for image, label in zip(images.to_pylist(), given, strict=True)
    ]
    described = schema().with_metadata({"labels": json.dumps(known)})
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "answers.parquet"
    pq.write_table(pa.Table.from_pylist(rows, described), file)
    return read_answers(file, images)


def wrong_for(labels, rows, known=CLASSES):
    """The labels, but another one in some rows."""
    return [
        known[(known.index(label) + (row in rows)) % len(known)] for row, label in enumerate(labels)
    ]


def compared(tmp_path, labels, a_wrong=(), b_wrong=(), learnt=(None, None), rules=None):
    images = shown(labels)
    a, b = (
        answers(tmp_path / name, images, wrong_for(labels, rows))
        for name, rows in (("a", a_wrong), ("b", b_wrong))
    )
    return any_two.compare(a, b, images, learnt, rules or Gate())


def test_the_second_is_compared_with_the_first_in_every_metric(tmp_path):
    found, differences = compared(tmp_path, CLASSES * 100, range(20), (0, 1, 50))
    accuracy = found["metrics"]["accuracy"]
    assert list(found["metrics"]) == list(METRICS)
    assert (accuracy["a"], accuracy["b"]) == (pytest.approx(0.9), pytest.approx(0.985))
    assert accuracy["difference"] == pytest.approx(17 / 200)
    assert 0 < accuracy["low"] < 17 / 200 < accuracy["high"]
    assert accuracy["outcome"] == "better"
    assert (found["only_b"], found["only_a"]) == (18, 1)
    loss = found["metrics"]["log_loss"]
    assert loss["b"] < loss["a"]
    assert loss["difference"] == pytest.approx(loss["a"] - loss["b"])  # positive is better
    assert (found["shown"], found["images"], found["same"]) == (200, 200, 181)
    assert (found["learnt"], found["recorded"]) == ([0, 0], [False, False])
    assert differences["path"].to_pylist() == [f"{row}.png" for row in (*range(2, 20), 50)]
    assert found["first"] == differences.slice(0, 10).to_pylist()
    assert json.loads(json.dumps(found)) == found
    said = sentences(found, A, B)
    assert said[0].startswith(f"{B}: accuracy is +8.5 points against {A}, on 200 images: better. ")
    assert said[1] == f"18 images only {B} has right, 1 only {A}."
    assert said[2] == "A model that is worse by less than 0.02 (gate.margin) is not worse."


def test_images_that_either_was_trained_on_are_left_out(tmp_path):
    labels = CLASSES * 30
    ids = [image_id(pixels) for pixels in shown(labels)["pixels"].to_pylist()]
    learnt = (np.array(sorted(ids[:10]), np.uint64), np.array(sorted(ids[5:25]), np.uint64))
    found, differences = compared(tmp_path, labels, range(30), (), learnt)
    assert (found["learnt"], found["recorded"]) == ([10, 20], [True, True])
    assert found["images"] == 35
    assert found["only_b"] == 5
    assert differences["compared"].to_pylist() == [False] * 25 + [True] * 5
    assert sentences(found, A, B)[3:5] == [
        f"10 images were left out: {A} was trained on them.",
        f"20 images were left out: {B} was trained on them.",
    ]
    nothing, _ = compared(tmp_path / "nothing", labels, (0,), (), (np.array(ids), None))
    assert (nothing["images"], nothing["metrics"]) == (0, {})
    assert sentences(nothing, A, B)[0] == "No image is left to compare."


def test_what_cannot_be_compared_is_left_out_and_counted(tmp_path):
    labels = ["ant", "bee", "cat", None, "ant", "fly"]
    images = shown(labels)
    a = answers(
        tmp_path / "a", images, ["ant", "ant", "cat", "ant", None, "ant"], ("ant", "bee", "cat")
    )
    b = answers(tmp_path / "b", images, ["ant", "bee", "ant", "bee", "ant", "bee"])
    found, differences = any_two.compare(a, b, images, (None, None), Gate())
    assert (found["shown"], found["unanswered"], found["no_class"]) == (6, 1, 1)
    assert (found["other_classes"], found["images"], found["same"]) == (2, 2, 1)
    assert (found["only_a"], found["only_b"]) == (0, 1)
    assert differences.to_pylist()[0] == {
        "path": "1.png", "sha256": images["sha256"][1].as_py(), "label": "bee", "a_label": "ant",
        "a_confidence": 0.75, "b_label": "bee", "b_confidence": 0.75, "compared": True,
    }  # fmt: skip
    assert differences["path"].to_pylist() == ["1.png", "2.png", "3.png", "5.png"]
    assert differences["compared"].to_pylist() == [True, False, False, False]
    said = sentences(found, A, B)
    assert said[3:] == [
        "1 image was left out: one of the two could not classify them.",
        f"It is not known which of these images {A} was trained on; none were left out.",
        f"It is not known which of these images {B} was trained on; none were left out.",
        f"2 images were left out: {A} or {B} does not know their classes.",
        "1 image was left out: they have no class.",
        "Both give the same label for 1 of 5 images (20.0%).",
    ]


def test_the_classes_that_differ_most_come_first(tmp_path):
    known = tuple("abcdefgh")
    images = shown([name for name in known for _ in range(10)])

    def given(wrong):
        """Labels of which as many are wrong of each class."""
        return [
            "a" if row % 10 < wrong.get(label, 0) else label
            for row, label in enumerate(images["label"].to_pylist())
        ]

    a = answers(tmp_path / "a", images, given({"b": 1, "c": 5, "d": 2, "e": 4}), known)
    b = answers(tmp_path / "b", images, given({"d": 2, "f": 3, "g": 6, "h": 2}), known)
    found = any_two.compare(a, b, images, (None, None), Gate())[0]
    recall = found["metrics"]["worst_class_recall"]
    assert (recall["a"], recall["b"]) == (0.5, 0.4)
    classes = found["classes"]
    assert [(each["label"], each["difference"]) for each in classes] == [
        ("g", -6), ("c", 5), ("e", 4), ("f", -3), ("h", -2),
    ]  # fmt: skip
    assert classes[0] == {"label": "g", "images": 10, "a": 1.0, "b": 0.4, "difference": -6}


@pytest.mark.parametrize("labels", [(None,) * 8, ("2024", "2025") * 4])
def test_without_classes_that_a_model_knows_only_the_labels_are_compared(tmp_path, labels):
    images = shown(labels)
    a = answers(tmp_path / "a", images, ["ant"] * 7 + [None])
    b = answers(tmp_path / "b", images, ["ant"] * 4 + ["bee"] * 4)
    found, differences = any_two.compare(a, b, images, (None, None), Gate())
    for others in (images.slice(0, 1), images.take([*range(7, -1, -1)])):
        with pytest.raises(ValueError, match="The images have changed"):
            read_answers(tmp_path / "a" / "answers.parquet", others)
    assert not found["labelled"]
    assert "metrics" not in found
    assert found["pairs"] == [{"a": "ant", "b": "bee", "images": 3}]
    assert differences["path"].to_pylist() == ["4.png", "5.png", "6.png"]
    assert sentences(found, A, B) == [
        "Both give the same label for 4 of 7 images (57.1%).",
        f"The images have no class that {A} or {B} knows: their labels are compared.",
        "1 image was left out: one of the two could not classify them.",
    ]


def test_the_tables_are_shown(tmp_path, capsys):
    found, _ = compared(tmp_path, CLASSES * 20, range(6), (7,))
    with console.shown_on(sys.stdout):
        any_two.show(found, A, B)
    told = capsys.readouterr().out
    for line in (
        r"metric +toy version 1 +toy version 2 +better by +from +to +the second is",
        r"accuracy +0\.8500 +0\.9750 +\+0\.1250 +-0\.\d+ +\+\d.\d+ +not worse",
        r"ant +20 +0\.8500 +1\.0000 +\+3",
        r"0\.png +ant +bee 0\.75 +ant 0\.75",
        r"6 images only toy version 2 has right, 1 only toy version 1\.",
    ):
        assert re.search(line, told), (line, told)
