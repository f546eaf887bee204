import numpy as np
import pytest
import torch

from tasks.compute import ray_data
from tasks.data.shards import open_prepared
from tasks.evaluate.step import predict
from tests.tasks.evaluate.conftest import ROWS
from tests.tasks.toy_model import pixels, plain_probabilities


@pytest.fixture
def cluster(ray_session, monkeypatch):
    import ray

    monkeypatch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)
    monkeypatch.setattr(ray_data, "SECONDS_PER_IMAGE", 1.0)  # as if it took long


def says_what_a_plain_loop_says(scored, precision):
    model = scored.trained.folder / "model"
    images = open_prepared(scored.images.folder).split("test").images
    threads = torch.get_num_threads()
    found = np.concatenate([each for each, _ in predict(model, images, 25, precision)])
    assert torch.get_num_threads() == threads
    expected = plain_probabilities(model, pixels(ROWS), 25, precision)
    return found.dtype == np.float32 and np.array_equal(found, expected)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_it_says_exactly_what_a_plain_loop_says(scored, precision):
    assert says_what_a_plain_loop_says(scored, precision)


@pytest.mark.slow
def test_the_machines_of_a_cluster_say_the_same(scored, cluster):
    assert says_what_a_plain_loop_says(scored, "fp32")
