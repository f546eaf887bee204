import pytest

from retrain.project import Project


@pytest.fixture
def project(tmp_path):
    """An empty project; data beside it is not under DVC."""
    (tmp_path / "clone").mkdir()
    return Project(tmp_path / "clone")
