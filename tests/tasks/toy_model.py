"""Prepared images and a small network, as `preprocess` and `train` leave them."""

import hashlib
import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

from retrain.project import Project
from retrain.step import Workspace
from retrain.store import Artifact
from tasks.data.shards import shard_name

SIZE = 8
IMAGES = {"size": SIZE, "channels": 1, "resize": "crop"}
LABELS = ("ant", "bee", "cat", "dog")
SETTINGS = {"patch_size": 4, "hidden_size": 16, "layers": 1, "heads": 2}


def pixels(rows: int, seed: int = 0) -> np.ndarray:
    """uint8 (rows, SIZE, SIZE, 1)"""
    return np.random.default_rng(seed).integers(0, 256, (rows, SIZE, SIZE, 1), np.uint8)


def png(image: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image[..., 0]).save(buffer, "PNG")
    return buffer.getvalue()


def write_prepared(folder: Path, rows: int, labels=LABELS, shard: int = 17) -> Artifact:
    """The test split of as many random images, their classes in turns."""
    test = folder / "test"
    test.mkdir(parents=True)
    images = pixels(rows)
    for number, start in enumerate(range(0, rows, shard)):
        np.save(test / shard_name(number), images[start : start + shard])
    classes = np.arange(rows, dtype=np.int64) % len(labels)
    np.save(test / "labels.npy", classes)
    table = {
        "path": [f"{row}.png" for row in range(rows)],
        "label": [labels[index] for index in classes],
        "sha256": [hashlib.sha256(image.tobytes()).hexdigest() for image in images],
        "file": "images.parquet",
        "row": range(rows),
    }
    pd.DataFrame(table).to_parquet(test / "rows.parquet")
    (folder / "labels.json").write_text(json.dumps(list(labels)))
    (folder / "images.json").write_text(json.dumps(IMAGES))
    return Artifact("preprocess", "k", "prepared", folder, {})


def write_model(folder: Path, labels=LABELS, seed: int = 0) -> Artifact:
    """A network that was not trained, but says something different about every image."""
    import torch

    import models

    torch.manual_seed(seed)
    network = models.build("vit", SETTINGS, (SIZE, SIZE, 1), len(labels))
    with torch.no_grad():
        network.classifier.classifier.weight.mul_(8)
    model = folder / "model"
    models.save(network, model, family="vit", settings=SETTINGS, labels=list(labels), images=IMAGES)
    weights = hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()
    return Artifact("train", f"key{seed}", f"digest{seed}", folder, {"weights": weights})


def plain_probabilities(model: Path, images: np.ndarray, batch_size: int) -> np.ndarray:
    """What the network says, in a loop in this process: float32 (rows, classes)."""
    import torch

    import models

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    network = models.load(model).module
    with torch.inference_mode():
        said = [
            torch.softmax(network(torch.from_numpy(images[start : start + batch_size])), 1).numpy()
            for start in range(0, len(images), batch_size)
        ]
    torch.set_num_threads(threads)
    return np.concatenate(said)


def workspace(folder: Path, root: Path) -> Workspace:
    folder.mkdir(parents=True)
    return Workspace(folder, folder, "key", "toy", Project(root))
