"""A network with batch statistics: it learns, and is gone on with to the bit."""

import pytest
import torch

import models
from retrain.workload import Augment, Model, Scale, Train
from tests.tasks.train.helpers import run

CONFIG = {
    "model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1],
    "layer_type": "basic", "downsample_in_first_stage": False,
}  # fmt: skip
RESNET = Model(family="auto", config=CONFIG)
RECIPE = Train(epochs=6, batch_size=16, lr=0.01, augment=Augment(shift=1))
STOPPED_AT = 15  # of 6 an epoch


class InterruptedTrainingError(Exception):
    pass


def test_a_resnet_learns_and_goes_on_to_the_bit(images, tmp_path, monkeypatch, steps):
    from tasks.train.loops import torch as torch_loop

    whole = run(tmp_path / "whole", images, RECIPE, model=RESNET)
    assert whole.facts["val_accuracy"] > 0.6
    weights = models.load(whole.folder / "model").module.state_dict()
    counts = {int(each) for name, each in weights.items() if "num_batches_tracked" in name}
    assert counts == {6 * whole.facts["best_epoch"]}

    recorded = torch_loop.learning_rate

    def failing(step, *others):
        if step == STOPPED_AT:
            raise InterruptedTrainingError
        return recorded(step, *others)

    often = Scale(checkpoint_seconds=1e-9)
    with monkeypatch.context() as patched:
        patched.setattr(torch_loop, "learning_rate", failing)
        with pytest.raises(InterruptedTrainingError):
            run(tmp_path, images, RECIPE, model=RESNET, scale=often, output="stopped")
    steps.clear()
    resumed = run(tmp_path, images, RECIPE, model=RESNET)
    assert steps == list(range(STOPPED_AT, 36))
    assert resumed.facts == whole.facts
    assert resumed.model_files() == whole.model_files()
    assert torch.isfinite(torch.stack([each.float().sum() for each in weights.values()])).all()
