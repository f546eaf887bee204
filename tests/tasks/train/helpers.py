"""Prepared images that a small network learns in seconds, and a place to train it."""

import json
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import load

import models
from retrain.project import Project
from retrain.step import Facts, Workspace
from retrain.store import Artifact
from retrain.workload import Model, Scale
from tasks.data.shards import SOURCE, open_prepared, shard_name
from tasks.train.session import CHECKPOINTS, REPORTS
from tasks.train.step import train
from tests import templates

ROOT = Path(__file__).parents[3]
LABELS = ("bottom", "middle", "top")
SMALL = Model(family="vit", patch_size=4, hidden_size=16, layers=1, heads=2)
KEY = "c0ffee" * 10
OFTEN = Scale(checkpoint_seconds=1e-9)  # after every step


def write_prepared(folder, rows=96, val=33, size=8, channels=1, embedded=None):
    """Noise, in which the third of the pixels that names the class is brighter; or embeddings."""
    random = np.random.default_rng(0)
    shape = (embedded,) if embedded else (size, size, channels)
    third = np.arange(prod(shape)) * len(LABELS) // prod(shape)
    for split, count in (("train", rows), ("val", val), ("test", 9)):
        labels = random.integers(0, len(LABELS), count)
        values = random.integers(0, 156, (count, prod(shape)), np.uint8)
        values[third == labels[:, None]] += 60
        images = values.reshape(count, *shape).astype(np.float32 if embedded else np.uint8)
        write_split(folder / split, np.array_split(images, 2), labels)
    write_form(folder, LABELS, size=size, channels=channels)
    return folder


def write_split(folder, shards, labels):
    """A split as `preprocess` or `embed` leaves it, without the origin of its rows."""
    folder.mkdir(parents=True)
    for number, shard in enumerate(shards):
        np.save(folder / shard_name(number), shard)
    np.save(folder / "labels.npy", labels)


def write_form(folder, labels, size, channels):
    """The names of the classes and the form of the images, as `preprocess` leaves them."""
    (folder / "labels.json").write_text(json.dumps(labels))
    form = {"size": size, "channels": channels, "resize": "crop"}
    (folder / "images.json").write_text(json.dumps(form))


@dataclass(frozen=True)
class Trained:
    """What a training left."""

    facts: Facts
    folder: Path
    project: Project

    @property
    def history(self):
        return json.loads((self.folder / "report" / "history.json").read_text())

    @property
    def run_id(self):
        return json.loads((self.folder / "report" / "mlflow.json").read_text())["run_id"]

    def model_files(self):
        return {path.name: path.read_bytes() for path in (self.folder / "model").iterdir()}


def validated(trained, images):
    """The cross-entropy and the accuracy of the saved network on the validation split."""
    val = open_prepared(images).split("val")
    network = models.load(trained.folder / "model").module
    with torch.inference_mode():
        logits = network(torch.from_numpy(val.images[np.arange(len(val))]))
    labels = torch.from_numpy(val.labels)
    loss = torch.nn.functional.cross_entropy(logits, labels)
    return float(loss), float((logits.argmax(1) == labels).float().mean())


def kept(scratch):
    """The numbers of the checkpoints that are there: those of the steps, where each has one."""
    return sorted(int(folder.name) for folder in (scratch / CHECKPOINTS).iterdir())


def assert_alike(trained, other):
    """Holds that two trainings differ by rounding only."""
    for epoch, others in zip(trained.history, other.history, strict=True):
        assert epoch["train_loss"] == pytest.approx(others["train_loss"], rel=1e-3)
        assert epoch["val_loss"] == pytest.approx(others["val_loss"], rel=1e-3)
    ours, theirs = (load(each.model_files()[models.WEIGHTS]) for each in (trained, other))
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        # Softmax does not see the keys' bias: its gradient is rounding error, which Adam scales up.
        if not name.endswith("k_proj.bias"):
            assert torch.allclose(value, theirs[name], atol=1e-3), name


def run(
    root,
    images,
    hyperparameters,
    *,
    model=SMALL,
    scale=None,
    output="output",
    pulled=None,
    start=None,
):
    """Runs the step; in the same root again, as a retry of it."""
    # Both are decided when a workload is read. Such a network gains nothing from more threads.
    precision = hyperparameters.precision.replace("auto", "fp32")
    hyperparameters = hyperparameters.model_copy(update={"precision": precision})
    folder, scratch = root / output, root / "scratch"
    folder.mkdir(parents=True)
    scratch.mkdir(exist_ok=True)
    project = Project(root)
    if not (root / "mlflow.db").exists():
        templates.place_mlflow_database(root)
    workspace = Workspace(folder, scratch, KEY, "sides", project)
    storage = "source" if (images / "train" / SOURCE).exists() else "pixels"
    rows = {"train": len(open_prepared(images).split("train"))}
    facts = {"storage": storage, "rows": rows, "learnt": "ab" * 32}
    prepared = Artifact("preprocess", "k", "ab" * 32, images, facts)
    scale = scale or Scale()
    threads = 1 if scale.threads == "auto" else scale.threads
    pulled = Artifact("pull", "k", "cd" * 32, pulled or root, {})
    scale = scale.model_copy(update={"threads": threads})
    facts = train(model, hyperparameters, scale, prepared, pulled, start, workspace)
    return Trained(facts, folder, project)


def run_interrupted(root, images, recipe, ending, **given):
    """Trains undisturbed, and again with an interruption; holds that the bits are the same.

    Args:
        root: Gets both.
        images: What is trained on.
        recipe: How.
        ending: The block in which a training is interrupted, as `ending_before` makes it.
        given: What else `run` takes; there is a checkpoint of each step.
    """
    given = {"scale": OFTEN} | given
    whole = run(root / "whole", images, recipe, **given)
    with ending:
        run(root, images, recipe, **given, output="interrupted")
    resumed = run(root, images, recipe, **given)
    assert resumed.facts == whole.facts
    assert resumed.model_files() == whole.model_files()
    for epoch, same in zip(resumed.history, whole.history, strict=True):
        assert epoch["train_loss"] == same["train_loss"]
    return resumed


@contextmanager
def killing_a_worker(folder):
    """Kills a worker of a training that runs meanwhile, after its first checkpoint."""
    killed = threading.Event()

    def kill():
        family = psutil.Process()
        while not (workers := [*filter(is_worker, family.children(recursive=True))]):
            time.sleep(0.05)
        while not (folder / "scratch" / REPORTS).exists():
            time.sleep(0.005)
        workers[0].kill()
        killed.set()

    threading.Thread(target=kill, daemon=True).start()
    yield
    assert killed.is_set(), "the training was over before a worker could be killed"


def is_worker(process):
    with suppress(psutil.NoSuchProcess):
        return any("RayTrainWorker" in word for word in process.cmdline())
    return False
