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
from retrain.outputs import list_files
from tasks.compute import ray_data
from tasks.data import raw_images
from tasks.data.image_facts import digest
from tasks.data.image_table import RESULTS, SET_ASIDE, digest_of_split
from tasks.validate import step
from tasks.validate.step import say_near_duplicates
from tests.tasks.toy_data import encoded, png, write_parquet
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
    rows = pq.read_table(folder / "images.parquet")
    assert rows.column_names == [
        "split",
        "path",
        "label",
        "file",
        "row",
        "width",
        "height",
        "mode",
        "format",
        "camera",
        "taken",
        "is_animated",
        "brightness",
        "contrast",
        "bytes",
        "sha256",
        "pixels",
        "tie",
    ]
    order = [(row["file"], row["row"]) for row in rows.to_pylist()]
    assert order == sorted(order)
    data = FILES["test/cat/0.png"]
    first, *others = rows.to_pylist()
    tie = first.pop("tie")
    assert tie not in [row["tie"] for row in others if row["pixels"] != first["pixels"]]
    light = {name: first.pop(name) for name in ("brightness", "contrast")}
    grey = inspect(data)[1] / 255
    assert light == pytest.approx({"brightness": grey.mean(), "contrast": grey.std()})
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
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "pixels": digest(inspect(data)[1]),
    }
    assert len(pq.read_table(folder / "quarantined.parquet")) == 0


def test_the_same_pixels_are_described_alike_in_parquet_and_in_another_encoding(tmp_path):
    (tmp_path / "folders").mkdir()
    _, folders = run(tmp_path / "folders", FILES)
    for split in ("train", "val", "test"):
        names = sorted(name for name in NAMES if name.startswith(split))
        rows = [{"bytes": again(FILES[name], "BMP"), "path": name} for name in names]
        labels = [name.split("/")[1] for name in names]
        write_parquet(tmp_path / f"data/{split}.parquet", rows, labels)
    _, parquet = run(tmp_path, {}, kind="parquet")
    ours, theirs = (
        pd.read_parquet(folder / "images.parquet").sort_values("path", ignore_index=True)
        for folder in (parquet, folders)
    )
    assert not {*ours["sha256"]} & {*theirs["sha256"]}
    alike = ["split", "path", "label", "width", "height", "mode", "pixels"]
    pd.testing.assert_frame_equal(ours[alike], theirs[alike])


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
            {"test/dgo/1.png": png(99)},
            {},
            [
                "- images with an unknown label: 1 of 19: "
                "test test/dgo/1.png (unknown label 'dgo')",
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
    found = rejection(tmp_path, FILES | added, CHECKS.model_copy(update=checks))
    assert len(found) == len(lines), found
    assert all(map(fnmatchcase, found, lines)), found


def test_a_single_class_is_refused(tmp_path):
    one = {name: data for name, data in FILES.items() if "/cat/" in name}
    [line] = rejection(tmp_path, one)
    assert line.startswith("- a single class, 'cat', and a classifier needs at least two")


def test_bad_images_up_to_the_fraction_are_set_aside_with_the_reasons(tmp_path):
    files = FILES | {
        "train/cat/x.png": b"broken",
        "train/tiny.png": png(97, 2, 2),
        "train/dog/y.png": FILES["val/dog/1.png"],
    }
    facts, folder = run(tmp_path, files, CHECKS.model_copy(update={"max_bad_fraction": 3 / 21}))
    assert facts["rows"] == {"train": 8, "val": 4, "test": 6}
    assert (facts["quarantined"], facts["classes"]) == (3, {"cat": 9, "dog": 9})
    set_aside = pq.read_table(folder / SET_ASIDE)["label"].to_pylist()
    assert sorted(filter(None, set_aside)) == ["cat", "dog"]
    reasons = quarantine(folder)
    assert reasons.pop("train/cat/x.png").startswith("does not decode: not an image")
    assert reasons == {
        "train/dog/y.png": "the same image is in val",
        "train/tiny.png": "no label; 2 x 2 pixels is too small",
    }
    accepted = pd.read_parquet(folder / "images.parquet")
    assert not set(accepted["path"]) & {"train/cat/x.png", "train/tiny.png", "train/dog/y.png"}
    assert "images without a label" in (folder / "report" / RESULTS).read_text()
    # It has the columns of the accepted ones, whole numbers and all.
    ours, theirs = (
        pq.read_schema(folder / f"{name}.parquet") for name in ("images", "quarantined")
    )
    assert list(theirs) == [*ours, pa.field("reason", pa.string())]


def test_the_fraction_itself_is_allowed(tmp_path):
    # 29 of 100, because 0.29 * 100 is a little less than 29 in floating point.
    files = {f"train/dog/y{number}.png": png(200 + number) for number in range(71 - len(FILES))}
    files |= FILES | {f"train/cat/x{number}.png": b"broken" for number in range(29)}
    facts, _ = run(tmp_path, files, CHECKS.model_copy(update={"max_bad_fraction": 0.29}))
    assert facts["quarantined"] == 29


def test_a_rejection_replaces_what_the_last_one_left(tmp_path):
    files = FILES | {"train/lost.png": png(99)}
    rejection(tmp_path, files)
    (tmp_path / "validate").rename(tmp_path / "before")
    rejection(tmp_path, files | {"train/cat/x.png": b"broken"})
    kept = tmp_path / ".retrain/rejected/digits"
    assert len(pd.read_parquet(kept / "quarantined.parquet")) == 2
    assert not (tmp_path / "validate-scratch").exists()


def test_labels_with_html_and_quotes_are_named_as_they_are(tmp_path):
    tag, quoted = "<img src=x onerror=alert(1)>", "<b>it's \\n"
    files = {name.replace("/dog/", f"/{tag}/"): data for name, data in FILES.items()}
    files |= {f"test/<i>{tag}/1.png": png(98), f"train/{quoted}/1.png": png(99)}
    lines = rejection(tmp_path, files, CHECKS.model_copy(update={"labels": ("<u>", "cat", tag)}))
    assert f"unknown label '<i>{tag}'" in lines[0]
    assert f"unknown label {quoted!r}" in lines[0]


def test_images_that_look_like_one_held_out_are_told_if_there_are_any(caplog):
    with caplog.at_level(logging.INFO, "retrain"):
        for count in (0, 1234):
            say_near_duplicates({"data": {"near_duplicates": count}})
    assert [message.partition(" look")[0] for message in caplog.messages] == ["1,234 images"]


@pytest.mark.parametrize("kind", ["folders", "parquet"])
def test_corrected_labels_count_whatever_the_format_is(tmp_path, kind, caplog):
    labels = {name: name.split("/")[1] for name in NAMES}
    if kind == "parquet":
        for split in ("train", "val", "test"):
            names = [name for name in NAMES if name.startswith(split)]
            named = [{"bytes": FILES[name], "path": name} for name in names]
            write_parquet(tmp_path / f"data/{split}.parquet", named, [labels[n] for n in names])
    files = {} if kind == "parquet" else dict(FILES)
    corrected = ("train/cat/0.png", "test/cat/1.png")
    lines = [f"{hashlib.sha256(FILES[name]).hexdigest()},dog,ann,2026-01-01" for name in corrected]
    lines.append(f"{hashlib.sha256(FILES['val/dog/0.png']).hexdigest()},dog,ann,2026-01-01")
    files["corrections.csv"] = "\n".join(["sha256,label,by,at", *lines]).encode()
    facts, folder = run(tmp_path, files, kind=kind)
    assert (facts["corrected"], facts["classes"]) == (2, {"cat": 7, "dog": 11})
    assert "2 labels are corrected, by corrections.csv" in caplog.text
    images = pd.read_parquet(folder / "images.parquet").set_index("path")["label"]
    assert dict(images) == labels | dict.fromkeys(corrected, "dog")
    told = pd.read_csv(folder / "report/corrected.csv").set_index("path")
    assert told[["before", "label"]].to_dict("index") == {
        name: {"before": "cat", "label": "dog"} for name in corrected
    }


def photos():
    """A smooth picture of its own for each name."""
    pixels = np.random.default_rng(0).integers(0, 256, (len(NAMES), 6, 6, 3), np.uint8)
    return {
        name: Image.fromarray(picture).resize((200, 200), Image.Resampling.BICUBIC)
        for name, picture in zip(NAMES, pixels, strict=True)
    }


@pytest.mark.parametrize("near_duplicates", ["report", "bad"])
def test_near_duplicates_across_splits_are_listed_or_bad(tmp_path, near_duplicates):
    pictures = photos()
    files = {name: encoded(picture, "JPEG", quality=95) for name, picture in pictures.items()}
    small = pictures["test/dog/1.png"].resize((48, 48))
    files["train/dog/again.jpg"] = encoded(small, "JPEG", quality=70)
    files["val/dog/again.jpg"] = encoded(pictures["val/dog/1.png"], "JPEG", quality=70)
    checks = CHECKS.model_copy(update={"near_duplicates": near_duplicates})
    if near_duplicates == "bad":
        [line, _] = rejection(tmp_path, files, checks)
        assert line == (
            "- images that look like one of a split held out from theirs: 1 of 20: "
            "train train/dog/again.jpg (it looks like one in test)"
        )
        return
    facts, folder = run(tmp_path, files, checks)
    assert facts["near_duplicates"] == 1
    assert (folder / "report/near_duplicates.csv").read_text().splitlines() == [
        "split,path,near_duplicate_split,near_duplicate_path",
        "train,train/dog/again.jpg,test,test/dog/1.png",
    ]
    checked = (folder / "report" / RESULTS).read_text()
    assert "images that look like one of a split held out from theirs" in checked


# A copy under another name and in another class's folder, other bytes of a known image, and one
# that does not decode, which is looked at again each time.
CHANGED = {
    "train/cat/new.png": png(77),
    "train/dog/other.bmp": again(FILES["train/dog/0.png"], "BMP"),
    "train/dog/broken.png": b"broken",
}


def content(folder):
    """The files of an output, but for what Great Expectations says of times."""
    return [file for file in list_files(folder) if not file["path"].startswith("report/")]


def two_weeks(tmp_path, monkeypatch):
    """The folder of the second week from the first, and that from nothing."""
    monkeypatch.setattr(raw_images, "WORTH_ROWS", 3)
    places = [tmp_path / name for name in ("first", "second", "anew")]
    _, earlier = run(places[0], FILES | {"train/dog/broken.png": b"broken"}, TOLERANT)
    moved = dict(FILES)
    moved["train/cat/moved.png"] = moved.pop("train/cat/0.png")
    second, anew = (
        run(place, moved | CHANGED, TOLERANT, earlier=each)
        for place, each in zip(places[1:], (earlier, None), strict=True)
    )
    assert second[0] == anew[0]
    return second[1], anew[1]


def test_only_new_images_are_decoded_and_nothing_else_is_different(tmp_path, monkeypatch, caplog):
    decoded = []

    def noted(data, *others):
        decoded.append(data)
        return inspect(data, *others)

    monkeypatch.setattr(step, "inspect", noted)
    second, anew = two_weeks(tmp_path, monkeypatch)
    assert content(second) == content(anew)
    everything = len(FILES) + 3
    assert len(decoded) == len(FILES) + 1 + 3 + everything
    assert set(decoded[len(FILES) + 1 :][:3]) == set(CHANGED.values())
    assert f"validate: {everything - 3} of {everything} images were known" in caplog.text


@pytest.mark.slow
def test_the_machines_of_ray_take_them_too(tmp_path, monkeypatch, caplog, ray_session):
    monkeypatch.setattr(ray_data, "START", 0.0)
    second, anew = two_weeks(tmp_path, monkeypatch)
    assert content(second) == content(anew)
    assert "18 of 21 images were known" in caplog.text


def test_a_run_that_was_killed_goes_on_with_the_units_that_are_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(raw_images, "WORTH_ROWS", 3)
    written = (run(tmp_path, FILES)[1] / "images.parquet").read_bytes()
    lost, *kept = sorted((tmp_path / "validate-scratch/inspected").glob("*.parquet"))
    assert len(kept) == 5
    before = [path.stat().st_mtime_ns for path in kept]
    lost.unlink()
    shutil.rmtree(tmp_path / "validate")
    assert (run(tmp_path, FILES)[1] / "images.parquet").read_bytes() == written
    assert lost.exists()
    assert [path.stat().st_mtime_ns for path in kept] == before
