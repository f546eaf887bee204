"""A store in a temporary folder, and a run that uses it."""

import pytest

from retrain.project import REMOTE, Project
from retrain.store import Store
from tests.running import RunContext


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A clone in which nothing was run."""
    for name in ("MLFLOW_TRACKING_URI", "RETRAIN_STORE", REMOTE):
        monkeypatch.delenv(name, raising=False)
    return Project(tmp_path)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


@pytest.fixture
def context(tmp_path):
    return RunContext("run-1", Project(tmp_path))
