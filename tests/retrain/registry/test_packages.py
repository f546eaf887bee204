import pytest

from retrain.registry import packages
from tests.at_once import run_two
from tests.retrain.registry.helpers import WEIGHTS, register

# As if MLflow's artifacts were on another machine.
DOWNLOAD = """
from pathlib import Path
from retrain import tracking
from retrain.project import Project
from retrain.registry import packages, versions

project, fetched = Project(Path(sys.argv[1])), packages._download

def slow(*arguments):
    folder = fetched(*arguments)
    halfway()
    return folder

tracking.local_path, packages._download = lambda uri: None, slow
packages.download(project, versions.get(project, sys.argv[2], 1))
"""


def test_a_version_can_be_brought_back_from_the_registry_alone(project, name, tmp_path):
    made = register(project, name, "a", tmp_path)
    package = packages.download(project, made)
    assert (package / "MLmodel").is_file()
    assert (package / packages.MODEL / packages.WEIGHTS).read_bytes() == WEIGHTS + b"a"


def test_weights_that_were_changed_in_the_registry_or_are_gone_are_not_taken(
    project, name, tmp_path
):
    made = register(project, name, "a", tmp_path)
    weights = packages.download(project, made) / packages.MODEL / packages.WEIGHTS
    weights.write_bytes(b"other")
    with pytest.raises(ValueError, match="does not hold the weights"):
        packages.download(project, made)
    weights.unlink()
    with pytest.raises(ValueError, match="version 1 are gone"):
        packages.download(project, made)


def test_two_processes_may_be_the_first_to_download_a_version(project, name, tmp_path):
    made = register(project, name, "a", tmp_path)
    assert run_two(DOWNLOAD, project.root, name) == ["", ""]
    [package] = (project.state / "champions").iterdir()
    assert package.name == made.package_digest
    assert (package / packages.MODEL / packages.WEIGHTS).read_bytes() == WEIGHTS + b"a"
