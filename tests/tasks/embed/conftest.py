"""What the tests of the step share: prepared images, a small backbone, a place to run it."""

import hashlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from models.pretrained import find_version
from retrain.file_io import write_json
from retrain.outputs import MANIFEST, list_files
from retrain.project import Project
from retrain.step import Workspace
from retrain.store import Artifact
from retrain.workload import Evaluate, Model
from tasks.data.image_facts import digest
from tasks.data.shards import open_prepared
from tasks.embed.step import embed
from tests.tasks.train.helpers import write_prepared


def write_backbone(folder: Path) -> Path:
    """A ViT for these images, with a last layer and so without a pooler."""
    import torch
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    torch.manual_seed(0)
    config = ViTConfig(
        image_size=8, patch_size=4, num_channels=1, hidden_size=16, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=32, initializer_range=0.2,
    )  # fmt: skip
    ViTForImageClassification(config).save_pretrained(folder)
    ViTImageProcessor().save_pretrained(folder)  # of three channels; the values are equal
    return folder


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """Three splits as `preprocess` leaves them: 8 x 8 pixels, one channel."""
    return describe_rows(write_prepared(tmp_path_factory.mktemp("images") / "images"))


def describe_rows(folder: Path) -> Path:
    """Adds where the images come from, and the manifest."""
    data = open_prepared(folder)
    for name in ("train", "val", "test"):
        split = data.split(name)
        count = range(len(split))
        table = {
            "path": [f"{name}/{row}.png" for row in count],
            "label": [data.labels[index] for index in split.labels],
            "sha256": [hashlib.sha256(f"{name}/{row}.png".encode()).hexdigest() for row in count],
            "pixels": [digest(split.images[np.array([row])][0]) for row in count],
            "file": f"{name}.parquet",
            "row": list(count),
        }
        pd.DataFrame(table).to_parquet(folder / name / "rows.parquet")
    write_json(folder / MANIFEST, {"files": list_files(folder)})
    return folder


@pytest.fixture(scope="session")
def backbone(tmp_path_factory):
    return write_backbone(tmp_path_factory.mktemp("backbone") / "vit")


def head_on(backbone: Path) -> Model:
    settings = {"pretrained": str(backbone), "hidden": 8, "dropout": 0.3}
    version = find_version(str(backbone), Path()) if backbone.is_absolute() else None
    return Model(family="embedding_head", pretrained_version=version, **settings)


def run_embed(root: Path, images: Path, backbone: Path, output: str = "output") -> Artifact:
    """The output of the step; in the same root again, as a retry of it."""
    folder, scratch = root / output, root / "scratch"
    folder.mkdir(parents=True)
    scratch.mkdir(exist_ok=True)
    workspace = Workspace(folder, scratch, "key", "toy", Project(root))
    prepared = open_prepared(images)
    rows = {split: len(prepared.split(split)) for split in ("train", "val", "test")}
    facts = {"storage": "pixels", "rows": rows, "classes": list(prepared.labels)}
    artifact = Artifact("preprocess", "k", "ab" * 32, images, facts)
    evaluation = Evaluate(batch_size=16, precision="fp32")
    found = embed(head_on(backbone), evaluation, artifact, workspace)
    return Artifact("embed", "k", "ef" * 32, folder, found)


@pytest.fixture(scope="session")
def embedded(tmp_path_factory, images, backbone):
    return run_embed(tmp_path_factory.mktemp("embedded"), images, backbone)
