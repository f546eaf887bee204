"""The step that embeds images: what it writes, where it is done, what a kill leaves."""

import json
import logging
import signal
import subprocess
import sys
import time
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
from tests.tasks.embed.conftest import run_embed, write_backbone, write_images

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
    assert embedded.facts == {
        "rows": {"train": 96, "val": 33, "test": 9},
        "classes": list(data.labels),
        "shape": [16],
        "storage": "embeddings",
    }


def test_rows_are_read_in_any_order(embedded):
    embeddings = open_prepared(embedded.folder).split("train").images
    every = embeddings[np.arange(96)]
    order = np.random.default_rng(0).permutation(96)
    assert np.array_equal(embeddings[order], every[order])
    assert embeddings.bytes_per_image == 16 * 4


def test_the_pixels_of_the_test_split_stay_at_hand_for_plots(embedded, images):
    shown, test = open_prepared(embedded.folder).pixels("test"), open_prepared(images).split("test")
    assert np.array_equal(shown[np.arange(9)], test.images[np.arange(9)])


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


def embed_long(root: Path) -> None:
    """What the subprocess runs: many small parts, with time to end it between two of them."""
    embed_part = step._embed_part

    def slowly(*arguments):
        time.sleep(0.05)
        embed_part(*arguments)

    step.PART_ROWS, step._embed_part = 4, slowly
    run_embed(root, root / "images", root / "vit", batch_size=4, output="killed")


def test_a_killed_run_goes_on_with_the_missing_parts(tmp_path, monkeypatch):
    images, backbone = write_images(tmp_path / "images", 1200), write_backbone(tmp_path / "vit")
    program = (
        "import pathlib, sys; from tests.tasks.embed.test_step import embed_long;"
        "embed_long(pathlib.Path(sys.argv[1]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE
    )
    deadline, parts = time.monotonic() + 120, tmp_path / "scratch" / "train"
    while len(list(parts.glob("images-*.npy"))) < 5:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()  # its output ends with the last process that has it
    finished = {path.name: path.stat().st_mtime_ns for path in parts.glob("images-*.npy")}
    assert 5 <= len(finished) < 300

    monkeypatch.setattr(step, "PART_ROWS", 4)
    resumed = run_embed(tmp_path, images, backbone, batch_size=4)
    train = resumed.folder / "train"
    kept = {name: (train / name).stat().st_mtime_ns for name in finished}
    assert kept == finished
    whole = run_embed(tmp_path / "whole", images, backbone, batch_size=4)
    assert resumed.files() == whole.files()


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


def test_the_workload_as_shipped_has_no_fault_and_others_do_not_need_the_step():
    doggos, vit = (load_workload(ROOT / "params.yaml", name) for name in ("doggos", "vit"))
    assert list(embed.check(doggos, Project(ROOT))) == []
    assert embed.needed(doggos)
    assert not embed.needed(vit)
