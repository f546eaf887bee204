"""The step that embeds images; a head on embeddings, as it is trained, resumed and evaluated."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import ViTForImageClassification

import models
from models.network import in_stored_units, normalise
from retrain.outputs import list_files
from retrain.params import load_workload
from retrain.project import Project
from retrain.store import Artifact
from retrain.workload import Best, Evaluate, Gate, Plateau, Train
from tasks.data.shards import ROWS, digest_of_learnt, open_prepared
from tasks.embed.step import embed
from tasks.evaluate.step import evaluate
from tests.tasks.embed.conftest import head_on, run_embed
from tests.tasks.toy_model import described, workspace
from tests.tasks.train.helpers import run, run_interrupted

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "doggos.yaml"


def test_embeddings_are_those_of_a_plain_loop_to_the_bit(embedded, images, backbone):
    network = ViTForImageClassification.from_pretrained(backbone).vit
    half = in_stored_units((0.5,))
    torch.set_num_threads(1)  # as the step does
    data, pixels = open_prepared(embedded.folder), open_prepared(images)
    for name, rows in embedded.facts["rows"].items():
        split, before = data.split(name), pixels.split(name)
        assert np.array_equal(split.labels, before.labels)
        assert len(split) == rows
        for first in range(0, rows, 16):
            batch = np.arange(first, min(first + 16, rows))
            with torch.inference_mode():
                plain = network(normalise(torch.from_numpy(before.images[batch]), half, half))
            assert np.array_equal(split.images[batch], plain.last_hidden_state[:, 0].numpy())
        ours, theirs = (pq.read_table(each.folder / ROWS) for each in (split, before))
        assert ours.equals(theirs)
    assert embedded.facts == {
        "rows": {"train": 96, "val": 33, "test": 9},
        "classes": list(data.labels),
        "shape": [16],
        "storage": "embeddings",
        "learnt": digest_of_learnt(embedded.folder),
    }


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, []),
        ({"train.function": "examples.ported:train"}, ["train.function"]),
        ({"train.augment": {"flip": True}}, ["train.augment"]),
        ({"train.freeze_epochs": 1}, ["train.freeze_epochs"]),
        ({"scale.strategy": "fsdp"}, ["scale.strategy"]),
        ({"train.batch_size": 1}, ["train.batch_size"]),
        ({"train.batch_size": 3, "scale.workers": 2}, ["train.batch_size"]),
    ],
)
def test_what_does_not_go_with_embeddings_is_refused(changes, said):
    workload = load_workload(EXAMPLE, "doggos", changes)
    faults = embed.check(workload, Project(ROOT))
    assert [fault.partition(": ")[0] for fault in faults] == said


def test_a_run_that_was_ended_goes_on_with_the_missing_parts(tmp_path, images, backbone):
    whole = run_embed(tmp_path, images, backbone)
    lost, *kept = sorted((tmp_path / "scratch").glob("*/images-*.npy"))
    before = [path.stat().st_mtime_ns for path in kept]
    lost.unlink()
    again = run_embed(tmp_path, images, backbone, output="again")
    assert list_files(again.folder) == list_files(whole.folder)
    assert [path.stat().st_mtime_ns for path in kept] == before


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
