"""A registry that the tests of a file share."""

import pytest

from retrain.project import Project
from tests import templates


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project with one MLflow database for all tests, which use names of their own."""
    root = tmp_path_factory.mktemp("project")
    templates.place_mlflow_database(root)
    return Project(root)


@pytest.fixture
def name(request):
    return request.node.name[:60]
