"""What the tests of the training share."""

import pytest

from retrain.workload import Train
from tasks.train.job import TrainingJob
from tests.tasks.train.helpers import OFTEN, SMALL, write_prepared


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """96 images for training, in two shards, and 33 for validation."""
    return write_prepared(tmp_path_factory.mktemp("prepared") / "images")


@pytest.fixture
def job(images, tmp_path):
    """A training that has not begun, with a checkpoint of each step."""
    recipe, scale = Train(epochs=4, batch_size=16, lr=0.01), OFTEN.model_copy(update={"threads": 1})
    folders = dict.fromkeys(("pulled", "root", "scratch", "output"), tmp_path)
    return TrainingJob(SMALL, recipe, scale, images=images, start=None, streams=False, **folders)
