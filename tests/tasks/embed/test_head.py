"""A head on embeddings: trained, resumed, and evaluated as the network that is served."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

import models
from retrain.store import Artifact
from retrain.workload import Best, Evaluate, Gate, Plateau, Train
from tasks.data.shards import open_prepared
from tasks.evaluate.step import evaluate
from tests.tasks.embed.conftest import head_on
from tests.tasks.toy_model import described, workspace
from tests.tasks.train.helpers import run, run_interrupted

# No part of a batch may be a single image, for the batch norm.
RECIPE = Train(
    epochs=6, batch_size=17, micro_batch=16, optimizer="adam", lr=0.03, weight_decay=0.0,
    schedule="plateau", plateau=Plateau(factor=0.8, patience=1), warmup=0.0, clip_norm=0.0,
    best=Best(metric="val_loss"), precision="fp32",
)  # fmt: skip
FP32 = Evaluate(batch_size=16, precision="fp32")


def test_an_interrupted_training_ends_with_the_same_bits(
    embedded, backbone, tmp_path, ending_before, steps
):
    model = head_on(backbone)
    run_interrupted(tmp_path, embedded.folder, RECIPE, ending_before(13), model=model)
    assert steps == list(range(13, 6 * 5))


def test_the_evaluation_on_embeddings_says_what_the_network_says_of_the_images(
    embedded, images, backbone, tmp_path
):
    shutil.copytree(backbone, tmp_path / "vit")  # a relative path starts at the project's folder
    trained = run(tmp_path, embedded.folder, RECIPE, model=head_on(Path("vit")))
    assert trained.facts["parameters"] == 16 * 8 + 8 + 2 * 8 + 8 * 3 + 3  # of the head alone
    artifact = Artifact("train", "k", "d", trained.folder, {"weights": trained.facts["weights"]})
    place = workspace(tmp_path / "evaluate", trained.project.root)
    evaluate(FP32, Gate(), artifact, embedded, described(embedded), place)
    test = open_prepared(images).split("test")
    pixels = torch.from_numpy(test.images[np.arange(len(test))])
    module = models.load(trained.folder / "model").module
    expected = module.probabilities(pixels, "fp32").numpy()
    table = pq.read_table(place.folder / "predictions.parquet")
    assert np.allclose(np.stack(table["probabilities"].to_numpy()), expected, atol=1e-6)
    assert table["path"].to_pylist() == [f"test/{row}.png" for row in range(9)]


def test_a_backbone_that_changed_since_the_embeddings_were_made_is_refused(
    embedded, backbone, tmp_path
):
    model = head_on(shutil.copytree(backbone, tmp_path / "vit"))
    file = tmp_path / "vit" / "model.safetensors"
    save_file({name: 2 * each for name, each in load_file(file).items()}, file)
    with pytest.raises(ValueError, match="has changed since the run started"):
        run(tmp_path, embedded.folder, RECIPE, model=model)
