import pyarrow as pa
import pytest
from PIL import Image, TiffImagePlugin

from models.image import inspect
from retrain.workload import Data
from tasks.data import index
from tasks.data.raw_images import places_of
from tests.tasks.toy_data import encoded, parquet, png, write_files, write_parquet


def listed(folder, format="auto", **data):
    """The index of what lies below `folder / "data"`."""
    return index.build(folder / "data", Data(path="data", format=format, **data))


def rows(folder, format="auto", **data):
    """The rows of the index, with the encoded image as `data`."""
    found = listed(folder, format, **data)
    encoded = found.files.read(places_of(found.images))
    return [row | {"data": image} for row, image in
            zip(found.images.to_pylist(), encoded, strict=True)]  # fmt: skip


IMAGES, LABELS = pa.array([png(1), png(2)]), pa.array(["cat", "dog"])
BOTH = {"image": IMAGES, "label": LABELS}


def overwritten(content: bytes, begin: int, count: int) -> bytes:
    return content[:begin] + bytes([255] * count) + content[begin + count :]


WHOLE = parquet(BOTH)
FOOTER = len(WHOLE) - 8 - int.from_bytes(WHOLE[-8:-4], "little")
NO_UTF8 = pa.Array.from_buffers(
    pa.string(), 2, [None, LABELS.slice(0, 2).buffers()[1], pa.py_buffer(b"\xff" * 6)]
)
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
TYPES = (
    pa.list_(pa.struct({"bytes": pa.binary()})),
    pa.struct({"bytes": pa.struct({"bytes": pa.binary()})}),
    pa.struct({"data": pa.binary()}),
    pa.string(),
)
TAKEN_APART, JOINED = "ka\u0308tzchen", "k\u00e4tzchen"


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train.parquet", "train"),
        ("data/train-00000-of-00003.parquet", "train"),
        ("train/xyz.parquet", "train"),
        ("validation-00000-of-00001.parquet", "val"),
        ("val/0000.parquet", "val"),
        ("my_dev.parquet", "val"),
        ("digits_test.parquet", "test"),
        ("train/test.parquet", "test"),
        ("images.parquet", None),
        ("contest/latest.parquet", None),
        ("trains.parquet", None),
    ],
)
def test_the_split_is_in_the_name_of_a_parquet_file_or_its_folder(tmp_path, name, split):
    write_parquet(tmp_path / "data" / name, [png(1)], ["cat"])
    [image] = rows(tmp_path, "parquet")
    assert (image["split"], image["file"]) == (split, name)


def test_parquet_rows_come_in_order_of_the_files_and_rows(tmp_path):
    images = [png(number) for number in range(5)]
    last = [{"bytes": images[4], "path": "cat/1.png"}, None, {"bytes": None, "path": "2.png"}]
    write_parquet(tmp_path / "data/train-1.parquet", last, ["b"] * 3)
    write_parquet(tmp_path / "data/train-0.parquet", images[:4], ["a"] * 4, row_group_size=3)
    found = rows(tmp_path, "parquet")
    assert [image["data"] for image in found] == [*images, b"", b""]
    assert [(image["file"], image["row"], image["path"]) for image in found] == [
        *(("train-0.parquet", row, f"train-0.parquet:{row}") for row in range(4)),
        ("train-1.parquet", 0, "cat/1.png"),
        ("train-1.parquet", 1, "train-1.parquet:1"),
        ("train-1.parquet", 2, "2.png"),
    ]


@pytest.mark.parametrize(
    ("columns", "label", "chosen"),
    [
        (("image", "label"), "a", {}),
        (("img", "label"), "a", {}),
        (("image", "labels", "label"), "b", {}),
        (("png", "class"), "a", {"image_column": "png", "label_column": "class"}),
    ],
)
@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()])
def test_the_usual_names_of_columns_are_understood_and_others_named(
    tmp_path, columns, label, chosen, kind
):
    images, *labels = columns
    named = {name: [value] * 2 for name, value in zip(labels, "ab", strict=False)}
    content = parquet({images: pa.array([png(1), None], kind)} | named)
    write_files(tmp_path / "data", {"a.parquet": content})
    found = rows(tmp_path, "parquet", **chosen)
    assert [(image["data"], image["label"]) for image in found] == [(png(1), label), (b"", label)]


@pytest.mark.parametrize(
    ("labels", "names", "expected"),
    [
        (["cat", None, "dog"], None, ["cat", None, "dog"]),
        ([3, None, 10], None, ["3", None, "10"]),
        ([1, 0, None], ["cat", "dog"], ["dog", "cat", None]),
        ([1, -1, 2], ["cat", "dog"], ["dog", None, "2"]),
        ([" odd", "odd ", "  "], None, ["odd", "odd", None]),
        (["ka\u0308tzchen", "k\u00e4tzchen", "x"], None, ["k\u00e4tzchen"] * 2 + ["x"]),
        (pa.array(["a", "b", "a"]).dictionary_encode(), None, ["a", "b", "a"]),
        (pa.array(["a", None, "b"], pa.large_string()), None, ["a", None, "b"]),
        (pa.array([1, 2, 3], pa.uint8()), None, ["1", "2", "3"]),
    ],
)
def test_labels_become_names(tmp_path, labels, names, expected):
    write_parquet(tmp_path / "data/a.parquet", [png(1)] * 3, labels, names=names)
    assert [image["label"] for image in rows(tmp_path, "parquet")] == expected


@pytest.mark.parametrize(
    ("content", "columns", "fault"),
    [
        (WHOLE, {"image_column": "x"}, ".*no column 'x', but image, label: .*image_column"),
        (WHOLE, {"label_column": "x"}, ".*no column 'x', but image, label: .*label_column"),
        (
            parquet(BOTH | {"label": pa.array([0.5, 1])}), {},
            ".*'label' is double; .* data.label_column",
        ),
        *(
            (
                parquet(BOTH | {"image": pa.nulls(2, kind)}), {},
                r".*the column 'image' is .*image_column\.$",
            )
            for kind in TYPES
        ),
        (b"PAR1 and nothing more", {}, " is no Parquet file"),
        (b"", {}, " is no Parquet file"),
        (LFS, {}, " is a Git LFS pointer: git lfs pull"),
        (overwritten(WHOLE, FOOTER + 10, 30), {}, " is no Parquet file"),
        (overwritten(parquet(BOTH, compression="zstd"), 20, 60), {}, " is broken"),
        (parquet(BOTH | {"label": NO_UTF8}), {}, " is broken: .*Invalid UTF8"),
    ],
)  # fmt: skip
def test_a_parquet_file_that_cannot_be_read_is_named(tmp_path, content, columns, fault):
    write_files(tmp_path / "data", {"a.parquet": content})
    with pytest.raises(ValueError, match=f"^a.parquet{fault}") as caught:
        rows(tmp_path, "parquet", **columns)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("format", "names", "fault"),
    [
        (
            "parquet", ["train.parquet", "test.parquet", "extra.parquet"],
            "extra.parquet belongs to no split, as other files do",
        ),
        (
            "folders", ["train/cat/1.png", "test/cat/1.png", "extra/cat/2.png"],
            "extra/cat/2.png belongs to no split, as other files do",
        ),
        ("parquet", ["README.md"], "no images in data.path, read as parquet"),
        ("folders", ["README.md"], "no images in data.path, read as folders"),
        (
            "folders", [f"train/{TAKEN_APART}/1.png", f"train/{JOINED}/2.png"],
            r"'ka\\u0308tzchen' and 'k\\xe4tzchen' are one class",
        ),
        *(
            ("auto", [name, "dog/1.png"], r"^The name '.*\\.*' is not UTF-8, or has a")
            for name in ("cat/a\nb.png", "c\rat/1.png", "cat/\udcff.png")
        ),
    ],
)  # fmt: skip
def test_names_that_cannot_be_meant_are_refused_in_a_line(tmp_path, format, names, fault):
    write_files(tmp_path / "data", dict.fromkeys(names, WHOLE))
    with pytest.raises(ValueError, match=fault) as caught:
        listed(tmp_path, format)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("format", ["auto", "folders"])
@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["cat/1.png", "cat/deep/2.PNG", "dog/0.jpeg"],
         [(None, "cat"), (None, "cat"), (None, "dog")]),
        (["Train/cat/1.png", "test/dog/4.png", "train/dog/2.png", "valid/cat/3.png"],
         [("train", "cat"), ("test", "dog"), ("train", "dog"), ("val", "cat")]),
        (["class1/p1/1.png", "class2/p2/2.png"], [(None, "class1"), (None, "class2")]),
        (["n014/images/1.png", "n020/images/2.png"], [(None, "n014"), (None, "n020")]),
        (["pets/cat/1.png", "vehicles/car/2.png", "vehicles/train/3.png"],
         [(None, "pets"), (None, "vehicles"), (None, "vehicles")]),
        ([f"test/{JOINED}/2.png", f"train/{TAKEN_APART}/1.png"],
         [("test", JOINED), ("train", JOINED)]),
        (["car/new/2.png", "car/old/1.png", "plane/4.png", "train/steam/3.png"],
         [(None, "car"), (None, "car"), (None, "plane"), (None, "train")]),
        # A file before a folder of nearly its name comes first.
        (["B/1.png", "a-b/1.png", "a.b/1.png", "a/1.png", "a/b.png", "a/b/1.png", "ab/1.png"],
         [(None, name) for name in ("B", "a-b", "a.b", "a", "a", "a", "ab")]),
    ],
)  # fmt: skip
def test_folders_are_classes_or_splits_of_them(tmp_path, format, names, found):
    write_files(tmp_path / "data", {name: name.encode() for name in names})
    expected = [
        {"file": name, "path": name, "row": 0, "data": name.encode(), "split": split,
         "label": label, "bytes": len(name.encode())}
        for name, (split, label) in zip(names, found, strict=True)
    ]  # fmt: skip
    assert rows(tmp_path, format) == expected


def raw(maker: str, tags: dict) -> bytes:
    """A raw file of a camera: a TIFF whose first picture is a thumbnail, or that is a DNG."""
    info = TiffImagePlugin.ImageFileDirectory_v2()
    for tag, value in {271: maker, **tags}.items():
        info[tag] = value
    return encoded(Image.new("RGB", (16, 12), "red"), "TIFF", tiffinfo=info)


NEF, DNG, TIFF = raw("NIKON", {254: 1}), raw("Adobe", {50706: b"\1\4\0\0"}), raw("Canon", {})
# The mark of a CR2 is where the first directory of other files begins; its own is elsewhere.
CR2 = TIFF[:4] + len(TIFF).to_bytes(4, "little") + b"CR\2\0" + TIFF[12:] + TIFF[8:300]


PHOTOS = {f"{label}/IMG_{n}.JPG": png(n) for n, label in enumerate(("cat", "dog") * 2)}
RAWS = {name.replace("JPG", "NEF"): NEF for name in PHOTOS}
RAWS |= {"cat/1.dng": DNG, "cat/2.CR2": NEF, "cat/3.arw": NEF, "dog/4.raf": b"FUJIFILM"}


def test_a_list_without_suffixes_means_the_photos_beside_raw_files(tmp_path):
    table = "\n".join(["path,label", *(f"{name[:-4]},{name[:3]}" for name in PHOTOS)])
    write_files(tmp_path / "data", PHOTOS | RAWS | {"labels.csv": table.encode()})
    assert listed(tmp_path, "table").images["path"].to_pylist() == sorted(PHOTOS)


@pytest.mark.parametrize("data", [NEF, DNG, CR2])
def test_a_raw_file_of_another_name_is_no_image(data):
    with pytest.raises(ValueError, match="a camera's raw file"):
        inspect(data)
    assert inspect(TIFF)[0].camera == "Canon"


TOOLS = [
    "@eaDir/cat/SYNO.jpg",
    "cat/@eaDir/1.png/SYNO.jpg",
    "$RECYCLE.BIN/1.png",
    "cat/Icon\r",
    "__MACOSX/cat/._1.png",
    "Thumbs.db",
    "cat/desktop.ini",
    ".git/x.png",
    "cat/.DS_Store",
    "__pycache__/x.pyc",
]
TEXTS = dict.fromkeys(("LICENSE", "README.md", "VERSION", "cat/labels.txt", "cat/x.pyc"), b"text")
VIDEOS = {
    f"cat/{brand.strip()}.{kind}": b"\0\0\0\x18ftyp" + brand.encode() + b"\0\0\2\0" + brand.encode()
    for kind, brand in (
        ("3gp", "3gp4"),
        ("m4v", "M4V "),
        ("m4v", "mp42"),
        ("mp4", "isom"),
        ("mov", "qt  "),
        ("MP4", "avc1"),
        ("cr3x", "crx "),
    )
}


IMAGES_OF_CATS = ("cat/1.png", "cat/2.heic", "cat/3", "cat/4.img")


@pytest.mark.parametrize(
    ("files", "data", "expected", "said"),
    [
        *(
            (
                dict.fromkeys([*TOOLS, *(f"{above}{name}" for name in IMAGES_OF_CATS)], png(1))
                | TEXTS
                | VIDEOS,
                {"format": "folders"},
                {f"{above}{name}": ("cat", split) for name in IMAGES_OF_CATS},
                "Left out as no images (12): LICENSE, README.md, VERSION …",
            )
            for above, split in (("", None), ("train/", "train"))
        ),
        (
            PHOTOS | RAWS,
            {},
            {name: (name[:3], None) for name in PHOTOS},
            "Left out as no images (8): cat/1.dng, cat/2.CR2, cat/3.arw …",
        ),
        *(  # folders of splits are known by a word in their names
            (
                dict.fromkeys(
                    (f"{train}/cat/1.png", f"{test}/cat/2.png", f"{test}/dog/3.png", other), png(1)
                ),
                {},
                {
                    f"{train}/cat/1.png": ("cat", "train"),
                    f"{test}/cat/2.png": ("cat", "test"),
                    f"{test}/dog/3.png": ("dog", "test"),
                },
                f"Left out without a class (1): {other}",
            )
            for train, test in (("training_set", "test_set"), ("seg_train", "seg_test"),
                                ("seg_train/seg_train", "test"))
            for other in ("seg_pred/4.png", "seg_pred/seg_pred/4.png")
        ),
        (  # unless the user says that the folders are the classes
            dict.fromkeys(("seg_train/cat/1.png", "seg_test/cat/2.png"), png(1)),
            {"format": "folders"},
            {
                f"{name}/cat/{n}.png": (name, None)
                for n, name in ((1, "seg_train"), (2, "seg_test"))
            },
            "",
        ),
        (
            {
                f"{split}.parquet": parquet({"image": IMAGES, "label": labels})
                for split, labels in (("train", LABELS), ("test", pa.nulls(2, pa.string())))
            },
            {},
            {"train.parquet:0": ("cat", "train"), "train.parquet:1": ("dog", "train")},
            "Left out without a class (2): test.parquet:0, test.parquet:1",
        ),
    ],
)  # fmt: skip
def test_what_is_no_image_or_has_no_class_is_left_out_and_counted(
    tmp_path, files, data, expected, said, caplog
):
    write_files(tmp_path / "data", files)
    (tmp_path / "data/loop").symlink_to(tmp_path / "data")
    found = listed(tmp_path, **data).images.to_pylist()
    assert {row["path"]: (row["label"], row["split"]) for row in found} == expected
    assert said in caplog.text


def described(folder, names, **data):
    """The class and the split of each image, by its file, where each file is an image."""
    write_files(folder / "data", {name: png(number) for number, name in enumerate(names)})
    found = listed(folder, **data).images.to_pylist()
    return {row["file"]: (row["label"], row["split"]) for row in found}


@pytest.mark.parametrize(
    ("names", "fault"),
    [
        (["north/even/1.png", "north/odd/1.png", "south/even/1.png", "south/odd/1.png"],
         "The folders north, south hold folders of the same names, even, odd: set data.path to"),
        (["color/a/1.png", "color/b/1.png", "color/c/1.png", "grey/a/1.png", "grey/b/1.png"],
         "The folders color, grey hold folders of the same names, a, b: set data.path to"),
        (["train2017/1.png", "val2017/2.png"],
         "train2017, val2017 are named as splits and hold images that have no class"),
        (["seg_pred/1.png", "seg_test/2.png", "seg_train/3.png"],
         "seg_test, seg_train are named as splits and hold images that have no class"),
        (["my train/cat/1.png", "old test/dog/2.png", "other/fox/3.png"],
         "my train, old test are named as splits and hold images that have no class"),
        (["pred/1.png", "train/cat/2.png", "train/dog/3.png"],
         "The folder train is named as a split and holds folders, and pred hold none"),
        (["cat/train/1.png", "cat/test/2.png", "dog/train/3.png", "dog/test/4.png"],
         "The folders below cat, dog are named as splits, test, train: put the splits above"),
        (["cat/train/1.png", "cat/test/2.png", "dog/train/3.png"],
         "The folders below cat, dog are named as splits, test, train: put the splits above"),
        (["cat/Train/1.png", "dog/train/3.png"],
         "The folders below cat, dog are named as splits, Train, train: put the splits above"),
        (["week1/cat/1.png", "week2/dog/2.png"],
         "The folders week1, week2 differ in numbers only, and hold cat, dog: put the images of"),
        (["2026-01-03/cat/1.png", "2026-01-10/cat/2.png", "2026-01-10/dog/3.png"],
         "The folders 2026-01-03, 2026-01-10 differ in numbers only, and hold cat, dog: put"),
        (["a/1.png", "a/x.parquet", "b/1.png"],
         r"x\.parquet, and images, such as a/1\.png: which count"),
        (["Cat/1.png", "cat/2.png", "dog/3.png"],
         "The classes 'Cat' and 'cat' differ in case only: make one of them, or set data.format"),
    ],
)  # fmt: skip
def test_folders_that_may_be_no_classes_are_asked_about(tmp_path, names, fault):
    with pytest.raises(ValueError, match=fault):
        described(tmp_path, names)
    labels = described(tmp_path, names, format="folders").items()
    assert all(label == name.split("/")[0] for name, (label, _) in labels)


def test_metadata_beside_class_folders_is_no_data(tmp_path):
    described(tmp_path, ["a/1.png", "a/2.png", "b/1.png", "b/2.png"])
    table = parquet({"file_name": ["a/1.png", "b/2.png"], "site": ["x", "y"]})
    of_folder = b"file_name,age\n1.png,7"
    write_files(tmp_path / "data", {"metadata.parquet": table, "b/metadata.csv": of_folder})
    found = listed(tmp_path)
    assert (found.format, found.images["site"].to_pylist()) == ("folders", ["x", None, None, "y"])
    assert found.images["age"].to_pylist() == [None, None, 7, None]
