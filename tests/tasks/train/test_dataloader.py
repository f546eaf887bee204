"""The ingest by PyTorch's DataLoader trains on the same batches as the others."""

import pytest

from retrain.workload import Augment, Scale, Train
from tests.tasks.train.helpers import run, run_interrupted

HYPERPARAMETERS = Train(epochs=3, batch_size=16, lr=0.01, augment=Augment(shift=1))


@pytest.fixture(scope="module")
def in_memory(images, tmp_path_factory):
    return run(tmp_path_factory.mktemp("memory"), images, HYPERPARAMETERS)


@pytest.mark.parametrize(
    "scale",
    [{}, {"data_cpus": 2}, {"memory_gb": 1e-6}],
    ids=["in the worker", "two processes", "from disk"],
)
def test_it_gives_the_same_network(images, in_memory, tmp_path, scale):
    trained = run(tmp_path, images, HYPERPARAMETERS, scale=Scale(ingest="dataloader", **scale))
    assert trained.model_files() == in_memory.model_files()
    assert trained.facts == in_memory.facts


def test_it_resumes_in_the_middle_of_an_epoch(images, in_memory, tmp_path, ending_before):
    scale = Scale(ingest="dataloader", data_cpus=1, checkpoint_seconds=1e-9)
    ending = ending_before(8)  # of 6 in an epoch
    resumed = run_interrupted(tmp_path, images, HYPERPARAMETERS, ending, scale=scale)
    assert resumed.facts == in_memory.facts
