"""The step that embeds images: what it writes, where it is done, what a kill leaves."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from transformers import ViTForImageClassification

from models.network import in_stored_units, normalise
from retrain.outputs import list_files
from retrain.params import load_workload
from retrain.project import Project
from tasks.data.shards import ROWS, digest_of_learnt, open_prepared
from tasks.embed.step import embed
from tests.tasks.embed.conftest import run_embed

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
