"""Corrected labels, from the file that a person has filled to the data."""

import csv
import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from flows import labels as flow
from retrain.errors import UsageError
from retrain.project import Project
from tasks.data import review_list
from tasks.data.raw_dataset import open_format
from tasks.data.review_list import WRONG_LABEL
from tasks.labels import corrections, parquet
from tests.tasks.toy_data import png, write_files, write_parquet

PARAMS = "workloads:\n  photos:\n    data:\n      path: {path}\n    model:\n      family: vit\n"


@pytest.fixture
def project(tmp_path):
    """A project whose workload has images in class folders outside `data/`."""
    (tmp_path / "params.yaml").write_text(PARAMS.format(path="images"))
    return Project(tmp_path)


def row(path: str, data: bytes, corrected: str, why: str = WRONG_LABEL, number: int = 0):
    """A row of the CSV file, as a person has filled it."""
    digest = sha256(data).hexdigest()
    where = {"path": path, "file": path, "row": number, "sha256": digest}
    empty = dict.fromkeys((*review_list.schema().names, review_list.CORRECTED), "")
    return empty | where | {"why": why, "corrected": corrected}


def write_csv(project: Project, *rows: dict) -> Path:
    file = project.root / "corrected.csv"
    with file.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    return file


def names(project: Project) -> list[str]:
    root = project.root / "images"
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


FILES = {
    "train/cat/1.png": png(1),
    "train/cat/deep/2.png": png(2),
    "train/dog/1.png": png(3),
    "val/dog/4.png": png(4),
    "val/cat/5.png": png(5),
}


def corrected() -> list[dict]:
    return [
        row("train/cat/1.png", png(1), "dog"),  # where another image has this name
        row("train/cat/deep/2.png", png(2), "dog"),
        row("val/dog/4.png", png(4), ""),  # not looked at
        row("val/cat/5.png", png(5), "cat"),  # right as it is
    ]


AFTER = [
    f"train/dog/1-{sha256(png(1)).hexdigest()[:8]}.png",
    "train/dog/1.png",
    "train/dog/deep/2.png",
    "val/cat/5.png",
    "val/dog/4.png",
]


def test_images_are_moved_to_the_folder_of_their_class(project):
    write_files(project.root / "images", FILES)
    plan = flow.plan(project, "photos", write_csv(project, *corrected()))
    assert names(project) == sorted(FILES)
    assert plan.classes == {"cat": {"leave": 2, "come": 0}, "dog": {"leave": 0, "come": 2}}
    assert plan.read == 3
    plan.apply()
    assert names(project) == AFTER
    assert (project.root / "images" / AFTER[0]).read_bytes() == png(1)


@pytest.mark.parametrize("done", [0, 1, 2])
def test_an_import_that_was_ended_goes_on_where_it_was(project, done):
    write_files(project.root / "images", FILES)
    file = write_csv(project, *corrected())
    for step in flow.plan(project, "photos", file).steps[:done]:
        step()
    again = flow.plan(project, "photos", file)
    assert len(again.changes) == 2 - done
    again.apply()
    assert names(project) == AFTER
    assert flow.plan(project, "photos", file).changes == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (row("train/cat/1.png", png(9), "dog"), "train/cat/1.png has changed since it was listed"),
        (row("train/cat/9.png", png(9), "dog"), "train/cat/9.png is not where it was listed"),
        (row("train/cat/1.png", png(1), "dgo"), "no class of the data. Did you mean 'dog'?"),
        (row("train/cat/deep/2.png", png(2), "cat"), "is labelled dog and cat: decide on one"),
    ],
)
def test_what_is_wrong_is_found_before_anything_changes(project, wrong, message):
    write_files(project.root / "images", FILES)
    with pytest.raises(UsageError, match=message.replace("?", r"\?")):
        flow.plan(project, "photos", write_csv(project, corrected()[1], wrong))
    assert names(project) == sorted(FILES)


def test_images_that_were_to_be_labelled_are_added(project):
    write_files(project.root / "images", FILES)
    digest = sha256(png(7)).hexdigest()
    copies = {f"{digest}.png": png(7)}
    write_files(project.root / "reports" / "photos" / "select-images", copies)
    new = row("camera 1/1.png", png(7), "dog", why=review_list.TO_LABEL)
    file = write_csv(project, new)
    plan = flow.plan(project, "photos", file)
    assert plan.document(is_applied=False)["changes"] == [
        {"path": "camera 1/1.png", "before": None, "after": "dog"}
    ]
    plan.apply()
    assert names(project) == sorted([*FILES, f"train/dog/1-{digest[:8]}.png"])
    assert flow.plan(project, "photos", file).changes == []


EXPORTS = Path(__file__).parent / "label_studio"  # by Label Studio 1.23.2; the JSON is shortened


@pytest.mark.parametrize("name", ["project.json", "project-min.json", "project.csv"])
def test_each_export_of_label_studio_has_what_was_submitted(project, name):
    write_files(
        project.root / "images",
        {
            'train/cat/1, "é".png': b"1",  # the model's answer was confirmed
            "train/cat/2.png": b"2",  # the data's label was submitted
            "train/dog/3.png": b"3",  # skipped
            "train/dog/4.png": b"4",  # a draft
            "train/dog/5.png": b"5",  # skipped, and then submitted
            "train/cat/6.png": b"6",  # nobody has opened it
        },
    )
    labelled = corrections.read(EXPORTS / name)
    assert {each.path: (each.label, each.is_new) for each in labelled} == {
        'train/cat/1, "é".png': ("dog", False),
        "train/cat/2.png": ("cat", False),
        "train/dog/5.png": ("cat", False),
        "camera 1/7.png": ("cat", True),
    }
    copies = {sha256(b"7").hexdigest() + ".png": b"7"}
    write_files(project.root / "reports" / "photos" / "select-images", copies)
    flow.plan(project, "photos", EXPORTS / name).apply()
    assert names(project) == [
        "train/cat/2.png",
        "train/cat/5.png",
        "train/cat/6.png",
        "train/cat/7.png",
        'train/dog/1, "é".png',
        "train/dog/3.png",
        "train/dog/4.png",
    ]


def test_labels_of_tasks_of_an_earlier_version_are_read(project):
    text = (EXPORTS / "project.json").read_text()
    earlier = project.root / "earlier.json"
    earlier.write_text(text.replace('"from_name": "corrected"', '"from_name": "label"'))
    assert corrections.read(earlier) == corrections.read(EXPORTS / "project.json")


def test_two_annotators_who_differ_are_asked_to_decide(project):
    rows = json.loads((EXPORTS / "project-min.json").read_bytes())
    exported = project.root / "export.json"
    exported.write_text(json.dumps([*rows, rows[0] | {"corrected": "cat"}]))
    with pytest.raises(UsageError, match="is labelled dog and cat: decide on one"):
        corrections.read(exported)
    exported.write_text(json.dumps([rows[0] | {"corrected": {"choices": ["cat", "dog"]}}]))
    with pytest.raises(UsageError, match="which is no class of the data"):
        write_files(project.root / "images", FILES)
        flow.plan(project, "photos", exported)


def task(data: dict, *choices: str, cancelled: bool = False) -> dict:
    """A task as Label Studio exports it."""
    result = {"from_name": "corrected", "to_name": "image", "type": "choices"}
    annotation = {
        "was_cancelled": cancelled,
        "result": [result | {"value": {"choices": [choice]}} for choice in choices],
    }
    return {"data": data, "annotations": [annotation] if choices else []}


def test_an_export_of_label_studio_says_the_same(project):
    exported = project.root / "export.json"
    first, second, _, last = corrected()
    tasks = [task(first, "dog"), task(second, "dog"), task(last), task(last, "dog", cancelled=True)]
    exported.write_text(json.dumps(tasks))
    found = corrections.read(exported)
    assert found == corrections.read(write_csv(project, first, second))
    exported.write_text(json.dumps([task(first, "dog", "cat")]))
    with pytest.raises(UsageError, match="is labelled dog and cat: decide on one"):
        corrections.read(exported)
    exported.write_text(json.dumps({"a": 1}))
    with pytest.raises(UsageError, match=r"export.json cannot be read: "):
        corrections.read(exported)
    with pytest.raises(UsageError, match="there is no such file"):
        corrections.read(project.root / "nothing.csv")
    (project.root / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UsageError, match="no 'corrected'"):
        corrections.read(project.root / "other.csv")


IMAGES = [png(number) for number in range(5)]


@pytest.mark.parametrize(
    ("stored", "class_names", "after"),
    [
        (["cat", "dog", "cat", "dog", "dog"], None, ["cat", "dog", "cat", "cat", "dog"]),
        ([0, 1, 0, 1, 1], ["cat", "dog"], [0, 1, 0, 0, 1]),
    ],
)
def test_the_column_of_parquet_files_is_written_anew(project, stored, class_names, after):
    file = project.root / "images" / "train.parquet"
    write_parquet(file, IMAGES, stored, names=class_names, row_group_size=2)
    before = pq.read_table(file)
    path = "train.parquet:3"
    filled = row(path, IMAGES[3], "cat", number=3) | {"file": "train.parquet"}
    same = row("train.parquet:4", IMAGES[4], "dog", number=4) | {"file": "train.parquet"}
    plan = flow.plan(project, "photos", write_csv(project, filled, same))
    assert [vars(change) for change in plan.changes] == [
        {"path": path, "before": "dog", "after": "cat"}
    ]
    plan.apply()
    written = pq.read_table(file)
    assert written["label"].to_pylist() == after
    assert written.drop_columns("label").equals(before.drop_columns("label"))
    assert written.schema.equals(before.schema, check_metadata=True)
    assert pq.ParquetFile(file).num_row_groups == 3
    assert flow.plan(project, "photos", project.root / "corrected.csv").changes == []


def test_an_image_of_a_parquet_file_that_has_changed_is_refused(project):
    file = project.root / "images" / "train.parquet"
    write_parquet(file, IMAGES, ["cat", "dog", "cat", "dog", "dog"])
    data = open_format("parquet", file.parent)
    one = corrections.Correction("a", "train.parquet", 9, "0", "cat", is_new=False)
    for wrong in (one, replace(one, row=1), replace(one, file="gone.parquet")):
        with pytest.raises(UsageError, match=r"has changed|is not in the data"):
            parquet.plan(data, [wrong], {"cat": "cat", "dog": "dog"})


def test_where_labels_cannot_be_changed_a_line_says_what_to_do(project):
    file = write_csv(project, row("1.png", png(1), "cat"))

    def refusal(path: str) -> str:
        (project.root / "params.yaml").write_text(PARAMS.format(path=path))
        with pytest.raises(UsageError) as error:
            flow.plan(project, "photos", file)
        return str(error.value)

    assert "dvc pull data.dvc" in refusal("data/photos")
    assert "correct them where it is" in refusal("s3://bucket/images")
    assert "is no folder" in refusal("corrected.csv")


def test_names_of_classes_lead_back_to_their_folders(project):
    text = PARAMS.format(path="images").replace("    model", "      label_names: names\n    model")
    (project.root / "params.yaml").write_text(text)
    files = {"n01/1.png": png(1), "n02/2.png": png(2), "names": b"n01 tench\nn02 goldfish\n"}
    write_files(project.root / "images", files)
    file = write_csv(project, row("n01/1.png", png(1), "goldfish"))
    flow.plan(project, "photos", file).apply()
    assert names(project) == ["n02/1.png", "n02/2.png", "names"]


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        (
            "labels.csv",
            '\ufeffid,path,label\r\n1,a/1.png,cat\r\n2,a/2.png,"a, b"\r\n3,3.png,\r\n',
            '\ufeffid,path,label\r\n1,a/1.png,"a, b"\r\n2,a/2.png,"a, b"\r\n3,3.png,cat\r\n',
        ),
        (
            "labels.jsonl",
            '{"file": "a/1.png", "class": "cat"}\n{"file":"a/2.png","class":"a, b"}\n'
            '{"file":"3.png","class":null}',
            '{"file": "a/1.png", "class": "a, b"}\n{"file":"a/2.png","class":"a, b"}\n'
            '{"file": "3.png", "class": "cat"}',
        ),
    ],
)
def test_the_labels_of_a_table_change_and_nothing_else_does(project, name, before, after):
    files = {"a/1.png": png(1), "a/2.png": png(2), "3.png": png(3), name: before.encode()}
    write_files(project.root / "images", files | {"notes.csv": b"who,what\n1,2\n"})
    rows = [row("a/1.png", png(1), "a, b"), row("3.png", png(3), "cat")]
    file = write_csv(project, *rows)
    plan = flow.plan(project, "photos", file)
    assert [vars(change) for change in plan.changes] == [
        {"path": "a/1.png", "before": "cat", "after": "a, b"},
        {"path": "3.png", "before": None, "after": "cat"},
    ]
    plan.apply()
    assert (project.root / "images" / name).read_bytes().decode() == after
    assert flow.plan(project, "photos", file).changes == []
    for wrong, message in (
        (row("a/2.png", png(9), "cat"), "has changed since"),
        (row("a/9.png", png(9), "cat"), "is not in the data any more"),
        (row("9.png", png(9), "cat", why=review_list.TO_LABEL), "no images are added here"),
    ):
        with pytest.raises(UsageError, match=message):
            flow.plan(project, "photos", write_csv(project, wrong))
