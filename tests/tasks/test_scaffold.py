"""What is seen of images before anybody has described them, and what is proposed for them then."""

from dataclasses import replace

import pytest
from PIL import Image

from retrain.params import load_workload, parse_yaml
from retrain.project import Project
from retrain.runs.preflight import check
from retrain.workload import Data
from tasks.scaffold import Backbone, Survey, find_backbone, propose, survey
from tasks.train.step import train
from tests.hub import write_clip
from tests.tasks.toy_data import encoded, png, write_files, write_parquet

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
        # Few images are seen more often, and grey ones not mirrored.
        ({"classes": {"cat": 50, "dog": 50}}, {"train": {"epochs": 200}}, ()),
        (
            {"classes": {"cat": 5000, "dog": 5000}},
            {"train": {"epochs": 13, "augment": {"shift": 6, "flip": True}, "balance": None}},
            (),
        ),
        (
            {"is_grey": True},
            {"images": {"channels": 1}, "train": {"augment": {"shift": 8}}},
            (),
        ),
        # More cores train on larger images.
        *(
            (
                {"classes": {"cat": 4000, "dog": 4000}, "threads": threads},
                {"images": {"size": size}, "train": {"epochs": 17, "batch_size": batch}},
                (),
            )
            for threads, size, batch in ((1, 96, 64), (2, 128, 64), (GPU, 224, 128))
        ),
        *(
            (
                {"threads": threads},
                {
                    "model": {
                        "family": "auto",
                        "config": {
                            "model_type": "resnet",
                            "layer_type": "basic",
                            "embedding_size": width,
                            "hidden_sizes": [width, 2 * width, 4 * width, 8 * width],
                            "depths": [depth] * 4,
                        },
                    }
                },
                (),
            )
            for threads, width, depth in ((LAPTOP, 32, 1), (GPU, 64, 2))
        ),
        *(
            (
                {"classes": {"cat": 500, "dog": dogs}, "backbone": Backbone("owner/name", 32)},
                {
                    "train": {"batch_size": batch, "epochs": 30, "lr": 0.001},
                    "model": {"family": "embedding_head", "pretrained": "owner/name"},
                    "images": {"size": 32, "channels": None},
                },
                (),
            )
            for dogs, batch in ((499, 16), (500, 64))
        ),
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
        assert {name: found.entry[section].get(name) for name in values} == values
    for reason in reasons:
        assert any(reason in each for each in found.reasons)


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


def test_a_pretrained_network_is_found_with_the_size_of_its_images(tmp_path):
    backbone = find_backbone(str(write_clip(tmp_path / "clip", 32)), tmp_path)
    assert backbone == Backbone(str(tmp_path / "clip"), 32)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        find_backbone(str(tmp_path / "gone"), tmp_path)


def test_without_the_hub_there_is_no_pretrained_network(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert find_backbone(None, tmp_path) is None
    with pytest.raises(ConnectionError):
        find_backbone("owner/name", tmp_path)


DATA = Data(path="photos")
PHOTO = encoded(Image.new("RGB", (40, 30), "red"), "JPEG")


def photos(counts, place="{label}/{number}.jpg"):
    return {
        place.format(label=label, number=number, group=f"{label[0]}{number % 4}"): PHOTO
        for label, count in counts.items()
        for number in range(count)
    }


def test_classes_sizes_and_colours_are_counted_and_few_images_decoded(tmp_path, monkeypatch):
    monkeypatch.setattr("tasks.scaffold.DECODED", 5)
    for split, counts in (("train", {"cat": 29, "dog": 10}), ("test", {"cat": 5, "dog": 4})):
        write_files(tmp_path / split, photos(counts) | {"cat/grey.png": png(1, 20, 10)})
    seen = survey(tmp_path, DATA)
    assert (seen.format, seen.classes) == ("folders", {"cat": 36, "dog": 14})
    assert (seen.images, seen.splits, seen.decoded) == (50, {"train": 40, "test": 10}, 5)
    assert (seen.side, seen.is_grey) == (30, False)
    assert seen.bytes == sum(path.stat().st_size for path in tmp_path.rglob("*.*"))


@pytest.mark.parametrize(
    ("place", "groups"),
    [
        ("{label}/{group}/{number}.jpg", 8),
        ("train/{label}/{group}/{number}.jpg", 8),
        ("{label}/{number}.jpg", 0),
        ("{label}/one/{number}.jpg", 0),  # a class in one group has images in one split only
    ],
)
def test_folders_below_the_class_folders_are_groups(tmp_path, place, groups):
    write_files(tmp_path, photos({"cat": 8, "dog": 8}, place))
    assert survey(tmp_path, DATA).groups == groups


def test_a_table_of_grey_images_is_looked_at(tmp_path):
    write_parquet(tmp_path / "pets.parquet", [png(n) for n in range(6)], ["cat", "dog"] * 3)
    seen = survey(tmp_path, DATA)
    assert (seen.format, seen.classes, seen.splits) == ("parquet", {"cat": 3, "dog": 3}, {})
    assert seen.is_grey


def test_what_does_not_decode_is_named_and_if_nothing_does_it_is_refused(tmp_path):
    write_files(tmp_path, photos({"cat": 3}) | {"dog/1.jpg": b"no image"})
    assert list(survey(tmp_path, DATA).undecodable) == ["dog/1.jpg"]
    write_files(tmp_path / "other", {"cat/1.jpg": b"no image", "dog/1.jpg": b""})
    with pytest.raises(ValueError, match=r"None of the images in .* decodes: cat/1\.jpg \(not an"):
        survey(tmp_path / "other", DATA)


@pytest.mark.parametrize("above", ["", "train/"])
def test_an_empty_class_folder_is_refused(tmp_path, above):
    write_files(tmp_path / above, photos({"cat": 3, "dog": 3}))
    (tmp_path / above / "fox").mkdir()
    with pytest.raises(ValueError, match=r"the folder .*/fox is empty\. Put the images"):
        survey(tmp_path, DATA)
