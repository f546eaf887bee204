"""Classes, groups and times as the user tells them."""

import datetime
import json
import shutil

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from PIL import Image

from retrain.workload import Split
from tasks.validate.annotations import read_groups, read_times
from tests.tasks.toy_data import encoded, parquet, png
from tests.tasks.validate.validating import FILES, TOLERANT, quarantine, rejection, run


def divided(tmp_path, files, kind="folders", **data):
    """The accepted images, by path, of data without splits."""
    _, folder = run(tmp_path, files, TOLERANT, kind, **data)
    return pd.read_parquet(folder / "images.parquet").set_index("path")


def photos(count=60):
    """Images of two classes and 12 patients, whose folders are below those of the classes."""
    return {f"{('cat', 'dog')[n % 2]}/p{n % 12}/day {n}.png": png(n) for n in range(count)}


def splits_of_patients(images):
    """In how many splits the images of a patient are, at most."""
    return images.groupby(images.index.str.split("/").str[1])["split"].nunique().max()


def test_a_group_found_in_the_names_is_in_one_split(tmp_path):
    images = divided(tmp_path, photos(), group=r"^[^/]+/([^/]+)/")
    assert splits_of_patients(images) == 1
    assert {*images["split"]} == {"train", "val", "test"}


NAMES_IN_METADATA = {
    "as they are": str,
    "no suffix": lambda name: name.removesuffix(".png"),
    "backslashes": lambda name: name.replace("/", "\\"),
    "no folder": lambda name: name.rpartition("/")[2],
    "of another machine": lambda name: f"C:\\photos\\{name}",
}


@pytest.mark.parametrize("way", NAMES_IN_METADATA)
def test_metadata_names_images_as_lists_do(tmp_path, way, caplog):
    files, write = photos(), NAMES_IN_METADATA[way]
    listed = [*files][7:]
    rows = [f"{write(name)},{int(name.split('/')[1][1:])}" for name in listed]
    metadata = "\n".join(["file_name,patient", *rows, "gone,3", "cat/gone.png,4"]).encode()
    images = divided(tmp_path, files | {"metadata.csv": metadata}, group="patient")
    assert splits_of_patients(images.loc[listed]) == 1
    for said in (
        "Left out (2): rows of metadata.csv that name no image, several, or one again: gone, cat/",
        "Images without a row in metadata.csv (7): cat/p0/day 0.png, ",
        "data.group: 7 of 60 images have no patient: cat/p0/day 0.png, ",
    ):
        assert said in caplog.text


def test_a_group_has_one_name_however_its_numbers_are_stored():
    """As they are floats where some are missing."""
    frame = pd.DataFrame({"path": ["a", "b", "c"]})
    for own in ({"patient": [1.0, None, 2.5]}, {"patient": ["1", " ", "2.5 "]}):
        assert read_groups("patient", frame, pa.table(own)) == ["1", None, "2.5"]


def test_a_column_of_the_parquet_files_says_groups_and_times(tmp_path):
    table = {
        "image": [png(n) for n in range(60)],
        "label": ["cat", "dog"] * 30,
        "patient": np.arange(60) % 12,
        "day": [datetime.date(2026, 1, 1) + datetime.timedelta(n) for n in range(60)],
    }
    files = {
        f"{first:02}.parquet": parquet(
            {name: values[first : first + 20] for name, values in table.items()}, row_group_size=7
        )
        for first in (0, 20, 40)
    }
    by_group = divided(tmp_path, files, "parquet", group="patient")
    assert (by_group.groupby(np.arange(60) % 12)["split"].nunique() == 1).all()
    shutil.rmtree(tmp_path / "validate")
    by_time = divided(tmp_path, {}, "parquet", time="day")
    assert list(by_time["split"]) == IN_TIME
    assert list(by_time["patient"]) == [n % 12 for n in range(60)]  # for slices


IN_TIME = ["train"] * 42 + ["val"] * 6 + ["test"] * 12


def test_names_say_times_and_numbers_in_them_count_as_such(tmp_path):
    bad = {f"cat/p0/day {n}.png": png(n, 2, 2) for n in range(90, 100)}  # are not divided
    images = divided(tmp_path, photos() | bad, time=r"day (\d+)\.png")
    days = images.index.str.extract(r"day (\d+)", expand=False).astype(int)
    assert list(images["split"].to_numpy()[np.argsort(days)]) == IN_TIME


def jpeg(number, tag, taken):
    """An image with EXIF data: 36867 for when it was taken, or 306."""
    exif = Image.Exif()
    exif.update({271: "Fuji", 272: "X100"})
    (exif if tag == 306 else exif.get_ifd(0x8769))[tag] = taken
    return encoded(Image.fromarray(np.full((8, 8), number, np.uint8)), "JPEG", exif=exif)


def test_exif_says_times_and_images_without_one_are_set_aside(tmp_path):
    files = {
        f"{('cat', 'dog')[n % 2]}/{n:02}.jpg": jpeg(
            5 * n, 36867 if n < 38 else 306, f"2026:01:01 10:{n:02}:00"
        )
        for n in range(40)
    }
    without = {"cat/none.png": png(0), "dog/never set.jpg": jpeg(7, 306, "0000:00:00 00:00:00")}
    images = divided(tmp_path, files | without, time="exif")
    assert {*images["camera"]} == {"Fuji X100"}
    in_order = images.sort_index(key=lambda path: path.str[4:])
    assert list(in_order["split"]) == ["train"] * 28 + ["val"] * 4 + ["test"] * 8
    assert quarantine(tmp_path / "validate") == dict.fromkeys(without, "no time")


def test_a_group_that_the_datas_own_splits_divide_is_named_in_the_error(tmp_path):
    files = FILES | {"train/cat/p1/1.png": png(98), "test/dog/p1/2.png": png(99)}
    line, _ = rejection(tmp_path, files, group="^[^/]+/([^/]+)/")
    assert line == (
        "- images of a group that a split held out from theirs has too: 1 of 20: "
        "train train/cat/p1/1.png (one of its data.group is in test)"
    )


def test_dates_are_in_the_order_of_time_however_they_are_written():
    written = ["2026-01-31T23:30:00-02:00", "2026-02-01", "2026-02", None]
    frame = pd.DataFrame({"path": written, "file": written, "split": None, "taken": None})
    times = read_times("day", frame, pa.table({"day": written}))
    assert times[0] > times[1] == times[2]
    assert pd.isna(times[3])


CODES = {"n01440764": "tench, Tinca tinca", "n02084071": "k\u00e4tzchen"}
CODED = {f"{code}/{n}.png": png(n + 100 * k) for k, code in enumerate(CODES) for n in range(6)}
LINES = "\n".join(f"{code} {name}" for code, name in CODES.items())
LINES = LINES.replace("\u00e4", "a\u0308").encode()  # as macOS may write it


@pytest.mark.parametrize(
    "content", [LINES, LINES.replace(b" ", b"\t", 1), json.dumps(CODES).encode()]
)
def test_the_classes_are_named(tmp_path, content):
    facts, folder = run(tmp_path, CODED | {"names.txt": content}, label_names="names.txt")
    assert facts["classes"] == dict.fromkeys(sorted(CODES.values()), 6)
    images = pd.read_parquet(folder / "images.parquet")
    assert {path[:9]: label for path, label in zip(images.path, images.label, strict=True)} == CODES


def with_days(*days):
    """The photos, and a list that says a day of each, in turns."""
    rows = [f"{name},{days[number % 2]}" for number, name in enumerate(photos())]
    return photos() | {"metadata.csv": "\n".join(["file_name,day", *rows]).encode()}


@pytest.mark.parametrize(
    ("files", "data", "reason"),
    [
        (photos(), {"group": r"(nothing)\.tif"}, r"data.group: no image has a \(nothing\)"),
        (photos(), {"group": "patient"}, "data.group: patient is neither .*These are there: none"),
        (photos(), {"time": "day"}, "data.time: day is neither exif nor a regular expression wi"),
        (photos(), {"split": Split(val=0.0, test=0.0)}, "splits without an image: 2 of 3: val, t"),
        (
            with_days(1, 2), {"slices": ("town",)},
            "gate.slices: the data has no column town, but aspect, .*, contrast, day, file",
        ),
        (
            with_days("23/11/2026", "24/11/2026"), {"time": "day"},
            "data.time: '23/11/2026' of cat/p0/day 0.png is no time",
        ),
        (
            with_days("2026-11-23", "7"), {"time": "day"},
            "data.time: some values of .* are numbers and some are dates",
        ),
        *(
            (
                CODED | {"names.txt": content}, {"label_names": "names.txt"},
                f"data.label_names: .*{reason}",
            )
            for content, reason in (
                (b"n01440764 tench", "no name for the class 'n02084071' of n02084071/0.png"),
                (b"n01440764 dog\nn02084071 dog", "names 2 classes 'dog'"),
                (b"n01440764", "is no list of names"),
                (b"{", "is no list of names"),
            )
        ),
        *(
            (
                CODED | {"../names.txt": LINES}, {"label_names": name},
                f"data.label_names: the data has no file {name}",
            )
            for name in ("names.txt", "../names.txt")
        ),
    ],
)  # fmt: skip
def test_what_the_data_does_not_say_is_refused(tmp_path, files, data, reason):
    with pytest.raises(ValueError, match=reason):
        divided(tmp_path, files, **data)
