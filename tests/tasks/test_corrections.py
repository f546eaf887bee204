"""Corrected labels, from the file that a person has filled to the data."""

import csv
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


def row(path: str, data: bytes, corrected: str, file: str | None = None, number: int = 0):
    """A row of the CSV file, as a person has filled it."""
    where = {"path": path, "file": file or path, "row": number, "sha256": digest_of(data)}
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


def contents(project: Project) -> dict[str, bytes]:
    root = project.root / "images"
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*.*")}


def take_over(project: Project, rows, changes) -> flow.Import:
    """Takes labels over: what changes (path, before, after) is written beside the data alone."""
    images, file = contents(project), write_csv(project, *rows)
    plan = flow.plan(project, "photos", file)
    document = plan.document(is_applied=False)
    assert [tuple(each.values()) for each in document["changes"]] == changes
    assert contents(project) == images
    plan.apply()
    assert contents(project).items() > images.items()
    given = {each["path"]: each["sha256"].lower() for each in rows}
    assert read(project.root / "images") == {given[path]: after for path, _, after in changes}
    written = contents(project)
    again = flow.plan(project, "photos", file)
    again.apply()
    assert (again.changes, again.read, contents(project)) == ([], plan.read, written)
    return plan


FILES = {
    "train/cat/1.png": png(1),
    "train/cat/deep/2.png": png(2),
    "train/dog/1.png": png(3),
    "val/dog/4.png": png(4),
    "val/cat/5.png": png(5),
}
CORRECTED = [
    row("train/cat/1.png", png(1), "dog"),  # where another image has this name
    row("train/cat/deep/2.png", png(2), "dog"),
    row("val/dog/4.png", png(4), ""),  # not looked at
    row("val/cat/5.png", png(5), "cat"),  # right as it is
]
CORRECTED[1]["sha256"] = CORRECTED[1]["sha256"].upper()  # as a program may have written it


def test_corrections_are_written_beside_the_data_and_nothing_else_changes(project):
    write_files(project.root / "images", FILES)
    changes = [("train/cat/1.png", "cat", "dog"), ("train/cat/deep/2.png", "cat", "dog")]
    plan = take_over(project, CORRECTED, changes)
    assert plan.classes == {"cat": {"leave": 2, "come": 0}, "dog": {"leave": 0, "come": 2}}
    assert plan.read == 3
    assert plan.commands == ["retrain train photos"]


def test_what_others_have_in_data_stays_as_it_is_pinned(project):
    (project.root / "params.yaml").write_text(PARAMS.format(path="data/my photos"))
    write_files(project.root / "data/my photos", FILES)
    plan = flow.plan(project, "photos", write_csv(project, *CORRECTED))
    assert plan.commands[0] == "dvc add 'data/my photos'"
    assert plan.commands[1].startswith("git add data.dvc && git commit")


def test_the_rows_of_corrections_say_who_and_when(project):
    write_files(project.root / "images", FILES)
    project.git("init", "-q")
    project.git("config", "user.name", "Ada Lovelace")
    began = datetime.now(UTC).replace(microsecond=0)
    flow.plan(project, "photos", write_csv(project, CORRECTED[0])).apply()
    with (project.root / "images/corrections.csv").open(newline="") as stream:
        [written] = csv.DictReader(stream)
    assert (written["label"], written["by"]) == ("dog", "Ada Lovelace")
    assert began <= datetime.fromisoformat(written["at"]) <= datetime.now(UTC)


def test_copies_of_an_image_are_corrected_by_what_they_are(project):
    write_files(project.root / "images", FILES | {"train/dog/copy.png": png(1)})
    rows = [row("train/dog/copy.png", png(1), "dog"), row("train/cat/1.png", png(1), "dog")]
    take_over(project, rows, [("train/cat/1.png", "cat", "dog")])


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
        flow.plan(project, "photos", write_csv(project, CORRECTED[1], wrong))
    assert contents(project) == FILES


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no such file"),
        (b"corrected,path,file,row,sha256\ncat,1.png\n", "a.csv cannot be read: "),
        (b"a,b\n1,2\n", "a.csv cannot be read: no 'corrected'"),
        (b"corrected,path\nk\xe4tzchen,1.png\n", "no CSV file in UTF-8"),
    ],
)
def test_a_file_that_cannot_be_taken_over_is_refused(tmp_path, content, message):
    if content is not None:
        (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(UsageError, match=message):
        corrections.read(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("stored", "class_names"),
    [(["cat", "dog", "cat", "dog", "dog"], None), ([0, 1, 0, 1, 1], ["cat", "dog"])],
)
def test_images_of_parquet_files_are_corrected(project, stored, class_names):
    images, file = [png(number) for number in range(5)], "train.parquet"
    write_parquet(
        project.root / "images" / file, images, stored, names=class_names, row_group_size=2
    )
    rows = [row(f"{file}:{n}", images[n], label, file, n) for n, label in ((4, "dog"), (3, "cat"))]
    take_over(project, rows, [(f"{file}:3", "dog", "cat")])


def test_where_labels_cannot_be_changed_a_line_says_what_to_do(project):
    file = write_csv(project, row("1.png", png(1), "cat"))
    for path, refusal in {
        "data/photos": "dvc pull data.dvc",
        "s3://bucket/images": "correct them where it is",
        "corrected.csv": "is no folder",
    }.items():
        (project.root / "params.yaml").write_text(PARAMS.format(path=path))
        with pytest.raises(UsageError, match=refusal):
            flow.plan(project, "photos", file)


def test_a_correction_names_the_class_as_people_see_it(project):
    text = PARAMS.format(path="images").replace("    model", "      label_names: a.txt\n    model")
    (project.root / "params.yaml").write_text(text)
    files = {"n01/1.png": png(1), "n02/2.png": png(2), "a.txt": b"n01 tench\nn02 goldfish\n"}
    write_files(project.root / "images", files)
    rows = [row("n01/1.png", png(1), "goldfish")]
    take_over(project, rows, [("n01/1.png", "tench", "goldfish")])


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
    rows = [row("a/1.png", png(1), "a, b"), row("3.png", png(3), "cat")]
    take_over(project, rows, [("a/1.png", "cat", "a, b"), ("3.png", None, "cat")])
