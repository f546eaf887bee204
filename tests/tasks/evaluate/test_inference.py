import numpy as np
import pytest
import torch

from tasks.compute import ray_data
from tasks.data.shards import open_prepared
from tasks.evaluate.step import predict
from tests.tasks.toy_model import pixels, plain_probabilities, write_model, write_prepared


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("train")).folder / "model"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    prepared = write_prepared(tmp_path_factory.mktemp("prepared") / "images", rows=50)
    return open_prepared(prepared.folder).split("test").images


@pytest.fixture(params=["this machine", pytest.param("a cluster", marks=pytest.mark.slow)])
def place(request, monkeypatch):
    if request.param == "a cluster":
        request.getfixturevalue("ray_session")
        import ray

        monkeypatch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)
        monkeypatch.setattr(ray_data, "SECONDS_PER_IMAGE", 1.0)  # as if it took long


@pytest.mark.usefixtures("place")
def test_it_says_exactly_what_a_plain_loop_says(model, images):
    threads = torch.get_num_threads()
    batches = [found for found, _ in predict(model, images, 25, "fp32")]
    assert torch.get_num_threads() == threads
    assert [(len(batch), batch.dtype) for batch in batches] == [(25, np.float32)] * 2
    expected = plain_probabilities(model, pixels(50), batch_size=25)
    assert np.array_equal(np.concatenate(batches), expected)


def test_bf16_says_nearly_the_same_and_the_same_each_time(model, images):
    once, again, exact = (
        np.concatenate([found for found, _ in predict(model, images, 16, precision)])
        for precision in ("bf16", "bf16", "fp32")
    )
    assert np.array_equal(once, again)
    assert not np.array_equal(once, exact)
    assert np.abs(once - exact).max() < 0.1
