"""What the tests of the training share."""

import pytest

from tests.tasks.train.helpers import write_prepared


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """96 images for training, in two shards, and 33 for validation."""
    return write_prepared(tmp_path_factory.mktemp("prepared") / "images")


@pytest.fixture
def steps(monkeypatch):
    """The optimizer steps that trainings in this process have taken, by number, as they go."""
    from tasks.train import loop

    taken = []
    learning_rate = loop.learning_rate

    def noting(step, steps, recipe):
        taken.append(step)
        return learning_rate(step, steps, recipe)

    monkeypatch.setattr(loop, "learning_rate", noting)
    return taken
