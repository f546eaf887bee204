"""The step itself: archives, what is no data set, and which paths are none."""

import io
import os
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest

from retrain.errors import UsageError
from retrain.params import load_workload
from retrain.project import Project
from retrain.runs import preflight
from retrain.workload import Data
from tasks.pull.step import data_version, pull
from tests.tasks.pull.pulling import failing_write, make_files, make_workspace, pulled

ROOT = Path(__file__).parents[3]
PETS = {"cat/1.png": "1", "dog/2.png": "2"}


def make_zip(path, files):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)


def make_tar(path, files, mode="w:gz"):
    with tarfile.open(path, mode) as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))


@pytest.mark.parametrize("mode", ["zip", "w:", "w:gz", "w:bz2", "w:xz"])
def test_a_zip_or_a_tar_in_any_compression_is_unpacked(project, tmp_path, mode):
    if mode == "zip":
        make_zip(tmp_path / "pets", PETS)
    else:
        make_tar(tmp_path / "pets", PETS, mode)
    _, files, facts = pulled(project, tmp_path / "pets")
    assert (files, facts) == (PETS, {"format": "folders"})


def test_a_folder_that_holds_all_of_an_archive_is_taken_away(project, tmp_path):
    wrapped = {f"pets-1.0/images/{name}": text for name, text in PETS.items()}
    make_zip(tmp_path / "pets.zip", wrapped | {"__MACOSX/pets-1.0/images/cat/._1.png": "fork"})
    assert pulled(project, tmp_path / "pets.zip")[1] == PETS


def test_a_zip_whose_names_have_backslashes_has_folders(project, tmp_path):
    make_zip(
        tmp_path / "pets.zip", {"pets\\cat\\": "", "pets\\cat\\1.png": "1", "pets\\dog\\2.png": "2"}
    )
    assert pulled(project, tmp_path / "pets.zip")[1] == PETS
    make_zip(tmp_path / "bad.zip", {"cat\\1.png": "1", "dog\\..\\..\\..\\out.png": "out"})
    assert set(pulled(project, tmp_path / "bad.zip")[1]) == {"cat/1.png", "dog/out.png"}
    assert not [*tmp_path.rglob("out.png")]


def test_a_name_in_a_tar_that_is_not_utf_8_is_shown(project, tmp_path):
    make_tar(tmp_path / "pets.tar", PETS | {os.fsdecode(b"dog/\xff.png"): "3"}, "w")
    with pytest.raises(ValueError, match=r"^The name 'dog/.udcff\.png' is not UTF-8"):
        pulled(project, tmp_path / "pets.tar")


def test_an_archive_among_other_files_stays_one(project, tmp_path):
    make_files(tmp_path / "pets", "cat/1.png", "dog/2.png")
    make_zip(tmp_path / "pets" / "extra.zip", PETS)
    _, files, _ = pulled(project, tmp_path / "pets")
    assert set(files) == {"cat/1.png", "dog/2.png", "extra.zip"}


@pytest.mark.parametrize("name", ["../out.png", "/tmp/out.png", "cat/../../out.png"])
def test_an_archive_that_leads_out_of_its_folder_leaves_nothing_there(project, tmp_path, name):
    files = PETS | {name: "out"}
    make_zip(tmp_path / "bad.zip", files)
    _, unpacked, _ = pulled(project, tmp_path / "bad.zip")
    assert sorted(unpacked.values()) == ["1", "2", "out"]
    make_tar(tmp_path / "bad.tar", files)
    if not name.startswith("/"):  # which is taken away
        with pytest.raises(ValueError, match=r"bad\.tar cannot be unpacked: .*outside"):
            pulled(project, tmp_path / "bad.tar")
    assert not list(tmp_path.rglob("out.png"))


@pytest.mark.parametrize(
    ("name", "kind", "to"),
    [
        ("pipe/1.png", tarfile.FIFOTYPE, ""),
        # Inside the archive, until the folders that wrap all of it are taken away.
        ("w/v/cat/1.png", tarfile.SYMTYPE, "../../../../secret.png"),
        ("round", tarfile.SYMTYPE, "round"),
        ("cat/1.png", tarfile.LNKTYPE, "w/v/dog/2.png"),
    ],
)
def test_a_link_or_a_pipe_in_an_archive_is_refused(project, tmp_path, name, kind, to):
    make_tar(tmp_path / "bad.tar", {f"w/v/{each}": text for each, text in PETS.items()}, "w")
    with tarfile.open(tmp_path / "bad.tar", "a") as archive:
        member = tarfile.TarInfo(name.replace("1.png", "link.png"))
        member.type, member.linkname = kind, to
        archive.addfile(member)
    with pytest.raises(
        ValueError, match=r"The data's archive has a link, '.*'\. Pack|cannot be unp"
    ):
        pulled(project, tmp_path / "bad.tar")


@pytest.mark.parametrize(
    "make",
    [
        lambda path: make_zip(path, {"cat": "1", "cat/1.png": "2"}),  # a file and a folder
        lambda path: make_tar(path, {"cat": "1", "cat/1.png": "2"}),
        lambda path: (make_tar(path, PETS | {"x": "1" * 100_000}), os.truncate(path, 150)),
    ],
)
def test_a_broken_archive_is_refused_and_leaves_nothing(project, tmp_path, make):
    make(tmp_path / "pets.tgz")
    data, space = Data(path=str(tmp_path / "pets.tgz")), make_workspace(tmp_path / "work", project)
    with pytest.raises(ValueError, match=r"pets\.tgz cannot be unpacked"):
        pull(data, data_version(data, project), space)
    assert not space.scratch.exists()


@pytest.mark.parametrize("path", ["{}/pets", "{}/pets.zip"])
def test_a_disk_that_takes_no_more_is_said_in_one_sentence_and_leaves_nothing(
    project, tmp_path, path
):
    files = {name: text * 2_000_000 for name, text in PETS.items()}
    make_zip(tmp_path / "pets.zip", files)
    for name, text in files.items():
        (tmp_path / "pets" / name).parent.mkdir(parents=True)
        (tmp_path / "pets" / name).write_text(text)
    said = failing_write(project, path.format(tmp_path))
    assert said.startswith("[Errno 27] File too large")
    assert said.count("\n") == 1
    assert pulled(project, path.format(tmp_path))[1] == files


@pytest.mark.parametrize(
    "path",
    [
        "",
        " ",
        ".",
        "./.",
        "data/..",
        "..",
        "/",
        "//",
        "{link}",
        "{root}",
        "file:///",
        "file://{root}",
        "local://{root}",
    ],
)
def test_a_path_that_holds_the_project_is_refused_before_anything_is_read(tmp_path, path):
    shutil.copy(ROOT / "params.yaml", tmp_path)
    project = Project(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    path = path.format(root=tmp_path, link=tmp_path / "link")
    with pytest.raises(UsageError, match=r"data\.path.*\.$") as error:
        preflight.check([pull], load_workload(project.params, "vit", {"data.path": path}), project)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["a.png", "b.png"], r"2 files with \.png in no folder"),
        (["cat/a.txt", "notes"], "1 files with"),
        (["table.csv"], r"1 files with \.csv in no folder"),
    ],
)
def test_what_is_no_data_set_is_answered_with_what_was_found(project, tmp_path, names, found):
    make_files(tmp_path / "pets", *names)
    with pytest.raises(ValueError, match=f"{found}.* a folder of images per class"):
        pulled(project, tmp_path / "pets")


@pytest.mark.parametrize(
    "path", ["/tmp", "database", "memory://pets", "https://127.0.0.1/pets.zip"]
)
def test_git_knows_no_version_of_data_outside_dvc(project, path):
    with pytest.raises(UsageError, match="is not under DVC"):
        data_version(Data(path=path), project, "HEAD")
