"""Corrected labels, from the file that a person has filled to the data."""

from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import pandas as pd
import pytest

from flows import corrections as flow
from retrain.errors import UsageError
from retrain.project import Project
from tasks import corrections
from tasks.data import review_list
from tasks.data.corrections import read
from tasks.data.review_list import WRONG_LABEL
from tests.tasks.toy_data import parquet, png, write_files

PARAMS = """workloads:
  photos:
    data:
      path: {path}
      label_names: {names}
    model:
      family: vit
"""


@pytest.fixture
def project(tmp_path):
    """A project whose workload has images in class folders outside `data/`."""
    (tmp_path / "params.yaml").write_text(PARAMS.format(path="images", names="null"))
    return Project(tmp_path)


def row(path: str, data: bytes, corrected: str, file: str | None = None, number: int = 0):
    """A row of the CSV file, as a person has filled it."""
    where = {"path": path, "file": file or path, "row": number, "sha256": sha256(data).hexdigest()}
    given = where | {"why": WRONG_LABEL, "corrected": corrected}
    return dict.fromkeys((*review_list.COLUMNS, review_list.CORRECTED), "") | given


def write_csv(project: Project, *rows: dict) -> Path:
    file = project.root / "corrected.csv"
    pd.DataFrame(rows).to_csv(file, index=False)
    return file


def contents(project: Project) -> dict[str, bytes]:
    root = project.root / "images"
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*.*")}


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


PHOTOS = [png(number) for number in range(5)]
LISTED = {"a/1.png": PHOTOS[1], "a/2.png": PHOTOS[2], "3.png": PHOTOS[3]}
OF_LISTED = (
    [row("a/1.png", PHOTOS[1], "a, b"), row("3.png", PHOTOS[3], "cat")],
    [("a/1.png", "cat", "a, b"), ("3.png", None, "cat")],
)


PARQUET = parquet({"image": PHOTOS, "label": [*"cdcdd"]}, row_group_size=2)


@pytest.mark.parametrize(
    ("files", "rows", "changes"),
    [
        (
            FILES,
            CORRECTED,
            [("train/cat/1.png", "cat", "dog"), ("train/cat/deep/2.png", "cat", "dog")],
        ),
        (  # a copy is corrected by what it is
            FILES | {"train/dog/copy.png": png(1)},
            [row("train/dog/copy.png", png(1), "dog"), row("train/cat/1.png", png(1), "dog")],
            [("train/cat/1.png", "cat", "dog")],
        ),
        (
            {"a.parquet": PARQUET},
            [
                row(f"a.parquet:{number}", PHOTOS[number], label, "a.parquet", number)
                for number, label in ((4, "d"), (3, "c"))
            ],
            [("a.parquet:3", "d", "c")],
        ),
        (  # the class is named as people see it
            {"n1/1.png": png(1), "n2/2.png": png(2), "names.txt": b"n1 tench\nn2 goldfish\n"},
            [row("n1/1.png", png(1), "goldfish")],
            [("n1/1.png", "tench", "goldfish")],
        ),
        (
            LISTED | {"a.csv": b'id,path,label\n1,a/1.png,cat\n2,a/2.png,"a, b"\n3,3.png,\n'},
            *OF_LISTED,
        ),
        (
            LISTED
            | {
                "a.jsonl": b'{"file": "a/1.png", "class": "cat"}\n'
                b'{"file":"a/2.png","class":"a, b"}\n{"file":"3.png","class":null}'
            },
            *OF_LISTED,
        ),
    ],
)
def test_corrections_are_written_beside_the_data_and_nothing_else_changes(
    project, files, rows, changes
):
    if "names.txt" in files:
        (project.root / "params.yaml").write_text(PARAMS.format(path="images", names="names.txt"))
    write_files(project.root / "images", files)
    file = write_csv(project, *rows)
    plan = flow.plan(project, "photos", file)
    document = plan.document(is_applied=False)
    assert [tuple(each.values()) for each in document["changes"]] == changes
    assert contents(project) == files
    plan.apply()
    written = contents(project)
    assert written == files | {"corrections.csv": written["corrections.csv"]}
    given = {each["path"]: each["sha256"].lower() for each in rows}
    assert read(project.root / "images") == {given[path]: after for path, _, after in changes}
    again = flow.plan(project, "photos", file)
    again.apply()
    assert (again.changes, again.read, contents(project)) == ([], plan.read, written)


@pytest.mark.parametrize(
    ("path", "commands"),
    [
        ("images", ["retrain train photos"]),
        # What others have in data/ stays as it is pinned.
        (
            "data/my photos",
            [
                "dvc add 'data/my photos'",
                "git add data.dvc && git commit -m 'Labels of photos: 2 changed'",
            ],
        ),
    ],
)
def test_it_is_said_what_leaves_a_class_and_comes_to_it_and_what_to_do_then(
    project, path, commands
):
    (project.root / "params.yaml").write_text(PARAMS.format(path=path, names="null"))
    write_files(project.root / path, FILES)
    plan = flow.plan(project, "photos", write_csv(project, *CORRECTED))
    assert plan.classes == {"cat": {"leave": 2, "come": 0}, "dog": {"leave": 0, "come": 2}}
    assert (plan.read, plan.commands) == (3, commands)


def test_the_rows_of_corrections_say_who_and_when(project):
    write_files(project.root / "images", FILES)
    project.git("init", "-q")
    project.git("config", "user.name", "Ada Lovelace")
    began = datetime.now(UTC).replace(microsecond=0)
    flow.plan(project, "photos", write_csv(project, CORRECTED[0])).apply()
    [written] = pd.read_csv(project.root / "images/corrections.csv").to_dict("records")
    assert (written["label"], written["by"]) == ("dog", "Ada Lovelace")
    assert began <= datetime.fromisoformat(written["at"]) <= datetime.now(UTC)


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
    ("path", "refusal"),
    [
        ("data/photos", "dvc pull data.dvc"),
        ("s3://bucket/images", "correct them where it is"),
        ("corrected.csv", "is no folder"),
    ],
)
def test_where_labels_cannot_be_changed_a_line_says_what_to_do(project, path, refusal):
    (project.root / "params.yaml").write_text(PARAMS.format(path=path, names="null"))
    with pytest.raises(UsageError, match=refusal):
        flow.plan(project, "photos", write_csv(project, row("1.png", png(1), "cat")))
