"""The step itself: archives, what is no data set, and which paths are none."""

import io
import os
import resource
import tarfile
import zipfile

import pytest

from retrain.errors import UsageError
from retrain.project import Project
from retrain.workload import Data, Model, Workload
from tasks.pull.step import data_version, pull
from tests.tasks.pull.pulling import make_files, make_workspace, pulled, read_files

PETS = {"cat/1.png": "1", "dog/2.png": "2"}
WRAPPED = {f"w/v/{name}": text for name, text in PETS.items()}


def make_archive(path, mode, files):
    """Writes a zip or a tar; a value is a text, or of a tar the kind of a link and its target."""
    if mode == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, text in files.items():
                archive.writestr(name, text)
        return
    with tarfile.open(path, mode) as archive:
        for name, value in files.items():
            member = tarfile.TarInfo(name)
            if isinstance(value, str):
                member.size = len(value)
                archive.addfile(member, io.BytesIO(value.encode()))
            else:
                member.type, member.linkname = value
                archive.addfile(member)


@pytest.mark.parametrize(
    ("mode", "files", "more"),
    [
        *((mode, PETS, {}) for mode in ("zip", "w:", "w:gz", "w:bz2", "w:xz")),
        ("zip", WRAPPED | {"__MACOSX/w/v/cat/._1.png": "fork"}, {}),
        # As some programs on Windows write names.
        ("zip", {"w\\cat\\": "", "w\\cat\\1.png": "1", "w\\dog\\2.png": "2"}, {}),
        # What leads outside stays inside.
        ("zip", PETS | {"dog\\..\\..\\..\\out.png": "out"}, {"dog/out.png": "out"}),
        ("zip", PETS | {"cat/../../out.png": "out"}, {"cat/out.png": "out"}),
        ("zip", PETS | {"/tmp/out.png": "out"}, {"tmp/out.png": "out"}),
        ("w:", PETS | {"/tmp/out.png": "out"}, {"tmp/out.png": "out"}),
    ],
)
def test_an_archive_is_unpacked_without_what_only_wraps_it(project, tmp_path, mode, files, more):
    make_archive(tmp_path / "pets", mode, files)
    _, found, facts = pulled(project, tmp_path / "pets")
    assert (found, facts) == (PETS | more, {"format": "folders"})


def test_an_archive_among_other_files_stays_one(project, tmp_path):
    make_files(tmp_path / "all" / "pets", *PETS)
    make_archive(tmp_path / "all" / "pets" / "extra.zip", "zip", PETS)
    assert pulled(project, tmp_path / "all" / "pets")[1].keys() == {*PETS, "extra.zip"}
    assert len(pulled(project, tmp_path / "all")[1]) == 3  # a folder alone is none, either


LINK = r"^The data's archive has a link, '.*'\. Pack"
BROKEN = r"^The archive pets cannot be unpacked: "


@pytest.mark.parametrize(
    ("mode", "files", "size", "fault"),
    [
        ("w:", WRAPPED | {"pipe/1.png": (tarfile.FIFOTYPE, "")}, None, BROKEN),
        # Inside the archive, until the folders that wrap all of it are taken away.
        ("w:", WRAPPED | {"w/v/cat/3.png": (tarfile.SYMTYPE, "../../../../3.png")}, None, LINK),
        ("w:", WRAPPED | {"round": (tarfile.SYMTYPE, "round")}, None, LINK),
        ("w:", WRAPPED | {"cat/3.png": (tarfile.LNKTYPE, "w/v/dog/2.png")}, None, LINK),
        ("w:gz", PETS | {"../out.png": "out"}, None, f"{BROKEN}.*outside"),
        ("w:gz", PETS | {"cat/../../out.png": "out"}, None, f"{BROKEN}.*outside"),
        ("w:", PETS | {os.fsdecode(b"dog/\xff.png"): "3"}, None, r"^The name 'dog/.udcff\.png' is"),
        ("zip", {"cat": "a file and a folder", "cat/1.png": "2"}, None, BROKEN),
        ("w:gz", {"cat": "a file and a folder", "cat/1.png": "2"}, None, BROKEN),
        ("w:gz", PETS | {"x": "1" * 100_000}, 150, BROKEN),
    ],
)
def test_an_archive_that_is_broken_or_leads_elsewhere_is_refused_and_leaves_nothing(
    project, tmp_path, mode, files, size, fault
):
    make_archive(tmp_path / "pets", mode, files)
    os.truncate(tmp_path / "pets", size or (tmp_path / "pets").stat().st_size)
    data, space = Data(path=str(tmp_path / "pets")), make_workspace(tmp_path / "work", project)
    with pytest.raises(ValueError, match=fault):
        pull(data, data_version(data, project), space)
    assert not space.scratch.exists()


def test_what_a_killed_run_has_unpacked_is_not_taken(project, tmp_path):
    make_archive(tmp_path / "pets", "zip", PETS)
    data, space = Data(path=str(tmp_path / "pets")), make_workspace(tmp_path / "work", project)
    make_files(space.scratch / "unpacked", "cow/1.png")
    pull(data, data_version(data, project), space)
    assert read_files(space.folder / "data") == PETS


def test_a_disk_that_takes_no_more_is_no_verdict_on_the_data(project, tmp_path):
    files = {name: text * 2_000_000 for name, text in PETS.items()}
    make_archive(tmp_path / "pets.zip", "zip", files)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            pulled(project, tmp_path / "pets.zip")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert pulled(project, tmp_path / "pets.zip")[1] == files


HOLDS_IT = (
    ".", "./.", "data/..", "..", "/", "//", "{root}/link", "{root}", "file:///",
    "file://{root}", "local://{root}",
)  # fmt: skip
ELSEWHERE = ("data", "data/digits", "../pets", "{root}/pets", "s3://pets", "memory://{root}")


@pytest.mark.parametrize("path", [*HOLDS_IT, *ELSEWHERE])
def test_a_path_that_holds_the_project_is_refused_before_anything_is_read(tmp_path, path):
    (tmp_path / "link").symlink_to(tmp_path)
    data, model = Data(path=path.format(root=tmp_path)), Model(family="vit")
    faults = [*pull.check(Workload(name="toy", data=data, model=model), Project(tmp_path))]
    assert len(faults) == (path in HOLDS_IT)


def test_an_empty_folder_beside_the_classes_is_named(project, tmp_path):
    make_files(tmp_path / "pets", *PETS)
    (tmp_path / "pets" / "bee").mkdir()
    with pytest.raises(ValueError, match="bee"):
        pulled(project, tmp_path / "pets")


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["a.png", "b.png"], r"2 files with \.png in no folder"),
        (["cat/a.txt", "notes"], "1 files with"),
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
