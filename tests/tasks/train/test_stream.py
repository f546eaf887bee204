"""Images that Ray Data decodes while a network trains."""

import os
import shutil
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from retrain.store import Artifact
from retrain.workload import Augment, Checks, Data, Gate, Images, Scale, Train
from tasks.data.shards import open_prepared
from tasks.preprocess.step import preprocess
from tasks.train.data_loading import BatchSampler
from tasks.train.stream import Stream
from tasks.validate.step import validate
from tests.tasks.toy_data import png, pulled, workspace, write_files, write_parquet
from tests.tasks.train.helpers import ROOT, killing_a_worker, run, run_interrupted

pytestmark = pytest.mark.usefixtures("ray_session")

COUNT = 150
DATA = Data(path="data")
RECIPE = Train(epochs=3, batch_size=16, lr=0.01, augment=Augment(shift=1))
in_folders = pytest.mark.parametrize("both", ["folders"], indirect=True)
in_parquet = pytest.mark.parametrize("both", ["parquet"], indirect=True)


def prepare(root: Path, format: str, size: int = 8, channels: int = 1) -> SimpleNamespace:
    """Images as `pulled`, and prepared in both ways: as `pixels` and as `source`."""
    files = {f"{n % 3}/{n:03}.png": png(n, 10, 8) for n in range(COUNT)}
    if format == "folders":
        write_files(root / "data", files)
    else:
        for number in range(2):
            rows = list(files.items())[number::2]
            write_parquet(
                root / f"data/{number}.parquet",
                [data for _, data in rows],
                [path.split("/")[0] for path, _ in rows],
                row_group_size=13,
            )
    raw, checked = pulled(root, format), workspace(root, "validate")
    facts = validate(DATA, Checks(min_images_per_class=1), Gate(), raw, None, checked)
    validated = Artifact("validate", "key", "digest", checked.folder, facts)
    folders = {}
    for storage in ("pixels", "source"):
        space = workspace(root, storage)
        images = Images(size=size, channels=channels, storage=storage)
        assert preprocess(images, raw, validated, space)["storage"] == storage
        folders[storage] = space.folder
    return SimpleNamespace(pulled=raw.folder, **folders)


@pytest.fixture(scope="module", params=["folders", "parquet"])
def both(request, tmp_path_factory):
    return prepare(tmp_path_factory.mktemp(request.param), request.param)


@in_folders
def test_it_trains_the_network_that_prepared_images_give(both, tmp_path):
    shards = run(tmp_path / "shards", both.pixels, RECIPE)
    streamed = run(tmp_path / "stream", both.source, RECIPE, pulled=both.pulled)
    assert streamed.facts == shards.facts
    assert streamed.model_files() == shards.model_files()


@in_parquet
def test_each_epoch_has_each_image_once_with_its_label(both, job):
    split = open_prepared(both.pixels).split("train")
    stored = [image.tobytes() for image in split.images[np.arange(len(split))]]
    labels = dict(zip(stored, split.labels.tolist(), strict=True))
    job = replace(job, hyperparameters=RECIPE, images=both.source, pulled=both.pulled)
    sampler = BatchSampler(len(split), RECIPE.batch_size, 0, 0, 1)
    with closing(Stream(job, sampler, 0, torch.device("cpu"))) as stream:
        batches = [[*stream.epoch(epoch, 0)] for epoch in range(RECIPE.epochs)]
    epochs = [[image.numpy().tobytes() for given, _ in each for image in given] for each in batches]
    given = [label for each in batches for _, labels in each for label in labels.tolist()]
    assert [len(set(seen)) for seen in epochs] == [
        sampler.per_epoch * sampler.share
    ] * RECIPE.epochs
    assert len({tuple(seen) for seen in epochs}) == RECIPE.epochs  # each in its own order
    assert [labels[image] for seen in epochs for image in seen] == given


@pytest.mark.parametrize(
    ("both", "changes", "step"),
    [("parquet", {}, 8), ("folders", {"augment": Augment(crop=0.3, shift=1)}, 11)],
    indirect=["both"],
    ids=["within an epoch", "parts of originals"],
)
def test_it_goes_on_at_the_step_where_it_was(both, tmp_path, ending_before, steps, changes, step):
    recipe = RECIPE.model_copy(update=changes)
    run_interrupted(tmp_path, both.source, recipe, ending_before(step), pulled=both.pulled)
    assert steps[0] == step


# On a Ray with two CPUs, as many as two workers and their tasks could take alone.
PROGRAM = """
import sys
from pathlib import Path
from retrain.servers import ray_cluster
from retrain.workload import Scale
from tests.tasks.train.helpers import run
from tests.tasks.train.test_stream import RECIPE

if __name__ == "__main__":
    ray_cluster.logical_cpus = lambda: 2
    source, pulled, root = map(Path, sys.argv[1:])
    run(root, source, RECIPE, scale=Scale(workers=2), pulled=pulled)
"""


@pytest.mark.slow
@in_folders
def test_workers_and_the_tasks_that_decode_for_them_share_two_cpus(both, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, both.source, both.pulled, tmp_path / "two"],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@in_folders
def test_a_killed_worker_is_replaced_and_gets_the_images_that_were_left(both, tmp_path):
    scale = Scale(workers=2, checkpoint_seconds=1e-9)
    with killing_a_worker(tmp_path):
        streamed = run(tmp_path, both.source, RECIPE, scale=scale, pulled=both.pulled)
    assert [epoch["epoch"] for epoch in streamed.history] == [1, 2, 3]


@in_folders
@pytest.mark.parametrize("damage", ["removed", "changed"])
def test_an_image_that_is_lost_during_a_training_is_named(both, tmp_path, damage):
    name = pd.read_parquet(both.source / "train" / "rows.parquet")["file"][0]
    pulled = Path(shutil.copytree(both.pulled, tmp_path / "pulled"))
    if damage == "removed":
        (pulled / "data" / name).unlink()
    else:
        (pulled / "data" / name).write_bytes(png(999, 10, 8))
    with pytest.raises(ValueError, match=f"^{name} of the pulled data.*disk") as raised:
        run(tmp_path, both.source, RECIPE, pulled=pulled)
    assert "\n" not in str(raised.value)
