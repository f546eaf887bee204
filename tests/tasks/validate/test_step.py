import datetime
import hashlib
import html
import io
import shutil

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from models.image import inspect
from retrain.errors import RejectedDataError
from retrain.workload import Checks, Data, Split
from tasks.data.image_table import SET_ASIDE, digest_of_split, images_per_class
from tasks.data.pixels import digest
from tasks.validate import suite
from tasks.validate.step import validate
from tests.tasks.toy_data import png, pulled, workspace, write_files, write_parquet

DATA = Data(path="data")
CHECKS = Checks(min_images_per_class=3)
TOLERANT = Checks(min_images_per_class=3, max_bad_fraction=0.5)

pytestmark = pytest.mark.usefixtures("ray_session")


@pytest.fixture
def files():
    """Two classes in three splits: 4, 2 and 3 of each; to be changed by a test."""
    names = [
        f"{split}/{label}/{number}.png"
        for split, count in {"train": 4, "val": 2, "test": 3}.items()
        for label in ("cat", "dog")
        for number in range(count)
    ]
    return {name: png(number) for number, name in enumerate(names)}


def run(tmp_path, files, checks=CHECKS):
    write_files(tmp_path / "data", files)
    space = workspace(tmp_path, "validate")
    return validate(DATA, checks, pulled(tmp_path, "folders"), space), space.folder


def rejection(tmp_path, files, checks=CHECKS):
    """The lines of the error, without the first and the last."""
    with pytest.raises(RejectedDataError) as caught:
        run(tmp_path, files, checks)
    first, *lines, last = str(caught.value).split("\n")
    assert first == "The data is rejected:"
    if any(line.startswith("- classes with fewer") for line in lines):
        lines.remove(suite.REMEDY)
    kept = tmp_path / ".retrain/rejected/digits"
    assert last == f"All of them: {kept}/quarantined.parquet and {kept}/data_docs/index.html"
    assert (kept / "quarantined.parquet").is_file()
    assert (kept / "data_docs/index.html").is_file()
    return lines


def quarantine(folder):
    """The reason of each image that was set aside, by its path."""
    rows = pd.read_parquet(folder / "quarantined.parquet")
    return dict(zip(rows["path"], rows["reason"], strict=True))


def test_good_data_is_accepted_and_described(tmp_path, files):
    facts, folder = run(tmp_path, files)
    assert facts == {
        "rows": {"train": 8, "val": 4, "test": 6},
        "quarantined": 0,
        "classes": {"cat": 9, "dog": 9},
        "near_duplicates": 0,
        "test_rows": digest_of_split(folder, "test"),
    }
    rows = pq.read_table(folder / "images.parquet")
    assert rows.column_names == [
        *("unit", "split", "path", "label", "file", "row"),
        *("width", "height", "mode", "bytes", "sha256", "pixels"),
    ]
    order = [(row["unit"], row["file"], row["row"]) for row in rows.to_pylist()]
    assert order == sorted(order)
    data = files["test/cat/0.png"]
    assert rows.to_pylist()[0] == {
        "unit": 0,
        "split": "test",
        "path": "test/cat/0.png",
        "label": "cat",
        "file": "test/cat/0.png",
        "row": 0,
        "width": 8,
        "height": 8,
        "mode": "L",
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "pixels": digest(inspect(data)[1]),
    }
    assert len(pq.read_table(folder / "quarantined.parquet")) == 0
    assert (folder / "report/data_docs/index.html").is_file()


def test_the_same_data_gives_the_same_bytes(tmp_path, files):
    files["train/cat/broken.png"] = b"no image"
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        run(tmp_path / name, files, TOLERANT)
    for name in ("images.parquet", "quarantined.parquet"):
        one, two = (tmp_path / run_ / "validate" / name for run_ in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()


def test_parquet_and_folders_are_described_alike(tmp_path, files):
    (tmp_path / "folders").mkdir()
    _, folders = run(tmp_path / "folders", files)
    for split in ("train", "val", "test"):
        names = sorted(name for name in files if name.startswith(split))
        rows = [{"bytes": files[name], "path": name} for name in names]
        labels = [["cat", "dog"].index(name.split("/")[1]) for name in names]
        write_parquet(
            tmp_path / f"data/{split}.parquet", rows, labels, names=["cat", "dog"], row_group_size=3
        )
    space = workspace(tmp_path, "validate")
    validate(DATA, CHECKS, pulled(tmp_path, "parquet"), space)
    ours, theirs = (
        pd.read_parquet(folder / "images.parquet").drop(columns=["file", "row"])
        for folder in (space.folder, folders)
    )
    pd.testing.assert_frame_equal(ours, theirs)


def test_a_corrupt_image_is_named_in_the_error(tmp_path, files):
    files["val/dog/half.png"] = png(99)[:60]
    files["val/dog/nothing.png"] = b""
    lines = rejection(tmp_path, files)
    assert lines[0].startswith("- images that do not decode: 2 of 20: val val/dog/half.png (does ")
    assert lines[0].endswith("val val/dog/nothing.png (does not decode: empty)")
    assert lines[1] == (
        "In all 2 of 20 images are bad, 10.000%; checks.max_bad_fraction lets 0.000% be set aside."
    )
    assert len(lines) == 2


def test_a_label_that_the_training_split_lacks_is_named_in_the_error(tmp_path, files):
    files["test/dgo/1.png"] = png(99)
    [line, _] = rejection(tmp_path, files)
    assert line == (
        "- images with an unknown label: 1 of 19: test test/dgo/1.png (unknown label 'dgo')"
    )


def test_a_listed_class_without_images_is_named_in_the_error(tmp_path, files):
    checks = CHECKS.model_copy(update={"labels": ("cat", "dog", "fox")})
    assert rejection(tmp_path, files, checks) == [
        "- classes with fewer images than checks.min_images_per_class 3: 1 of 3: fox has 0",
        *(
            f"- classes with fewer images in {split} than checks.min_images_per_class_and_split 1: "
            "1 of 3: fox has 0"
            for split in ("train", "val", "test")
        ),
    ]


def test_a_class_with_too_few_images_is_named_in_the_error(tmp_path, files):
    files |= {f"{split}/fox/1.png": png(97 + len(split)) for split in ("train", "val", "test")}
    checks = CHECKS.model_copy(update={"min_images_per_class": 4})
    assert rejection(tmp_path, files, checks) == [
        "- classes with fewer images than checks.min_images_per_class 4: 1 of 3: fox has 3"
    ]


@pytest.mark.parametrize(
    ("least", "named"), [(0, {"test"}), (1, {"test", "val"}), (2, {"test", "val"})]
)
def test_a_class_with_too_few_images_in_a_split_is_named_in_the_error(
    tmp_path, files, least, named
):
    files |= {f"train/fox/{number}.png": png(100 + number) for number in range(3)}
    checks = CHECKS.model_copy(update={"min_images_per_class_and_split": least})
    assert rejection(tmp_path, files, checks) == [
        f"- classes with fewer images in {split} than checks.min_images_per_class_and_split "
        f"{max(least, int(split != 'val'))}: 1 of 3: fox has 0"
        for split in ("val", "test")
        if split in named
    ]


@pytest.mark.parametrize(
    ("side", "said"),
    [
        ((20, 7), "below checks.min_side 8: 1 of 19: train train/cat/x.png (20 x 7 pixels is too"),
        ((8, 41), "above checks.max_side 40: 1 of 19: train train/cat/x.png (8 x 41 pixels is too"),
    ],
)
def test_an_image_of_the_wrong_size_is_named_in_the_error(tmp_path, files, side, said):
    files["train/cat/x.png"] = png(99, *side)
    checks = CHECKS.model_copy(update={"max_side": 40})
    [line, _] = rejection(tmp_path, files, checks)
    assert line.startswith(f"- images with a side {said}")


def test_an_image_that_splits_share_is_named_in_the_error(tmp_path, files):
    files["train/cat/x.png"] = files["test/cat/1.png"]
    buffer = io.BytesIO()
    Image.open(io.BytesIO(files["val/dog/0.png"])).convert("RGB").save(buffer, "BMP")
    files["train/dog/y.bmp"] = buffer.getvalue()  # the same pixels in other bytes
    [line, _] = rejection(tmp_path, files)
    assert line == (
        "- images that a split held out from theirs has too: 2 of 20: "
        "train train/cat/x.png (the same image is in test), "
        "train train/dog/y.bmp (the same image is in val)"
    )


def test_an_empty_split_is_named_in_the_error(tmp_path):
    files = {f"{label}/{n}.png": png(100 * n + ord(label)) for label in "ab" for n in range(5)}
    write_files(tmp_path / "data", files)
    data = Data(path="data", split=Split(val=0.0, test=0.0))
    with pytest.raises(RejectedDataError, match="splits without an image: 2 of 3: val, test"):
        validate(data, CHECKS, pulled(tmp_path, "folders"), workspace(tmp_path, "validate"))


def divided(tmp_path, files, kind="folders", **data):
    """The accepted images, by path, of data without splits."""
    write_files(tmp_path / "data", files)
    space = workspace(tmp_path, "validate")
    validate(Data(path="data", **data), TOLERANT, pulled(tmp_path, kind), space)
    return pd.read_parquet(space.folder / "images.parquet").set_index("path")


def photos(count=60):
    """Images of two classes and 12 patients, whose folders are below those of the classes."""
    return {f"{('cat', 'dog')[n % 2]}/p{n % 12}/day {n}.png": png(n) for n in range(count)}


@pytest.mark.parametrize("group", [r"^[^/]+/([^/]+)/", "patient"])
def test_a_group_found_in_the_names_or_beside_the_images_is_in_one_split(tmp_path, group):
    files = photos()
    for label in ("cat", "dog"):
        names = [name.partition("/")[2] for name in files if name.startswith(label)]
        rows = ["file_name,patient", *(f"{name},{name.split('/')[0]}" for name in names)]
        files[f"{label}/metadata.csv"] = "\n".join(rows).encode()
    images = divided(tmp_path, files, group=group)
    patients = images.index.str.split("/").str[1]
    assert (images.groupby(patients)["split"].nunique() == 1).all()
    assert {*images["split"]} == {"train", "val", "test"}


def test_a_column_of_the_parquet_files_says_groups_and_times(tmp_path):
    (tmp_path / "data").mkdir()
    for part in range(3):
        numbers = range(20 * part, 20 * part + 20)
        table = {
            "image": [png(n) for n in numbers],
            "label": ["cat", "dog"] * 10,
            "patient": [n % 12 for n in numbers],
            "day": [datetime.date(2026, 1, 1) + datetime.timedelta(n) for n in numbers],
        }
        pq.write_table(pa.table(table), tmp_path / f"data/{part}.parquet", row_group_size=7)
    (tmp_path / "time").mkdir()
    by_group = divided(tmp_path, {}, "parquet", group="patient")
    assert (by_group.groupby(np.arange(60) % 12)["split"].nunique() == 1).all()
    shutil.rmtree(tmp_path / "validate")
    shutil.rmtree(tmp_path / "validate-scratch")
    by_time = divided(tmp_path, {}, "parquet", time="day")
    assert list(by_time["split"]) == ["train"] * 42 + ["val"] * 6 + ["test"] * 12


def test_names_say_times_and_numbers_in_them_count_as_such(tmp_path):
    images = divided(tmp_path, photos(), time=r"day (\d+)\.png")
    days = images.index.str.extract(r"day (\d+)", expand=False).astype(int)
    assert list(images["split"].to_numpy()[np.argsort(days)]) == (
        ["train"] * 42 + ["val"] * 6 + ["test"] * 12
    )


def test_exif_says_times_and_images_without_one_are_set_aside(tmp_path):
    files = {}
    for n in range(40):
        exif = Image.Exif()
        if n < 38:
            exif.get_ifd(0x8769)[36867] = f"2026:01:01 10:{n:02}:00"
        else:
            exif[306] = f"2026:01:01 10:{n:02}:00"
        buffer = io.BytesIO()
        Image.fromarray(np.full((8, 8), 5 * n, np.uint8)).save(buffer, "JPEG", exif=exif)
        files[f"{('cat', 'dog')[n % 2]}/{n:02}.jpg"] = buffer.getvalue()
    files["cat/none.png"] = png(0)
    exif = Image.Exif()
    exif[306] = "0000:00:00 00:00:00"
    buffer = io.BytesIO()
    Image.fromarray(np.full((8, 8), 7, np.uint8)).save(buffer, "JPEG", exif=exif)
    files["dog/never set.jpg"] = buffer.getvalue()
    images = divided(tmp_path, files, time="exif").sort_index(key=lambda path: path.str[4:])
    assert list(images["split"]) == ["train"] * 28 + ["val"] * 4 + ["test"] * 8
    assert quarantine(tmp_path / "validate") == dict.fromkeys(
        ("cat/none.png", "dog/never set.jpg"), "no time"
    )


def test_a_group_that_the_datas_own_splits_divide_is_named_in_the_error(tmp_path, files):
    files |= {"train/cat/p1/1.png": png(98), "test/dog/p1/2.png": png(99)}
    write_files(tmp_path / "data", files)
    data = Data(path="data", group="^[^/]+/([^/]+)/")
    with pytest.raises(RejectedDataError) as caught:
        validate(data, CHECKS, pulled(tmp_path, "folders"), workspace(tmp_path, "validate"))
    assert str(caught.value).split("\n")[1] == (
        "- images of a group that a split held out from theirs has too: 1 of 20: "
        "train train/cat/p1/1.png (one of its data.group is in test)"
    )


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("group", r"(nothing)\.tif", r"data.group: no image has a \(nothing\)"),
        ("group", "patient", "data.group: patient is neither near_duplicates nor a regular expr"),
        ("time", "day", "data.time: day is neither exif nor a regular expression with a group in"),
    ],
)
def test_groups_and_times_that_there_are_not_are_refused(tmp_path, key, value, reason):
    with pytest.raises(ValueError, match=reason):
        divided(tmp_path, photos(), **{key: value})


def test_every_failed_expectation_has_a_line(tmp_path, files):
    files |= {
        "train/cat/x.png": b"broken",
        "train/lost.png": png(98),
        "train/cat/tiny.png": png(97, 2, 2),
        "test/dgo/1.png": png(96),
        "val/cat/y.png": files["test/cat/1.png"],
        "train/fox/1.png": png(95),
    }
    lines = rejection(tmp_path, files)
    assert [line.split(":")[0].rstrip(".") for line in lines] == [
        "- images that do not decode",
        "- images without a label",
        "- images with an unknown label",
        "- images with a side below checks.min_side 8",
        "- images that a split held out from theirs has too",
        "- classes with fewer images than checks.min_images_per_class 3",
        "- classes with fewer images in val than checks.min_images_per_class_and_split 1",
        "- classes with fewer images in test than checks.min_images_per_class_and_split 1",
        "In all 5 of 24 images are bad, 20.833%; checks.max_bad_fraction lets 0.000% be set aside",
    ]


def test_bad_images_up_to_the_fraction_are_set_aside_with_the_reasons(tmp_path, files):
    files |= {
        "train/cat/x.png": b"broken",
        "train/tiny.png": png(97, 2, 2),
        "train/dog/y.png": files["val/dog/1.png"],
    }
    facts, folder = run(tmp_path, files, CHECKS.model_copy(update={"max_bad_fraction": 3 / 21}))
    assert facts["rows"] == {"train": 8, "val": 4, "test": 6}
    assert facts["quarantined"] == 3
    assert facts["near_duplicates"] == 0
    assert facts["classes"] == {"cat": 9, "dog": 9}
    assert images_per_class(folder, SET_ASIDE) == {"cat": 1, "dog": 1}
    reasons = quarantine(folder)
    assert reasons.pop("train/cat/x.png").startswith("does not decode: not an image")
    assert reasons == {
        "train/dog/y.png": "the same image is in val",
        "train/tiny.png": "no label; 2 x 2 pixels is too small",
    }
    accepted = pd.read_parquet(folder / "images.parquet")
    assert not set(accepted["path"]) & {"train/cat/x.png", "train/tiny.png", "train/dog/y.png"}
    docs = "".join(path.read_text() for path in (folder / "report").rglob("images.html"))
    assert "images without a label" in docs
    # It has the columns of the accepted ones, whole numbers and all.
    ours, theirs = (
        pq.read_schema(folder / f"{name}.parquet") for name in ("images", "quarantined")
    )
    assert list(theirs) == [*ours, pa.field("reason", pa.string())]


def test_the_fraction_itself_is_allowed_and_one_image_more_is_not(tmp_path, files):
    # 29 of 100, because 0.29 * 100 is a little less than 29 in floating point.
    files |= {f"train/dog/y{number}.png": png(200 + number) for number in range(71 - len(files))}
    files |= {f"train/cat/x{number}.png": b"broken" for number in range(29)}
    checks = CHECKS.model_copy(update={"max_bad_fraction": 0.29})
    for name in ("allowed", "rejected"):
        (tmp_path / name).mkdir()
    assert run(tmp_path / "allowed", files, checks)[0]["quarantined"] == 29
    lines = rejection(tmp_path / "rejected", files | {"train/cat/x.png": b"broken"}, checks)
    assert lines[-1].endswith("checks.max_bad_fraction lets 29.000% be set aside.")


@pytest.mark.parametrize("broken", [b"broken", b""])
def test_data_without_one_good_image_is_rejected(tmp_path, files, broken):
    lines = rejection(tmp_path, dict.fromkeys(files, broken))
    assert lines[0].startswith("- images that do not decode: 18 of 18: ")
    assert lines[-2] == "- splits without an image: 3 of 3: train, val, test"


def test_classes_are_counted_without_what_is_set_aside(tmp_path, files):
    for number in range(3):
        files[f"test/dog/{number}.png"] = b"broken"
    lines = rejection(tmp_path, files, TOLERANT)
    assert lines[1] == (
        "- classes with fewer images in test than checks.min_images_per_class_and_split 1: "
        "1 of 2: dog has 0"
    )


def test_a_rejection_replaces_what_the_last_one_left(tmp_path, files):
    files["train/lost.png"] = png(99)
    rejection(tmp_path, files)
    (tmp_path / "validate").rename(tmp_path / "before")
    rejection(tmp_path, files | {"train/cat/x.png": b"broken"})
    kept = tmp_path / ".retrain/rejected/digits"
    assert len(list((kept / "data_docs/validations/images").rglob("*.html"))) == 1
    assert len(pd.read_parquet(kept / "quarantined.parquet")) == 2


def test_an_image_under_two_classes_is_named_in_the_error(tmp_path, files):
    files["train/dog/x.png"] = files["train/cat/1.png"]
    image = Image.open(io.BytesIO(files["val/dog/0.png"]))
    buffer = io.BytesIO()
    image.save(buffer, "BMP")  # the same pixels in other bytes
    files["val/cat/y.bmp"] = buffer.getvalue()
    [line, _] = rejection(tmp_path, files)
    assert line == (
        "- images that another class has too: 4 of 20: "
        "train train/cat/1.png (the same image is labelled 'dog'), "
        "train train/dog/x.png (the same image is labelled 'cat'), "
        "val val/cat/y.bmp (the same image is labelled 'dog'), "
        "val val/dog/0.png (the same image is labelled 'cat')"
    )


def test_a_single_class_is_refused(tmp_path, files):
    one = {name: data for name, data in files.items() if "/cat/" in name}
    assert rejection(tmp_path, one) == [
        "- a single class, 'cat', and a classifier needs at least two: data.path is the folder "
        "that holds those of the classes (below train, val and test or not)"
    ]


def photo(number: int, side: int = 64) -> Image.Image:
    """A smooth picture of its own for each number."""
    pixels = np.random.default_rng(number).integers(0, 256, (6, 6, 3), np.uint8)
    return Image.fromarray(pixels).resize((side, side), Image.Resampling.BICUBIC)


def jpeg(image: Image.Image, quality: int) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def test_a_near_duplicate_across_splits_is_counted_and_listed(tmp_path, files):
    files = {name: jpeg(photo(number), 95) for number, name in enumerate(files)}
    files["train/dog/again.jpg"] = jpeg(photo(list(files).index("test/dog/1.png"), 48), 70)
    files["val/dog/again.jpg"] = jpeg(photo(list(files).index("val/dog/1.png")), 70)
    facts, folder = run(tmp_path, files)
    assert facts["near_duplicates"] == 1
    assert (folder / "report/near_duplicates.csv").read_text().splitlines() == [
        "split,path,near_duplicate_split,near_duplicate_path",
        "train,train/dog/again.jpg,test,test/dog/1.png",
    ]
    docs = "".join(path.read_text() for path in (folder / "report").rglob("images.html"))
    assert "images that look like one of a split held out from theirs" in docs


def test_near_duplicates_are_bad_images_if_the_checks_say_so(tmp_path, files):
    files = {name: jpeg(photo(number), 95) for number, name in enumerate(files)}
    files["train/dog/again.jpg"] = jpeg(photo(list(files).index("test/dog/1.png"), 48), 70)
    [line, _] = rejection(tmp_path, files, CHECKS.model_copy(update={"near_duplicates": "bad"}))
    assert line == (
        "- images that look like one of a split held out from theirs: 1 of 19: "
        "train train/dog/again.jpg (it looks like one in test)"
    )


def test_data_that_were_encoded_again_are_the_same_images(tmp_path, files):
    names = list(files)
    before = {name: jpeg(photo(number, 200), 90) for number, name in enumerate(names)}
    after = {}
    for name, data in before.items():
        buffer = io.BytesIO()
        Image.open(io.BytesIO(data)).save(buffer, "PNG")
        after[name] = buffer.getvalue()
    (tmp_path / "before").mkdir()
    _, one = run(tmp_path / "before", before)
    for split in ("train", "val", "test"):
        rows = [{"bytes": after[name], "path": name} for name in names if name.startswith(split)]
        labels = [["cat", "dog"].index(row["path"].split("/")[1]) for row in rows]
        write_parquet(tmp_path / f"data/{split}.parquet", rows, labels, names=["cat", "dog"])
    space = workspace(tmp_path, "validate")
    validate(DATA, CHECKS, pulled(tmp_path, "parquet"), space)
    ours, theirs = (
        pd.read_parquet(folder / "images.parquet").set_index("path").sort_index()
        for folder in (one, space.folder)
    )
    assert ours["pixels"].tolist() == theirs["pixels"].tolist()
    assert not set(ours["sha256"]) & set(theirs["sha256"])


def test_labels_with_html_are_text_in_the_data_docs(tmp_path, files):
    tag = "<img src=x onerror=alert(1)>"
    files = {name.replace("/dog/", f"/{tag}/"): data for name, data in files.items()}
    files |= {f"test/<i>{tag}/1.png": png(98), f"train/{tag}/x.png": files["train/cat/1.png"]}
    files |= {"train/<b>fox/1.png": png(99)}
    lines = rejection(tmp_path, files, CHECKS.model_copy(update={"labels": ("<u>", "cat", tag)}))
    assert f"unknown label '<i>{tag}'" in lines[0]
    pages = [path.read_text() for path in (tmp_path / "validate/report").rglob("*.html")]
    assert len(pages) == 7
    for each in ("<img src=x", "<i>", "<b>fox", "<u>"):
        assert not any(each in page for page in pages), each
    for each in (f"<i>{tag}", "<b>fox", "cat"):
        assert any(f">{html.escape(each)}<" in page for page in pages), each
