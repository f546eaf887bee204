"""A head on embeddings: trained, resumed, evaluated, packaged and checked on the images."""

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import models
from retrain.store import Artifact
from retrain.workload import Best, Evaluate, Plateau, Scale, Train
from tasks.data.image_table import AcceptedImage
from tasks.data.shards import open_prepared
from tasks.evaluate.step import evaluate
from tasks.promote.check import check_answers, example_of
from tasks.promote.package import write_package
from tasks.train import checkpoint
from tests.tasks.embed.conftest import head_on
from tests.tasks.toy_model import workspace
from tests.tasks.train.helpers import LABELS, Trained, run

pytestmark = pytest.mark.usefixtures("few_calls")

RECIPE = Train(
    epochs=6, batch_size=16, optimizer="adam", lr=0.03, weight_decay=0.0, schedule="plateau",
    plateau=Plateau(factor=0.8, patience=1), warmup=0.0, clip_norm=0.0,
    best=Best(metric="val_loss"), precision="fp32",
)  # fmt: skip
PER_EPOCH = 6
FP32 = Evaluate(batch_size=16, precision="fp32")


class InterruptedTrainingError(Exception):
    pass


@pytest.fixture(scope="module")
def trained(tmp_path_factory, embedded, backbone):
    root = tmp_path_factory.mktemp("trained")
    shutil.copytree(backbone, root / "vit")  # a relative path starts at the project's folder
    return run(root, embedded.folder, RECIPE, model=head_on(Path("vit")))


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory, trained, embedded):
    """The folder of the evaluation on embeddings."""
    facts = {"weights": trained.facts["weights"]}
    artifact = Artifact("train", "k", "d", trained.folder, facts)
    place = workspace(tmp_path_factory.mktemp("evaluated") / "output", trained.project.root)
    evaluate(FP32, artifact, embedded.artifact, place)
    return place.folder


def network_of(trained: Trained) -> torch.nn.Module:
    return models.load(trained.folder / "model").module


def test_the_head_learns_and_the_epoch_with_the_lowest_loss_is_kept(trained, embedded):
    losses = [epoch["val_loss"] for epoch in trained.history]
    assert trained.facts["val_loss"] == min(losses)
    assert losses[trained.facts["best_epoch"] - 1] == min(losses)
    assert trained.facts["val_accuracy"] > 0.5  # by chance: 0.33
    val = open_prepared(embedded.folder).split("val")
    with torch.inference_mode():
        logits = network_of(trained)(torch.from_numpy(val.images[np.arange(len(val))]))
    loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(val.labels))
    assert float(loss) == pytest.approx(min(losses), rel=1e-5)


def test_what_is_trained_and_kept_in_checkpoints_is_the_head(trained):
    scratch = trained.project.root / "scratch"
    state = checkpoint.load(scratch, checkpoint.newest(scratch))
    assert state is not None
    assert all(name.startswith("classifier.head.") for name in state["network"])
    weights = load_file(trained.folder / "model" / "model.safetensors")
    assert any(name.startswith("classifier.backbone.") for name in weights)
    assert trained.facts["parameters"] == 16 * 8 + 8 + 2 * 8 + 8 * 3 + 3


@pytest.mark.parametrize(
    "scale",
    [
        Scale(checkpoint_seconds=1e-9),
        Scale(checkpoint_seconds=1e-9, memory_gb=96 * 64 * 0.7 / 1e9),  # in windows
    ],
    ids=["memory", "windows"],
)
def test_an_interrupted_training_ends_with_the_same_bits(
    embedded, backbone, tmp_path, monkeypatch, steps, scale
):
    from tasks.train.loops import torch as torch_loop

    recorded = torch_loop.learning_rate

    def failing(step, *others):
        if step == 2 * PER_EPOCH + 3:
            raise InterruptedTrainingError
        return recorded(step, *others)

    model = head_on(backbone)
    whole = run(tmp_path / "whole", embedded.folder, RECIPE, model=model, scale=scale)
    with monkeypatch.context() as patched:
        patched.setattr(torch_loop, "learning_rate", failing)
        with pytest.raises(InterruptedTrainingError):
            run(tmp_path, embedded.folder, RECIPE, model=model, scale=scale, output="stopped")
    steps.clear()
    resumed = run(tmp_path, embedded.folder, RECIPE, model=model, scale=scale)
    assert steps == list(range(2 * PER_EPOCH + 3, 6 * PER_EPOCH))
    assert resumed.facts == whole.facts
    assert resumed.model_files() == whole.model_files()


def test_the_evaluation_says_what_the_network_says_of_the_images(evaluated, trained, images):
    test = open_prepared(images).split("test")
    pixels = torch.from_numpy(test.images[np.arange(len(test))])
    expected = network_of(trained).probabilities(pixels, "fp32").numpy()
    table = pq.read_table(evaluated / "predictions.parquet")
    assert np.allclose(np.stack(table["probabilities"].to_numpy()), expected, atol=1e-6)
    assert table["path"].to_pylist() == [f"test/{row}.png" for row in range(9)]
    classes = json.loads((evaluated / "report" / "classes.json").read_text())
    assert [row["label"] for row in classes["classes"]] == list(LABELS)
    assert (evaluated / "report" / "worst_mistakes.png").is_file()


def test_the_package_is_checked_with_images_and_not_with_embeddings(
    evaluated, trained, images, tmp_path
):
    sent = []  # the test images as they would be sent
    pixels = open_prepared(images).split("test").images[np.arange(9)]
    rows = pq.read_table(evaluated / "predictions.parquet").to_pylist()
    for row, image in zip(rows, pixels, strict=True):
        encoded = io.BytesIO()
        Image.fromarray(image[..., 0]).save(encoded, "PNG")
        sent.append(AcceptedImage(row["path"], row["label"], row["sha256"], encoded.getvalue()))
    good = tmp_path / "good" / "package"
    good.parent.mkdir()
    counts = dict.fromkeys(LABELS, 1)
    write_package(trained.folder / "model", "fp32", counts, good)
    check_answers(good, example_of(good, sent, evaluated), tmp_path)

    # The head, which was evaluated, is the same; the backbone is another one.
    model, bad = tmp_path / "model", tmp_path / "bad" / "package"
    bad.parent.mkdir()
    shutil.copytree(trained.folder / "model", model)
    weights = load_file(model / models.WEIGHTS)
    changed = {name: -each if ".backbone." in name else each for name, each in weights.items()}
    save_file(changed, model / models.WEIGHTS)
    write_package(model, "fp32", counts, bad)
    with pytest.raises(ValueError, match="it answers"):
        check_answers(bad, example_of(bad, sent, evaluated), tmp_path)


def test_a_backbone_that_changed_since_the_embeddings_were_made_is_refused(
    embedded, backbone, tmp_path
):
    copy = tmp_path / "vit"
    shutil.copytree(backbone, copy)
    model = head_on(copy)
    weights = load_file(copy / "model.safetensors")
    save_file({name: 2 * each for name, each in weights.items()}, copy / "model.safetensors")
    with pytest.raises(ValueError, match="has changed since the run started"):
        run(tmp_path, embedded.folder, RECIPE, model=model)
