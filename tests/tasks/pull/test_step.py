"""The step itself: archives, the two formats, and nothing heavy on import."""

import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from retrain.errors import UsageError
from retrain.project import Project
from retrain.step import DataVersion, plan
from retrain.workload import Data, Model, Workload
from tasks.pull.step import STEP, data_version, find_source
from tests.tasks.pull.pulling import make_files, pulled

ROOT = Path(__file__).parents[3]
PETS = {"cat/1.png": "1", "dog/2.png": "2"}


@pytest.fixture
def project(tmp_path):
    (tmp_path / "clone").mkdir()
    return Project(tmp_path / "clone")


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


def test_a_zip_is_unpacked(project, tmp_path):
    make_zip(tmp_path / "pets.zip", PETS)
    _, files, facts = pulled(project, tmp_path / "pets.zip")
    assert files == PETS
    assert facts == {"format": "folders"}


@pytest.mark.parametrize("mode", ["w:", "w:gz", "w:bz2", "w:xz"])
def test_a_tar_in_any_compression_is_unpacked(project, tmp_path, mode):
    make_tar(tmp_path / "pets", PETS, mode)
    assert pulled(project, tmp_path / "pets")[1] == PETS


def test_an_archive_at_a_url_is_unpacked(project, tmp_path):
    make_zip(tmp_path / "pets.zip", PETS)
    assert pulled(project, f"file://{tmp_path}/pets.zip")[1] == PETS


def test_a_folder_that_holds_all_of_an_archive_is_taken_away(project, tmp_path):
    wrapped = {f"pets-1.0/images/{name}": text for name, text in PETS.items()}
    make_zip(tmp_path / "pets.zip", wrapped | {"__MACOSX/pets-1.0/images/cat/._1.png": "fork"})
    assert pulled(project, tmp_path / "pets.zip")[1] == PETS


def test_a_single_class_is_not_taken_for_a_wrapping(project, tmp_path):
    make_tar(tmp_path / "pets.tgz", {"cat/1.png": "1", "cat/2.png": "2"})
    assert pulled(project, tmp_path / "pets.tgz")[1] == {"cat/1.png": "1", "cat/2.png": "2"}


def test_an_archive_among_other_files_stays_one(project, tmp_path):
    make_files(tmp_path / "pets", "cat/1.png", "dog/2.png")
    make_zip(tmp_path / "pets" / "extra.zip", PETS)
    _, files, _ = pulled(project, tmp_path / "pets")
    assert set(files) == {"cat/1.png", "dog/2.png", "extra.zip"}


@pytest.mark.parametrize("name", ["../out.png", "/tmp/out.png", "cat/../../out.png"])
def test_an_archive_that_leads_out_of_its_folder_is_refused(project, tmp_path, name):
    make_zip(tmp_path / "bad.zip", {"cat/1.png": "1", name: "out"})
    with pytest.raises(ValueError, match=r"out\.png"):
        pulled(project, tmp_path / "bad.zip")


def test_a_tar_that_leads_out_of_its_folder_is_refused(project, tmp_path):
    make_tar(tmp_path / "bad.tar", {"cat/1.png": "1", "../out.png": "out"})
    with pytest.raises(ValueError, match="cannot be unpacked"):
        pulled(project, tmp_path / "bad.tar")


def test_a_broken_archive_is_an_error(project, tmp_path):
    make_tar(tmp_path / "pets.tgz", {"cat/1.png": "1" * 100_000})
    whole = (tmp_path / "pets.tgz").read_bytes()
    (tmp_path / "pets.tgz").write_bytes(whole[:-40])
    with pytest.raises(ValueError, match=r"pets\.tgz cannot be unpacked"):
        pulled(project, tmp_path / "pets.tgz")


def test_a_zip_whose_bytes_have_changed_is_an_error(project, tmp_path):
    with zipfile.ZipFile(tmp_path / "pets.zip", "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("cat/1.png", "all is well")
    whole = (tmp_path / "pets.zip").read_bytes()
    (tmp_path / "pets.zip").write_bytes(whole.replace(b"well", b"bad!"))
    with pytest.raises(ValueError, match=r"pets\.zip cannot be unpacked"):
        pulled(project, tmp_path / "pets.zip")


def test_parquet_files_are_recognised_in_any_depth(project, tmp_path):
    make_files(tmp_path / "pets", "README.md", "data/train.parquet")
    assert pulled(project, tmp_path / "pets")[2] == {"format": "parquet"}
    assert pulled(project, tmp_path / "pets" / "data" / "train.parquet")[2] == {"format": "parquet"}


def test_capitals_do_not_matter_in_an_images_name(project, tmp_path):
    make_files(tmp_path / "pets", "cat/1.JPG")
    assert pulled(project, tmp_path / "pets")[2] == {"format": "folders"}


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


def test_a_format_that_is_set_stands(project, tmp_path):
    make_files(tmp_path / "pets", "cat/1", "dog/2")
    assert pulled(project, tmp_path / "pets", format="folders")[2] == {"format": "folders"}


def test_the_version_of_nothing_is_an_error_before_the_run(project):
    with pytest.raises(UsageError):
        data_version(Data(path="nowhere"), project)


@pytest.mark.parametrize("path", ["/tmp", "memory://pets", "https://127.0.0.1/pets.zip"])
def test_git_knows_no_version_of_data_outside_dvc(project, path):
    with pytest.raises(UsageError, match="is not under DVC"):
        data_version(Data(path=path), project, "HEAD")


@pytest.mark.parametrize(
    ("data", "source"),
    [
        ({"path": "data/pets"}, "dvc"),
        ({"path": "{root}/data"}, "dvc"),
        ({"path": "database"}, "local"),
        ({"path": "../pets"}, "local"),
        ({"path": "https://example.com/data/pets.zip"}, "url"),
        ({"path": "me/pets", "format": "hub"}, "hub"),
    ],
)
def test_only_the_source_of_the_data_is_code_of_the_step(project, data, source):
    config = Data.model_validate(data | {"path": data["path"].format(root=project.root)})
    found = find_source(config, project, None)
    workload = Workload(name="pets", data=config, model=Model(family="vit"))
    version = DataVersion("digest", tracked=source == "dvc")
    code = plan(STEP, workload, [version]).code
    used = ("step", "archives", "transfer", f"{source}_source")
    assert set(code) == {f"tasks.pull.{name}" for name in used}
    assert type(found).__module__ in code


def test_the_version_of_tracked_data_is_known_without_heavy_libraries():
    program = (
        "import sys; from retrain.project import find_project; from retrain.workload import Data;"
        "from tasks.pull.step import data_version;"
        "assert data_version(Data(path='data/digits'), find_project()).tracked;"
        "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not set(done.stdout.split()) & {"dvc", "fsspec", "huggingface_hub", "pyarrow", "numpy"}
