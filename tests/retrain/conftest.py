"""A store in a temporary folder, and a run that uses it."""

import pytest

from retrain.project import Project
from retrain.store import Store
from tests.running import RunContext


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


@pytest.fixture
def context(tmp_path):
    return RunContext("run-1", Project(tmp_path))
