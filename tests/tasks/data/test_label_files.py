"""Tables that list images with their classes."""

import json

import pandas as pd
import pytest

from tests.tasks.toy_data import png, pulled, write_files

LABELS = {f"photos/{number}.png": ("cat", "dog")[number % 2] for number in range(24)}
IMAGES = {name: png(number) for number, name in enumerate(LABELS)}


def table(head, rows, separator=","):
    return "\n".join([head, *(separator.join(row) for row in rows)]).encode()


def listed(tmp_path, files, **data):
    """The format that is recognised of a folder with files, and the index of its images."""
    write_files(tmp_path / "data", files)
    artifact = pulled(tmp_path, **data)
    return artifact.facts["format"], pd.read_parquet(artifact.folder / "index.parquet")


ALL = table("path,label", LABELS.items())
STEMS = [(name[7:-4], label) for name, label in LABELS.items()]
UNLISTED = {"photos/not listed.png": png(99), "notes.json": b"[1, 2]"}
LISTS = {
    "labels.csv": ALL,
    "photos/a.csv": table('"Filename";"Class"', LABELS.items(), ";").replace(b"photos/", b""),
    "labels.tsv": b"\xef\xbb\xbf" + table("image\tcategory", LABELS.items(), "\t"),
    "spaced.csv": table("path, label ", [(name, f" {label} ") for name, label in LABELS.items()]),
    "all.jsonl": "\n".join(
        json.dumps({"file_name": name, "label": label}) for name, label in LABELS.items()
    ).encode(),
    "file_name.csv": table("file_name,class", LABELS.items()),
    "filename.csv": table("filename,breed", LABELS.items()),
    "image.csv": table("image,species", LABELS.items()),
    "Image ID.csv": table("Image ID,target", STEMS),
    "image_id.csv": table("image_id,label", STEMS),
    "id.csv": table("id,class", STEMS),
}
OTHER_NAMES = {"format": "table", "image_column": "place", "label_column": "sort"}
ELSEWHERE = (
    "s3://bucket/a/photos/{}",
    "https://example.com/photos%2F{}",
    "/home/me/photos/{}",
    "C:\\photos\\{}",
    "../data/photos/{}",
)


def answers(columns):
    """A table of a model's answers beside the list; they are no second list."""
    rows = [(name, "dog", "0.4")[: columns.count(",") + 1] for name in LABELS]
    return {"labels.csv": ALL, "old_predictions.csv": table(columns, rows)}


@pytest.mark.parametrize(
    ("files", "data", "said"),
    [
        *(({name: content} | UNLISTED, {}, "") for name, content in LISTS.items()),
        ({"labels.csv": table("place,sort", LABELS.items())}, OTHER_NAMES, ""),
        *(
            (answers(columns), {}, "Left out: old_predictions.csv, since labels.csv lists the imag")
            for columns in ("path,label,confidence", "path,predicted_label", "id,x")
        ),
        *(  # a path on another machine is known by its end
            (
                {
                    "export.csv": table(
                        "annotator,image,choice",
                        [("me", path.format(name[7:]), label) for name, label in LABELS.items()],
                    ),
                    "other/1.png": png(99),
                },
                {"format": "table"},
                "",
            )
            for path in ELSEWHERE
        ),
    ],
)
def test_listed_images_are_recognised_and_have_their_classes(tmp_path, files, data, said, caplog):
    form, images = listed(tmp_path, IMAGES | files, **data)
    assert form == "table"
    assert dict(zip(images["path"], images["label"], strict=True)) == LABELS
    assert said in caplog.text


FOLDERS = {f"{label}/{name[7:]}": IMAGES[name] for name, label in LABELS.items()}
WRITTEN = {"train": "train", "val": " Valid", "test": "TEST"}
SPLITS = {name: ("train", "val", "test")[number % 3] for number, name in enumerate(LABELS)}
IN_FOLDERS = {f"{label}/{name[7:]}": SPLITS[name] for name, label in LABELS.items()}


@pytest.mark.parametrize(
    ("files", "splits"),
    [
        (
            {
                "labels.csv": table(
                    "path,label,split",
                    [(*pair, WRITTEN[SPLITS[pair[0]]]) for pair in LABELS.items()],
                )
            }
            | IMAGES,
            SPLITS,
        ),
        *(
            (
                {
                    name.format(split): table(
                        "path,label", [pair for pair in LABELS.items() if SPLITS[pair[0]] == split]
                    )
                    for split in WRITTEN
                }
                | IMAGES,
                SPLITS,
            )
            for name in ("{}.csv", "lists/{}2017.csv", "{}/list.csv")
        ),
        (  # a list of the same classes adds its splits to those of the folders
            {
                "all.csv": table(
                    "path,label,split",
                    [(name, name[:3], split) for name, split in IN_FOLDERS.items()],
                )
            }
            | FOLDERS,
            IN_FOLDERS,
        ),
    ],
)
def test_the_split_is_a_column_of_the_list_or_in_its_name(tmp_path, files, splits):
    _, images = listed(tmp_path, files)
    assert dict(zip(images["file"], images["split"], strict=True)) == splits


HALF = [*FOLDERS][: len(FOLDERS) // 2]
CONTRADICTIONS = {
    "approved.csv": table("path,label", [(name, name[:3]) for name in HALF]),
    "proposals.csv": table("path,label,confidence", [(name, "dog", "0.5") for name in HALF]),
    "answers.csv": table("path,label", [(name, "dog") for name in FOLDERS]),
}


UNKNOWN = {
    "labels.csv": table("picture,kind", [(name[:-4], name[:3]) for name in FOLDERS]),
    "notes.jsonl": b"{",
    "elsewhere.csv": table("path,label", [("elsewhere.png", "cat")]),
}
CASED = [(name, label.title() if "3" in name else label) for name, label in LABELS.items()]
MORE = {"photos/more.png": png(99), "more.csv": table("picture,kind", [("more.png", "cat")])}


@pytest.mark.parametrize(
    ("files", "question", "answers"),
    [
        *(
            (
                FOLDERS | {name: content},
                rf"^{name} .*: which counts\? Set data\.format to table",
                {"folders": (24, 2), "table": (content.count(b".png"), classes)},
            )
            for (name, content), classes in zip(CONTRADICTIONS.items(), (2, 1, 1), strict=True)
        ),
        *(
            (
                FOLDERS | {name: content},
                rf"^{name} .*Set data\.format to folders if the folders",
                {"folders": (24, 2)},
            )
            for name, content in UNKNOWN.items()
        ),
        (
            IMAGES | {"labels.csv": table("path,label", CASED)},
            "'Dog' and 'dog' differ in case only: .* to table if",
            {"table": (24, 3)},
        ),
        (
            IMAGES | {"labels.csv": ALL} | MORE,
            r"^more\.csv may list .* \(picture, kind\) .* set data\.format to table if "
            r"labels\.csv alone counts",
            {"table": (24, 2)},
        ),
    ],
)
def test_what_may_be_meant_in_two_ways_is_asked(tmp_path, files, question, answers):
    with pytest.raises(ValueError, match=question):
        listed(tmp_path, files)
    for format, counts in answers.items():
        found, images = listed(tmp_path, files, format=format)
        assert (found, len(images), images["label"].nunique()) == (format, *counts)


@pytest.mark.parametrize("columns", ["file_name,label", "file_name,site"])
def test_metadata_of_one_image_of_a_class_folder_is_no_list(tmp_path, columns):
    metadata = table(columns, [(HALF[0][4:], "cat")])
    found, images = listed(tmp_path, FOLDERS | {"cat/metadata.csv": metadata})
    assert (found, len(images)) == ("folders", 24)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["01", "2020-01-01"], ["01", "2020-01-01"]),
        (["NA", "null"], ["NA", "null"]),
        (["1.0", "2.0"], ["1", "2"]),
        (["1.0", "2.5"], ["1.0", "2.5"]),
    ],
)
def test_classes_that_look_like_other_things_stay_text(tmp_path, given, expected, caplog):
    rows = [(f" {name} ", f" {given[n % 2]} ") for n, name in enumerate(LABELS)]
    _, images = listed(tmp_path, IMAGES | {"labels.csv": table("path,label", rows)})
    assert images["label"].iloc[:2].tolist() != images["label"].iloc[1:3].tolist()
    assert {*images["label"]} == {*expected}
    assert ("labels.csv: its classes are whole numbers" in caplog.text) == (given != expected)


def test_names_in_either_form_of_unicode_are_the_same(tmp_path):
    taken_apart, joined = "ka\u0308tzchen", "k\u00e4tzchen"
    folders = {f"{(taken_apart, 'hund')[n % 2]}/{n}.png": png(n) for n in range(24)}
    rows = [(f"{label}/{n}.png", label) for n, label in enumerate([joined, "hund"] * 12)]
    _, images = listed(tmp_path, folders | {"all.csv": table("path,label", rows)})
    assert images["label"].value_counts().to_dict() == {joined: 12, "hund": 12}


BROKEN = {
    "two classes in a table": (
        "all.csv",
        table("path,label", [*LABELS.items(), ("photos/1.png", "cat")]),
        r"photos/1\.png is listed with two values of label, dog and cat, in all\.csv: an image has",
    ),
    "an unknown split": (
        "all.csv",
        table("path,label,split", [(*pair, "holdout") for pair in LABELS.items()]),
        "is in a split 'holdout': name train, val or test",
    ),
    "no JSON": ("all.jsonl", b"{", "all.jsonl cannot be read as a table"),
    "a comma in a class": (
        "all.csv",
        table("path,label", [*LABELS.items(), ("photos/1.png", "dog, large")]),
        r"line 26 has 3 cells, and the header 2: put a text with ',' in it into quotes",
    ),
    "a comma in each class": (
        "all.csv",
        table("path,label", [(name, f"{label}, large") for name, label in LABELS.items()]),
        "line 2 has 3 cells",
    ),
    "no header": (
        "all.csv",
        table("photos/0.png,cat", [*LABELS.items()][1:]),
        r"all\.csv has no header: its first line names photos/0\.png",
    ),
    "an ambiguous name": (
        "all.csv",
        table("path,label", [("1.png", "cat")]),
        r"names 1\.png, which may be (photos|other)/1.png or (photos|other)/1.png",
    ),
} | {
    f"a path that leads elsewhere, {number}": (
        "all.csv",
        table("path,label", [*LABELS.items(), (path, "cat")]),
        r"all\.csv names .*no file of data\.path",
    )
    for number, path in enumerate(
        (
            "photos/../../secret.png",
            "/etc/passwd",
            "s3://bucket/99.png",
            "https://example.com/photos/1.png?",
            "elsewhere/1.png",
            '"photos/a\nb.png"',
        )
    )
}


@pytest.mark.parametrize(("name", "content", "message"), BROKEN.values(), ids=BROKEN)
def test_a_broken_list_is_named_in_a_line_with_what_is_wrong(tmp_path, name, content, message):
    with pytest.raises(ValueError, match=message) as caught:
        listed(tmp_path, IMAGES | {name: content, "other/1.png": png(1)})
    assert "\n" not in str(caught.value)


def test_a_column_with_values_of_several_types_is_text(tmp_path):
    pairs = [*LABELS.items()]
    lists = {
        f"{site}.csv": table("path,label,site", [(*pair, site) for pair in pairs[start::2]])
        for start, site in enumerate(("7", "north"))
    }
    _, images = listed(tmp_path, IMAGES | lists)
    assert {*images["site"]} == {"7", "north"}
