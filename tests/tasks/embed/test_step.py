"""The step that embeds images: what it writes, where it is done, what a kill leaves."""

from itertools import product
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from transformers import ViTForImageClassification

from models.network import in_stored_units, normalise
from retrain.params import load_workload
from retrain.project import Project
from tasks.data.shards import ROWS, digest_of_learnt, open_prepared
from tasks.embed.step import embed
from tests.tasks.embed.conftest import run_embed

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "doggos.yaml"


def plain_embeddings(images: Path, backbone: Path, split: str, batch_size: int) -> np.ndarray:
    """What a plain loop over `transformers` gives, with one thread."""
    shards = [np.load(path) for path in sorted((images / split).glob("images-*.npy"))]
    network = ViTForImageClassification.from_pretrained(backbone)
    half = in_stored_units((0.5,))
    found = []
    torch.set_num_threads(1)  # as the step does
    with torch.inference_mode():
        for shard, first in product(shards, range(0, 96, batch_size)):
            if len(pixels := shard[first : first + batch_size]):
                batch = normalise(torch.from_numpy(pixels), half, half)
                found.append(network.vit(batch).last_hidden_state[:, 0].numpy())
    return np.concatenate(found)


def test_embeddings_are_those_of_a_plain_loop_to_the_bit(embedded, images, backbone):
    data, pixels = open_prepared(embedded.folder), open_prepared(images)
    for name in ("train", "val", "test"):
        split, before = data.split(name), pixels.split(name)
        found = split.images[np.arange(len(split))]
        assert np.array_equal(found, plain_embeddings(images, backbone, name, 16))
        assert np.array_equal(split.labels, before.labels)
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
        ({"train.function": "examples.ported:train"}, "train.function"),
        ({"train.augment": {"flip": True}}, "train.augment"),
        ({"train.freeze_epochs": 1}, "train.freeze_epochs"),
        ({"scale.strategy": "fsdp"}, "scale.strategy"),
        ({"train.batch_size": 1}, "train.batch_size"),
        ({"train.batch_size": 3, "scale.workers": 2}, "train.batch_size"),
    ],
)
def test_what_does_not_go_with_embeddings_is_refused(changes, said):
    workload = load_workload(EXAMPLE, "doggos", changes)
    [fault] = embed.check(workload, Project(ROOT))
    assert fault.startswith(f"{said}: ")
    doggos, vit = load_workload(EXAMPLE, "doggos"), load_workload(ROOT / "params.yaml", "vit")
    assert list(embed.check(doggos, Project(ROOT))) == []
    assert (embed.needed(doggos), embed.needed(vit)) == (True, False)


def test_a_run_that_was_ended_goes_on_with_the_missing_parts(tmp_path, images, backbone):
    whole = run_embed(tmp_path, images, backbone)
    lost, *kept = sorted((tmp_path / "scratch").glob("*/images-*.npy"))
    before = [path.stat().st_mtime_ns for path in kept]
    lost.unlink()
    assert run_embed(tmp_path, images, backbone, output="again").files() == whole.files()
    assert [path.stat().st_mtime_ns for path in kept] == before
