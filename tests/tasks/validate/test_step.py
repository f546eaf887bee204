"""What is accepted, what is set aside and what is rejected, and what is said of it."""

import hashlib
import logging
import shutil
from fnmatch import fnmatchcase

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from models.image import inspect
from tasks.data import raw_images
from tasks.data.image_facts import digest
from tasks.data.image_table import FINDINGS, RESULTS, SET_ASIDE, digest_of_split
from tasks.validate import step
from tasks.validate.step import say_near_duplicates
from tests.tasks.toy_data import encoded, parquet, png
from tests.tasks.validate.validating import (
    CHECKS,
    FILES,
    NAMES,
    TOLERANT,
    again,
    quarantine,
    rejection,
    run,
)  # fmt: skip


def test_good_data_is_accepted_and_described(tmp_path):
    facts, folder = run(tmp_path, FILES)
    assert facts == {
        "rows": {"train": 8, "val": 4, "test": 6},
        "quarantined": 0,
        "classes": {"cat": 9, "dog": 9},
        "near_duplicates": 0,
        "corrected": 0,
        "cut": [],
        "test_rows": digest_of_split(folder, "test"),
        "test_groups": 6,
        "test_units": {"cat": 3, "dog": 3},
    }
    rows = pq.read_table(folder / "images.parquet").to_pylist()
    assert [row["file"] for row in rows] == sorted(NAMES)
    data = FILES["test/cat/0.png"]
    first, *others = rows
    tie = first.pop("tie")
    assert tie not in [row["tie"] for row in others if row["pixels"] != first["pixels"]]
    grey = inspect(data)[1] / 255
    assert first == {
        "split": "test",
        "path": "test/cat/0.png",
        "label": "cat",
        "file": "test/cat/0.png",
        "row": 0,
        "width": 8,
        "height": 8,
        "mode": "L",
        "format": "PNG",
        "camera": None,
        "taken": None,
        "is_animated": False,
        "brightness": pytest.approx(grey.mean()),
        "contrast": pytest.approx(grey.std()),
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "pixels": digest(inspect(data)[1]),
    }
    assert len(pq.read_table(folder / "quarantined.parquet")) == 0


# 29 of 100 images are broken, because 0.29 * 100 is a little less than 29 in floating point.
BROKEN = (
    FILES
    | {f"train/dog/y{number}.png": png(200 + number) for number in range(71 - len(FILES))}
    | {f"train/cat/x{number}.png": b"broken" for number in range(29)}
)


@pytest.mark.parametrize(
    ("files", "fraction", "expected"),
    [
        # The splits that are cut out of others are said, unless they are all of them.
        (
            {name: data for name, data in FILES.items() if not name.startswith("val")},
            0.0,
            {"cut": ["val"]},
        ),
        (
            {f"{('cat', 'dog')[n % 2]}/{n}.png": png(n) for n in range(30)},
            0.0,
            {"cut": []},
        ),
        (BROKEN, 0.29, {"quarantined": 29}),  # the fraction itself is allowed
    ],
)
def test_data_is_accepted(tmp_path, files, fraction, expected):
    facts, _ = run(tmp_path, files, CHECKS.model_copy(update={"max_bad_fraction": fraction}))
    assert facts.items() >= expected.items()


def test_of_several_pictures_the_first_one_counts_and_it_is_said(tmp_path, caplog):
    frames = [Image.fromarray(np.full((8, 8), value, np.uint8)) for value in (50, 200)]
    gif = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    _, folder = run(tmp_path, FILES | {"train/cat/moving.gif": gif})
    images = pd.read_parquet(folder / "images.parquet").set_index("path")
    assert images["brightness"]["train/cat/moving.gif"] == pytest.approx(50 / 255)
    said = "of several pictures in an image the first one counts (1): train/cat/moving.gif"
    assert said in caplog.text


FEW = "- classes with fewer images"


@pytest.mark.parametrize(
    ("added", "checks", "lines"),
    [
        (
            {"val/dog/half.png": png(99)[:60], "val/dog/nothing.png": b""},
            {},
            [
                "- images that do not decode: 2 of 20: val val/dog/half.png (does *), "
                "val val/dog/nothing.png (does not decode: empty)",
                "In all 2 of 20 images are bad, 10.000%; checks.max_bad_fraction lets 0.000% be "
                "set aside.",
            ],
        ),
        (
            {"test/<b>it's \\n/1.png": png(99)},
            {},
            [
                "- images with an unknown label: 1 of 19: "
                "test test/<b>it's \\n/1.png (unknown label \"<b>it's \\\\n\")",
                "In all *",
            ],
        ),
        (
            {},
            {"labels": ("cat", "dog", "fox")},
            [
                f"{FEW} than checks.min_images_per_class 3: 1 of 3: fox has 0",
                *(
                    f"{FEW} in {split} than checks.min_images_per_class_and_split 1: "
                    "1 of 3: fox has 0"
                    for split in ("train", "val", "test")
                ),
            ],
        ),
        (
            {f"{split}/fox/1.png": png(97 + len(split)) for split in ("train", "val", "test")},
            {"min_images_per_class": 4},
            [f"{FEW} than checks.min_images_per_class 4: 1 of 3: fox has 3"],
        ),
        *(
            (
                {f"train/fox/{number}.png": png(100 + number) for number in range(3)},
                {"min_images_per_class_and_split": least},
                [
                    f"{FEW} in {split} than checks.min_images_per_class_and_split {bound}: "
                    "1 of 3: fox has 0"
                    for split, bound in bounds.items()
                ],
            )
            for least, bounds in ((0, {"test": 1}), (2, {"val": 2, "test": 2}))
        ),
        (
            {"train/cat/x.png": png(99, 20, 7), "train/cat/y.png": png(98, 8, 41)},
            {"max_side": 40},
            [
                "- images with a side below checks.min_side 8: 1 of 20: train train/cat/x.png (20 "
                "x 7 pixels is too small)",
                "- images with a side above checks.max_side 40: 1 of 20: train train/cat/y.png (8 "
                "x 41 pixels is too large)",
                "In all *",
            ],
        ),
        (
            {
                "train/cat/x.png": FILES["test/cat/1.png"],
                "train/dog/y.bmp": again(FILES["val/dog/0.png"], "BMP"),
                "val/cat/z.png": FILES["test/cat/1.png"],
            },
            {},
            [
                "- images that a split held out from theirs has too: 3 of 21: "
                "train train/cat/x.png (the same image is in test), "
                "train train/dog/y.bmp (the same image is in val), "
                "val val/cat/z.png (the same image is in test)",
                "In all *",
            ],
        ),
        (
            {
                "train/dog/x.png": FILES["train/cat/1.png"],
                "val/cat/y.bmp": again(FILES["val/dog/0.png"], "BMP"),
            },
            {},
            [
                "- images that another class has too: 4 of 20: "
                "train train/cat/1.png (the same image is labelled 'dog'), "
                "train train/dog/x.png (the same image is labelled 'cat'), "
                "val val/cat/y.bmp (the same image is labelled 'dog'), "
                "val val/dog/0.png (the same image is labelled 'cat')",
                "In all *",
            ],
        ),
        (
            {f"test/dog/{number}.png": b"broken" for number in range(3)},
            {"max_bad_fraction": 0.5},
            [
                "- images that do not decode: 3 of 18: *",
                f"{FEW} in test than checks.min_images_per_class_and_split 1: 1 of 2: dog has 0",
                "In all *",
            ],
        ),
        (
            dict.fromkeys(name for name in NAMES if "/dog/" in name),  # are left out
            {},
            ["- a single class, 'cat', and a classifier needs at least two: *"],
        ),
        (
            dict.fromkeys(NAMES, b"broken"),
            {},
            [
                "- images that do not decode: 18 of 18: *, and 13 more",
                "- splits without an image: 3 of 3: train, val, test",
                "In all *",
            ],
        ),
        (
            {
                "train/cat/x.png": b"broken",
                "train/lost.png": png(98),
                "train/cat/tiny.png": png(97, 2, 2),
                "test/dgo/1.png": png(96),
                "val/cat/y.png": FILES["test/cat/1.png"],
                "train/fox/1.png": png(95),
            },
            {},
            [
                "- images that do not decode: *",
                "- images without a label: *",
                "- images with an unknown label: *",
                "- images with a side below checks.min_side 8: *",
                "- images that a split held out from theirs has too: *",
                f"{FEW} than checks.min_images_per_class 3: *",
                f"{FEW} in val than checks.min_images_per_class_and_split 1: *",
                f"{FEW} in test than checks.min_images_per_class_and_split 1: *",
                "In all 5 of 24 images are bad, 20.833%; *",
            ],
        ),
    ],
)
def test_each_fault_has_a_line_with_the_first_that_have_it(tmp_path, added, checks, lines):
    files = {name: data for name, data in (FILES | added).items() if data is not None}
    found = rejection(tmp_path, files, CHECKS.model_copy(update=checks))
    assert len(found) == len(lines), found
    assert all(map(fnmatchcase, found, lines)), found


def test_bad_images_up_to_the_fraction_are_set_aside_with_the_reasons(tmp_path):
    files = FILES | {
        "train/cat/x.png": b"broken",
        "train/tiny.png": png(97, 2, 2),
        "train/dog/y.png": FILES["val/dog/1.png"],
    }
    facts, folder = run(tmp_path, files, CHECKS.model_copy(update={"max_bad_fraction": 3 / 21}))
    assert facts["rows"] == {"train": 8, "val": 4, "test": 6}
    assert (facts["quarantined"], facts["classes"]) == (3, {"cat": 9, "dog": 9})
    reasons = quarantine(folder)
    assert reasons.pop("train/cat/x.png").startswith("does not decode: not an image")
    assert reasons == {
        "train/dog/y.png": "the same image is in val",
        "train/tiny.png": "no label; 2 x 2 pixels is too small",
    }
    assert "images without a label" in (folder / "report" / RESULTS).read_text()
    accepted, bad = (pq.read_table(folder / name) for name in ("images.parquet", SET_ASIDE))
    assert sorted(accepted["path"].to_pylist()) == sorted(NAMES)
    # They have the columns of the accepted ones, whole numbers and all.
    assert list(bad.schema) == [*accepted.schema, pa.field("reason", pa.string())]
    assert bad["label"].sort().to_pylist() == ["cat", "dog", None]


def test_a_rejection_replaces_what_the_last_one_left(tmp_path):
    rejection(tmp_path, FILES | {"train/lost.png": png(99)})
    shutil.rmtree(tmp_path / "validate")
    rejection(tmp_path, {"train/cat/x.png": b"broken"})  # beside those
    assert len(quarantine(tmp_path / ".retrain/rejected/digits")) == 2
    assert not (tmp_path / "validate-scratch").exists()


def test_images_that_look_like_one_held_out_are_told_if_there_are_any(caplog):
    with caplog.at_level(logging.INFO, "retrain"):
        for count in (0, 1234):
            say_near_duplicates({"data": {"near_duplicates": count}})
    assert [message.partition(" look")[0] for message in caplog.messages] == ["1,234 images"]


OF_PARQUET = {
    f"{split}.parquet": parquet(
        {
            "image": [FILES[name] for name in NAMES if name.startswith(split)],
            "label": [name.split("/")[1] for name in NAMES if name.startswith(split)],
        }
    )
    for split in ("train", "val", "test")
}
CORRECTED = ("test/cat/1.png", "train/cat/0.png")


@pytest.mark.parametrize(("kind", "files"), [("folders", FILES), ("parquet", OF_PARQUET)])
def test_corrected_labels_count_whatever_the_format_is(tmp_path, kind, files, caplog):
    digests = [hashlib.sha256(FILES[name]).hexdigest() for name in (*CORRECTED, "val/dog/0.png")]
    lines = ["sha256,label,by,at", *(f"{each},dog,ann,2026-01-01" for each in digests)]
    corrections = {"corrections.csv": "\n".join(lines).encode()}
    facts, folder = run(tmp_path, files | corrections, kind=kind)
    assert (facts["corrected"], facts["classes"]) == (2, {"cat": 7, "dog": 11})
    assert "2 labels are corrected, by corrections.csv" in caplog.text
    assert pd.read_parquet(folder / "images.parquet")["label"].tolist() == [
        "dog" if name in CORRECTED else name.split("/")[1] for name in sorted(NAMES)
    ]
    told = pd.read_csv(folder / "report/corrected.csv")[["sha256", "before", "label"]]
    assert told.to_numpy().tolist() == [[each, "cat", "dog"] for each in digests[:2]]


def test_near_duplicates_across_splits_are_listed_or_bad(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (len(NAMES), 6, 6, 3), np.uint8)
    pictures = {
        name: Image.fromarray(each).resize((200, 200), Image.Resampling.BICUBIC)
        for name, each in zip(NAMES, pixels, strict=True)
    }
    files = {name: encoded(picture, "JPEG", quality=95) for name, picture in pictures.items()}
    small = pictures["test/dog/1.png"].resize((48, 48))
    files["train/dog/again.jpg"] = encoded(small, "JPEG", quality=70)
    files["val/dog/again.jpg"] = encoded(pictures["val/dog/1.png"], "JPEG", quality=70)
    files["train/cat/same.png"] = files["test/cat/1.png"]  # is bad, and no more than the same
    facts, folder = run(tmp_path, files, TOLERANT)
    assert (facts["near_duplicates"], facts["quarantined"]) == (1, 1)
    assert (folder / "report/near_duplicates.csv").read_text().splitlines() == [
        "split,path,near_duplicate_split,near_duplicate_path",
        "train,train/dog/again.jpg,test,test/dog/1.png",
    ]
    fault = "images that look like one of a split held out from theirs"
    assert fault in (folder / "report" / RESULTS).read_text()
    shutil.rmtree(folder)
    _, line, _ = rejection(tmp_path, {}, CHECKS.model_copy(update={"near_duplicates": "bad"}))
    assert line == f"- {fault}: 1 of 21: train train/dog/again.jpg (it looks like one in test)"


# A copy under another name and in another class's folder, other bytes of a known image, and one
# that does not decode, which is looked at again each time.
CHANGED = {
    "train/cat/new.png": png(77),
    "train/dog/other.bmp": again(FILES["train/dog/0.png"], "BMP"),
    "train/dog/broken.png": b"broken",
}


def test_only_new_images_are_decoded_and_nothing_else_is_different(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(raw_images, "WORTH_ROWS", 3)
    decoded = []

    def noted(data, *others):
        decoded.append(data)
        return inspect(data, *others)

    monkeypatch.setattr(step, "inspect", noted)
    moved = {name.replace("cat/0", "cat/moved"): data for name, data in FILES.items()} | CHANGED
    _, earlier = run(tmp_path / "first", FILES | {"train/dog/broken.png": b"broken"}, TOLERANT)
    second = run(tmp_path / "second", moved, TOLERANT, earlier=earlier)
    anew = run(tmp_path / "anew", moved, TOLERANT)
    assert second[0] == anew[0]
    for file in ("images.parquet", SET_ASIDE, FINDINGS):
        assert (second[1] / file).read_bytes() == (anew[1] / file).read_bytes()
    first, everything = len(FILES) + 1, len(FILES) + 3
    assert len(decoded) == first + 3 + everything
    assert {*decoded[first : first + 3]} == {*CHANGED.values()}
    assert f"validate: {everything - 3} of {everything} images were known" in caplog.text


def test_a_run_that_was_killed_goes_on_with_the_units_that_are_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(raw_images, "WORTH_ROWS", 3)
    written = (run(tmp_path, FILES)[1] / "images.parquet").read_bytes()
    lost, *kept = sorted((tmp_path / "validate-scratch/inspected").glob("*.parquet"))
    before = [path.stat().st_mtime_ns for path in kept]
    assert len(kept) == 5
    lost.unlink()
    shutil.rmtree(tmp_path / "validate")
    assert (run(tmp_path, FILES)[1] / "images.parquet").read_bytes() == written
    assert lost.exists()
    assert [path.stat().st_mtime_ns for path in kept] == before
