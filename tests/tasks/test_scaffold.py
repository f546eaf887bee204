"""What is proposed for images, as a function of what they are like and of the machine."""

from dataclasses import replace

import pytest

from retrain.params import load_workload, parse_yaml
from retrain.project import Project
from retrain.runs.preflight import check
from tasks.scaffold import Backbone, Survey, find_backbone, propose
from tasks.train.step import train
from tests.hub import write_clip

SEEN = Survey(
    format="folders", bytes=10**6, classes={"cat": 500, "dog": 400}, splits={}, groups=0,
    side=300, is_grey=False, undecodable={}, decoded=300,
)  # fmt: skip
LAPTOP, GPU = 1, None  # threads


def proposed(seen=SEEN, threads=LAPTOP, backbone=None, **changed):
    return propose("data/pets", replace(seen, **changed), threads, backbone)


@pytest.mark.parametrize("threads", [LAPTOP, GPU, 16])
@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"is_grey": True, "side": 8},
        {"classes": {"cat": 3, "dog": 3}},
        {"classes": {str(n): 5000 for n in range(100)}},
        {"splits": {"train": 500, "test": 400}, "groups": 12},
    ],
)
def test_every_proposal_is_a_valid_workload_without_bounds(tmp_path, threads, changed):
    entry = proposed(threads=threads, **changed).entry
    (tmp_path / "params.yaml").write_text("workloads: {toy: %s}" % parse_yaml(str(entry)))  # noqa: UP031
    workload = load_workload(tmp_path / "params.yaml", "toy")
    check([train], workload, Project(tmp_path))
    assert (workload.gate.min, workload.gate.max) == ({}, {})


@pytest.mark.parametrize(
    ("changed", "expected", "reasons"),
    [
        # As large as the images are, and the time allows; a network halves them five times.
        ({"side": 20}, {"images": {"size": 64}}, ()),
        ({"side": 70}, {"images": {"size": 96}}, ()),
        ({"side": 3000, "classes": {"cat": 60, "dog": 60}}, {"images": {"size": 224}}, ()),
        # Rare classes count as much as others; small ones pass the checks.
        (
            {"classes": {"cat": 900, "dog": 100}},
            {
                "train": {"balance": "loss", "best": {"metric": "val_macro_recall"}},
                "gate": {"metric": "macro_recall"},
            },
            ("900 images and the smallest 100",),
        ),
        (
            {"classes": {"cat": 50, "dog": 4}},
            {"checks": {"min_images_per_class": 4}},
            ("The smallest class has 4 images",),
        ),
        ({"is_grey": True}, {"images": {"channels": 1}}, ()),
        ({"groups": 12}, {"data": {"group": "^[^/]+/([^/]+)/"}}, ()),
        # It reckons with the splits that the run will have.
        (
            {"splits": {"train": 700, "val": 200}},
            {},
            ("; test will be cut out of train.", "About 140 test"),
        ),
        (
            {"splits": {"train": 700, "test": 200}},
            {},
            ("; val will be cut out of train.", "About 200 test"),
        ),
        ({"splits": {"train": 600, "val": 100, "test": 200}}, {}, ("test 200.", "About 200 test")),
        ({"classes": {"cat": 50, "dog": 50}}, {}, ("About 20 test images are too few",)),
        # The margin is what the test images can show.
        *(
            (
                {"classes": {"cat": images // 2, "dog": images // 2}},
                {"gate": {"metric": "accuracy", "margin": margin}},
                (),
            )
            for images, margin in ((90, 0.1), (900, 0.08), (20_000, 0.02))
        ),
        (
            {"classes": {"good": 780, "bad": 30}},
            {"gate": {"metric": "macro_recall", "margin": 0.1}},
            ("too few to show that a later model is not worse by 10.0%",),
        ),
    ],
)
def test_what_the_images_are_like_decides_what_is_proposed_and_why(changed, expected, reasons):
    found = proposed(**changed)
    for section, values in expected.items():
        assert values.items() <= found.entry[section].items()
    for reason in reasons:
        assert any(reason in each for each in found.reasons)


def test_few_images_are_seen_more_often_grey_ones_not_mirrored_and_equal_classes_not_weighted():
    kinds = ({"classes": {"cat": n, "dog": n}} for n in (50, 5000))
    few, many = (proposed(**changed).entry["train"] for changed in kinds)
    grey = proposed(is_grey=True).entry["train"]
    assert few["epochs"] > 100 > 40 >= many["epochs"]
    assert many["augment"]["flip"] and "flip" not in grey["augment"]
    assert "balance" not in many


def test_more_cores_train_on_larger_images():
    one, many, gpu = (
        proposed(threads=threads, classes={"cat": 4000, "dog": 4000}).entry
        for threads in (1, 2, GPU)
    )
    assert one["images"]["size"] < many["images"]["size"] < gpu["images"]["size"] == 224
    assert one["train"]["epochs"] == many["train"]["epochs"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"classes": {"cat": 50, "dog": 2}}, r"too few images, and each needs three: dog \(2\)"),
        ({"classes": {"cat": 50}}, "a single class"),
        ({"classes": {}}, "a single class"),
        ({"splits": {"test": 900}}, "mean the split test, and nothing is left to train on"),
    ],
)
def test_what_cannot_be_a_workload_is_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        proposed(**changed)


def test_a_pretrained_network_gets_images_of_its_size(tmp_path):
    backbone = find_backbone(str(write_clip(tmp_path / "clip", 32)), tmp_path)
    assert backbone == Backbone(str(tmp_path / "clip"), 32)
    entry = proposed(backbone=backbone).entry
    assert entry["model"] == {"family": "embedding_head", "pretrained": backbone.name}
    assert entry["images"] == {"size": 32}
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        find_backbone(str(tmp_path / "gone"), tmp_path)


def test_without_the_hub_there_is_no_pretrained_network(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert find_backbone(None, tmp_path) is None
    with pytest.raises(ConnectionError):
        find_backbone("owner/name", tmp_path)
