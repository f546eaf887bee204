"""Tables that list images with their classes, from `pull` on."""

import json

import pandas as pd
import pytest

from retrain.project import Project
from retrain.store import Artifact
from retrain.workload import Checks, Data
from tasks.pull.step import data_version, pull
from tasks.validate.step import validate
from tests.tasks.pull.pulling import make_workspace
from tests.tasks.toy_data import png, workspace, write_files

LABELS = {f"photos/{number}.png": ("cat", "dog")[number % 2] for number in range(24)}
IMAGES = {name: png(number) for number, name in enumerate(LABELS)}
CHECKS = Checks(min_images_per_class=3)


def table(head, rows, separator=","):
    return "\n".join([head, *(separator.join(row) for row in rows)]).encode()


CASES = {
    "labels.csv": table("path,label", LABELS.items()),
    "photos/a.csv": table('"Filename";"Class"', LABELS.items(), ";").replace(b"photos/", b""),
    "labels.tsv": b"\xef\xbb\xbf" + table("image\tcategory", LABELS.items(), "\t"),
    "all.jsonl": "\n".join(
        json.dumps({"file_name": name, "label": label}) for name, label in LABELS.items()
    ).encode(),
}


def pulled(tmp_path, files, **data):
    """The output of `pull` of a folder with files, whose format it recognises."""
    write_files(tmp_path / "given", files)
    project = Project(tmp_path / "clone")
    project.root.mkdir(parents=True)
    config = Data(path=str(tmp_path / "given"), **data)
    space = make_workspace(tmp_path / "pulled", project)
    facts = pull(config, data_version(config, project), space)
    return config, Artifact("pull", "key", "digest", space.folder, facts)


def validated(tmp_path, files, checks=CHECKS, **data):
    """The accepted images, as validation finds them."""
    config, artifact = pulled(tmp_path, files, **data)
    space = workspace(tmp_path, "validate")
    validate(config, checks, artifact, space)
    return artifact.facts["format"], pd.read_parquet(space.folder / "images.parquet")


@pytest.mark.parametrize("name", CASES)
def test_listed_images_are_recognised_and_have_their_classes(tmp_path, name):
    files = IMAGES | {name: CASES[name], "photos/not listed.png": png(99), "notes.json": b"[1, 2]"}
    found, images = validated(tmp_path, files)
    assert found == "table"
    assert dict(zip(images["path"], images["label"], strict=True)) == LABELS
    assert {*images["split"]} == {"train", "val", "test"}


def test_the_split_and_the_group_are_columns_of_the_table(tmp_path):
    rows = [
        (name, label, ("train", "valid", "TEST")[number % 3], f"p{number}")
        for number, (name, label) in enumerate(LABELS.items())
    ]
    files = IMAGES | {"labels.csv": table("path,label,split,patient", rows)}
    _, images = validated(tmp_path, files, group="patient")
    splits = dict(zip(images["path"], images["split"], strict=True))
    assert splits == {
        name: ("train", "val", "test")[number % 3] for number, name in enumerate(LABELS)
    }


def test_the_images_of_a_group_in_a_table_stay_together(tmp_path):
    rows = [(name, label, str(n // 2 % 6)) for n, (name, label) in enumerate(LABELS.items())]
    _, images = validated(
        tmp_path, IMAGES | {"labels.csv": table("path,label,patient", rows)}, group="patient"
    )
    patients = images["path"].map({name: patient for name, _, patient in rows})
    assert (images.groupby(patients)["split"].nunique() == 1).all()


@pytest.mark.parametrize("name", ["{}.csv", "lists/{}2017.csv", "{}/list.csv"])
def test_the_split_is_in_the_name_of_the_list(tmp_path, name):
    files = dict(IMAGES)
    for part, split in enumerate(("train", "val", "test")):
        rows = [pair for n, pair in enumerate(LABELS.items()) if n % 3 == part]
        files[name.format(split)] = table("path,label", rows)
    _, images = validated(tmp_path, files)
    assert images.groupby("split").size().to_dict() == {"train": 8, "val": 8, "test": 8}


def test_columns_of_other_names_are_named(tmp_path):
    files = IMAGES | {"labels.csv": table("place,species", LABELS.items())}
    _, images = validated(
        tmp_path, files, format="table", image_column="place", label_column="species"
    )
    assert {*images["label"]} == {"cat", "dog"}


def test_a_table_that_repeats_the_folders_changes_nothing(tmp_path):
    images = {f"{label}/{name[7:]}": IMAGES[name] for name, label in LABELS.items()}
    rows = [(name, name[:3]) for name in images]
    assert pulled(tmp_path, images | {"all.csv": table("path,label", rows)})[1].facts == {
        "format": "folders"
    }


def test_a_list_of_other_files_beside_class_folders_is_asked_about(tmp_path):
    images = {f"{label}/{name[7:]}": IMAGES[name] for name, label in LABELS.items()}
    files = images | {"answers.csv": table("path,label", [("elsewhere.png", "cat")])}
    with pytest.raises(ValueError, match=r"If the folders are the classes, set"):
        pulled(tmp_path, files)
    assert pulled(tmp_path / "set", files, format="folders")[1].facts == {"format": "folders"}


@pytest.mark.parametrize("notes", [{"notes.jsonl": b"{"}, {f"{n}.csv": b"a" for n in range(101)}])
def test_files_beside_class_folders_that_list_nothing_mean_nothing(tmp_path, notes):
    images = {f"{label}/{name[7:]}": IMAGES[name] for name, label in LABELS.items()}
    assert pulled(tmp_path, images | notes)[1].facts == {"format": "folders"}


def test_an_image_without_a_class_is_a_bad_one(tmp_path):
    rows = [(name, label if number else "") for number, (name, label) in enumerate(LABELS.items())]
    tolerant = Checks(min_images_per_class=3, max_bad_fraction=0.5)
    _, images = validated(tmp_path, IMAGES | {"all.csv": table("path,label", rows)}, tolerant)
    assert {*LABELS} - {*images["path"]} == {"photos/0.png"}


PATHS = {
    "../given/photos/1.png": "no file of data.path",
    "photos/../../secret.png": "no file of data.path",
    "/etc/passwd": "no file of data.path",
    "C:\\photos\\1.png": "no file of data.path",
    "https://example.com/1.png": "no file of data.path",
    "s3://bucket/1.png": "no file of data.path",
    "photos/99.png": r"photos/99\.png, which is not in data\.path\.",
}


@pytest.mark.parametrize("path", PATHS)
def test_a_path_that_leads_elsewhere_is_refused(tmp_path, path):
    files = IMAGES | {"labels.csv": table("path,label", [*LABELS.items(), (path, "cat")])}
    with pytest.raises(ValueError, match=f"labels.csv names .*{PATHS[path]}") as caught:
        pulled(tmp_path, files)
    assert "\n" not in str(caught.value)


BROKEN = {
    "two classes in a table": (
        "all.csv",
        table("path,label", [*LABELS.items(), ("photos/1.png", "cat")]),
        "all.csv lists photos/1.png with two values of label, dog and cat: an image has one",
    ),
    "an unknown split": (
        "all.csv",
        table("path,label,split", [(*pair, "holdout") for pair in LABELS.items()]),
        "is in a split 'holdout': name train, val or test",
    ),
    "no JSON": ("all.jsonl", b"{", "all.jsonl cannot be read as a table"),
    "an ambiguous name": (
        "all.csv",
        table("path,label", [("1.png", "cat")]),
        r"names 1\.png, which may be photos/(a/)?1.png or photos/(a/)?1.png",
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_list_is_named_with_what_is_wrong(tmp_path, fault):
    name, content, message = BROKEN[fault]
    images = IMAGES | ({"photos/a/1.png": png(1)} if fault == "an ambiguous name" else {})
    with pytest.raises(ValueError, match=message):
        pulled(tmp_path, images | {name: content})


def test_a_column_with_values_of_several_types_is_named(tmp_path):
    files = dict(IMAGES)
    for number, site in enumerate(("7", "north")):
        rows = [(*pair, site) for pair in [*LABELS.items()][number::2]]
        files[f"{number}.csv"] = table("path,label,site", rows)
    with pytest.raises(ValueError, match="The list of the images: "):
        validated(tmp_path, files, group="site")
