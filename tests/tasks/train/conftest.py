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
    from tasks.train.loops import torch as torch_loop

    taken = []
    learning_rate = torch_loop.learning_rate

    def recorded(step, *others):
        taken.append(step)
        return learning_rate(step, *others)

    monkeypatch.setattr(torch_loop, "learning_rate", recorded)
    return taken
