"""Corrected labels, from the file that a person has filled to the data."""

import csv
import getpass
import os
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import pytest

from flows import corrections as flow
from retrain.errors import UsageError
from retrain.project import Project
from tasks import corrections
from tasks.data import review_list
from tasks.data.corrections import read
from tasks.data.review_list import WRONG_LABEL
from tests.tasks.toy_data import png, write_files, write_parquet

PARAMS = "workloads:\n  photos:\n    data:\n      path: {path}\n    model:\n      family: vit\n"


@pytest.fixture
def project(tmp_path):
    """A project whose workload has images in class folders outside `data/`."""
    (tmp_path / "params.yaml").write_text(PARAMS.format(path="images"))
    return Project(tmp_path)


def row(path: str, data: bytes, corrected: str, number: int = 0):
    """A row of the CSV file, as a person has filled it."""
    digest = digest_of(data)
    where = {"path": path, "file": path, "row": number, "sha256": digest}
    empty = dict.fromkeys((*review_list.COLUMNS, review_list.CORRECTED), "")
    return empty | where | {"why": WRONG_LABEL, "corrected": corrected}


def digest_of(data: bytes) -> str:
    return sha256(data).hexdigest()


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


def test_corrections_are_written_beside_the_data_and_nothing_else_changes(project):
    root = project.root / "images"
    write_files(root, FILES)
    file = write_csv(project, *corrected())
    plan = flow.plan(project, "photos", file)
    assert names(project) == sorted(FILES)
    assert plan.classes == {"cat": {"leave": 2, "come": 0}, "dog": {"leave": 0, "come": 2}}
    assert plan.read == 3
    assert plan.document(is_applied=False)["changes"] == [
        {"path": "train/cat/1.png", "before": "cat", "after": "dog"},
        {"path": "train/cat/deep/2.png", "before": "cat", "after": "dog"},
    ]
    plan.apply()
    assert {name: (root / name).read_bytes() for name in FILES} == FILES
    assert names(project) == sorted([*FILES, "corrections.csv"])
    assert read(root) == {digest_of(png(1)): "dog", digest_of(png(2)): "dog"}
    written = (root / "corrections.csv").read_bytes()
    again = flow.plan(project, "photos", file)
    assert (again.changes, again.read) == ([], 3)
    again.apply()
    assert (root / "corrections.csv").read_bytes() == written


def test_what_others_have_in_data_stays_as_it_is_pinned(project):
    (project.root / "params.yaml").write_text(PARAMS.format(path="data/my photos"))
    write_files(project.root / "data/my photos", FILES)
    plan = flow.plan(project, "photos", write_csv(project, *corrected()))
    assert plan.commands[0] == "dvc add 'data/my photos'"
    assert plan.commands[1].startswith("git add data.dvc && git commit")


def test_the_rows_of_corrections_say_who_and_when(project, monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    root = project.root / "images"
    write_files(root, FILES)
    began = datetime.now(UTC).replace(microsecond=0)
    file = write_csv(project, row("val/cat/5.png", png(5), "dog"))
    flow.plan(project, "photos", file).apply()
    with (root / "corrections.csv").open(newline="") as stream:
        [written] = csv.DictReader(stream)
    assert (written["label"], written["by"]) == ("dog", getpass.getuser())
    assert began <= datetime.fromisoformat(written["at"]) <= datetime.now(UTC)
    project.git("init", "-q")
    project.git("config", "user.name", "Ada Lovelace")
    assert flow.plan(project, "photos", file).by == "Ada Lovelace"


def test_copies_of_an_image_are_corrected_by_what_they_are(project):
    write_files(project.root / "images", FILES | {"train/dog/copy.png": png(1)})
    rows = [row("train/dog/copy.png", png(1), "dog"), row("train/cat/1.png", png(1), "dog")]
    plan = flow.plan(project, "photos", write_csv(project, *rows))
    assert [change.path for change in plan.changes] == ["train/cat/1.png"]
    plan.apply()
    assert flow.plan(project, "photos", project.root / "corrected.csv").changes == []


def test_a_list_that_was_filled_in_is_read_as_excel_writes_it(project):
    write_files(project.root / "images", FILES)
    file = write_csv(project, *corrected())
    expected = corrections.read(file)
    file.write_text(file.read_text().replace(digest_of(png(1)), digest_of(png(1)).upper()))
    text = "\ufeff" + file.read_bytes().decode().replace(",", ";")
    file.write_text(text, encoding="utf-8", newline="")
    assert corrections.read(file) == expected
    assert len(expected) == 3
    file.write_bytes(text.replace("train/cat", "train/kätzchen").encode("cp1252", "replace"))
    with pytest.raises(UsageError, match="no CSV file in UTF-8"):
        corrections.read(file)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (row("train/cat/1.png", png(9), "dog"), "train/cat/1.png has changed or is gone since"),
        (row("train/cat/9.png", png(9), "dog"), "train/cat/9.png has changed or is gone since"),
        (row("train/cat/1.png", png(1), "dgo"), "no class of the data. Did you mean 'dog'?"),
        (row("train/cat/deep/2.png", png(2), "cat"), "is labelled dog and cat: decide on one"),
        (row("other/name.png", png(2), "cat"), "is labelled dog and cat: decide on one"),
        (row("train/cat/1.png", png(1), "dog") | {"sha256": "../x"}, "'../x' is no SHA-256"),
    ],
)
def test_what_is_wrong_is_found_before_anything_changes(project, wrong, message):
    write_files(project.root / "images", FILES)
    with pytest.raises(UsageError, match=message.replace("?", r"\?")):
        flow.plan(project, "photos", write_csv(project, corrected()[1], wrong))
    assert names(project) == sorted(FILES)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("short.csv", "corrected,path,file,row,sha256\ncat,1.png\n", "short.csv cannot be read: "),
        ("other.csv", "a,b\n1,2\n", "other.csv cannot be read: no 'corrected'"),
    ],
)
def test_a_file_that_cannot_be_taken_over_is_refused(project, name, text, message):
    file = project.root / name
    with pytest.raises(UsageError, match="there is no such file"):
        corrections.read(file)
    file.write_text(text)
    with pytest.raises(UsageError, match=message):
        corrections.read(file)


IMAGES = [png(number) for number in range(5)]


@pytest.mark.parametrize(
    ("stored", "class_names"),
    [(["cat", "dog", "cat", "dog", "dog"], None), ([0, 1, 0, 1, 1], ["cat", "dog"])],
)
def test_images_of_parquet_files_are_corrected(project, stored, class_names):
    file = project.root / "images" / "train.parquet"
    write_parquet(file, IMAGES, stored, names=class_names, row_group_size=2)
    before = file.read_bytes()
    rows = [
        row(f"train.parquet:{number}", IMAGES[number], label, number=number)
        | {"file": "train.parquet"}
        for number, label in ((4, "dog"), (3, "cat"))
    ]
    plan = flow.plan(project, "photos", write_csv(project, *rows))
    assert plan.document(is_applied=False)["changes"] == [
        {"path": "train.parquet:3", "before": "dog", "after": "cat"}
    ]
    plan.apply()
    assert file.read_bytes() == before
    assert read(file.parent) == {digest_of(IMAGES[3]): "cat"}
    assert flow.plan(project, "photos", project.root / "corrected.csv").changes == []


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


def test_a_correction_names_the_class_as_people_see_it(project):
    text = PARAMS.format(path="images").replace("    model", "      label_names: names\n    model")
    (project.root / "params.yaml").write_text(text)
    files = {"n01/1.png": png(1), "n02/2.png": png(2), "names": b"n01 tench\nn02 goldfish\n"}
    write_files(project.root / "images", files)
    plan = flow.plan(project, "photos", write_csv(project, row("n01/1.png", png(1), "goldfish")))
    assert plan.classes["tench"] == {"leave": 1, "come": 0}
    plan.apply()
    assert read(project.root / "images") == {digest_of(png(1)): "goldfish"}
    assert names(project) == sorted([*files, "corrections.csv"])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("labels.csv", 'id,path,label\n1,a/1.png,cat\n2,a/2.png,"a, b"\n3,3.png,\n'),
        (
            "labels.jsonl",
            '{"file": "a/1.png", "class": "cat"}\n{"file":"a/2.png","class":"a, b"}\n'
            '{"file":"3.png","class":null}',
        ),
    ],
)
def test_listed_images_are_corrected_and_the_list_stays(project, name, text):
    files = {"a/1.png": png(1), "a/2.png": png(2), "3.png": png(3), name: text.encode()}
    write_files(project.root / "images", files)
    file = write_csv(project, row("a/1.png", png(1), "a, b"), row("3.png", png(3), "cat"))
    plan = flow.plan(project, "photos", file)
    assert plan.document(is_applied=False)["changes"] == [
        {"path": "a/1.png", "before": "cat", "after": "a, b"},
        {"path": "3.png", "before": None, "after": "cat"},
    ]
    plan.apply()
    assert (project.root / "images" / name).read_text() == text
    assert read(project.root / "images") == {digest_of(png(1)): "a, b", digest_of(png(3)): "cat"}
    assert flow.plan(project, "photos", file).changes == []
