"""What the tests of the training share."""

import pytest

from tests.tasks.train.helpers import write_prepared


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """96 images for training, in two shards, and 33 for validation."""
    return write_prepared(tmp_path_factory.mktemp("prepared") / "images")
