"""The step that embeds images: what it writes, where it is done, what a kill leaves."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import ViTForImageClassification

from models.network import in_stored_units, normalise
from retrain.params import load_workload
from retrain.project import Project
from tasks.data.shards import open_prepared
from tasks.embed import step
from tasks.embed.step import embed
from tests.tasks.embed.conftest import run_embed

ROOT = Path(__file__).parents[3]


def plain_embeddings(images: Path, backbone: Path, split: str, batch_size: int) -> np.ndarray:
    """What a plain loop over `transformers` gives, with one thread."""
    pixels = open_prepared(images).split(split).images
    network = ViTForImageClassification.from_pretrained(backbone)
    half = in_stored_units((0.5,))
    found, threads = [], torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        for first in range(0, len(pixels), batch_size):
            rows = np.arange(first, min(first + batch_size, len(pixels)))
            batch = normalise(torch.from_numpy(pixels[rows]), half, half)
            found.append(network.vit(batch).last_hidden_state[:, 0].numpy())
    torch.set_num_threads(threads)
    return np.concatenate(found)


def test_embeddings_are_those_of_a_plain_loop_to_the_bit(embedded, images, backbone):
    data = open_prepared(embedded.folder)
    assert data.shape == (16,)
    assert data.labels == open_prepared(images).labels
    for name in ("train", "val", "test"):
        split = data.split(name)
        found = split.images[np.arange(len(split))]
        assert found.dtype == np.float32
        assert np.array_equal(found, plain_embeddings(images, backbone, name, 16))
        before = open_prepared(images).split(name)
        assert np.array_equal(split.labels, before.labels)
        assert split.rows.equals(before.rows)
    assert data.split("train").images.bytes_per_image == 16 * 4
    shown = data.pixels("test")  # for plots
    before = open_prepared(images).split("test").images
    assert np.array_equal(shown[np.arange(9)], before[np.arange(9)])
    assert embedded.facts == {
        "rows": {"train": 96, "val": 33, "test": 9},
        "classes": list(data.labels),
        "shape": [16],
        "storage": "embeddings",
    }


def test_actors_write_the_same_bytes_as_this_process(
    ray_session, embedded, images, backbone, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(step, "PART_ROWS", 32)  # several parts for each actor
    here = run_embed(tmp_path / "here", images, backbone)
    monkeypatch.setitem(step.SPEED, "cpu", 1.0)  # as if it took long
    with caplog.at_level(logging.INFO, "tasks.compute.ray_data"):
        plan = run_embed(tmp_path / "plan", images, backbone)
    assert "_Actor" in caplog.text
    assert plan.files() == here.files()
    assert len(list((plan.folder / "train").glob("images-*"))) == 3
    for name in ("train", "val", "test"):  # nor do the files change what is in them
        one, other = (open_prepared(each.folder).split(name) for each in (plan, embedded))
        rows = np.arange(len(one))
        assert np.array_equal(one.images[rows], other.images[rows])


def test_an_error_of_a_worker_is_raised_as_it_is(
    ray_session, images, backbone, tmp_path, monkeypatch
):
    monkeypatch.setitem(step.SPEED, "cpu", 1.0)
    (tmp_path / "vit").mkdir()
    (tmp_path / "vit" / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(ValueError, match="is a bert, which gives no embedding") as caught:
        run_embed(tmp_path, images, tmp_path / "vit")
    assert type(caught.value) is ValueError


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"train.function": "examples.ported:train"}, "train.function"),
        ({"train.augment": {"flip": True}}, "train.augment"),
        ({"train.lora": {"r": 4}}, "train.lora"),
        ({"train.freeze_epochs": 1}, "train.freeze_epochs"),
        ({"train.layer_decay": 0.5}, "train.layer_decay"),
        ({"scale.strategy": "fsdp"}, "scale.strategy"),
        ({"train.batch_size": 1}, "train.batch_size"),
        ({"train.batch_size": 3, "scale.workers": 2}, "train.batch_size"),
    ],
)
def test_what_does_not_go_with_embeddings_is_refused(changes, said):
    workload = load_workload(ROOT / "params.yaml", "doggos", changes)
    [fault] = embed.check(workload, Project(ROOT))
    assert fault.startswith(f"{said}: ")
    doggos, vit = (load_workload(ROOT / "params.yaml", name) for name in ("doggos", "vit"))
    assert list(embed.check(doggos, Project(ROOT))) == []
    assert (embed.needed(doggos), embed.needed(vit)) == (True, False)


def test_a_run_that_was_ended_goes_on_with_the_missing_parts(
    tmp_path, images, backbone, monkeypatch
):
    embed_part, monkeypatched = step._embed_part, monkeypatch.setattr
    monkeypatched(step, "PART_ROWS", 16)
    whole = run_embed(tmp_path / "whole", images, backbone)
    parts = tmp_path / "scratch" / "train"

    def ended(*arguments):
        if len(list(parts.glob("images-*.npy"))) == 3:
            raise KeyboardInterrupt
        embed_part(*arguments)

    monkeypatched(step, "_embed_part", ended)
    with pytest.raises(KeyboardInterrupt):
        run_embed(tmp_path, images, backbone, output="ended")
    finished = {path: path.stat().st_mtime_ns for path in parts.glob("images-*.npy")}
    assert 3 <= len(finished) < 6
    monkeypatched(step, "_embed_part", embed_part)
    resumed = run_embed(tmp_path, images, backbone)
    train = resumed.folder / "train"
    assert {path: (train / path.name).stat().st_mtime_ns for path in finished} == finished
    assert resumed.files() == whole.files()
