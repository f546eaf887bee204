"""Prepared images and a small network, as `preprocess` and `train` leave them."""

import hashlib
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from models.image import inspect
from retrain.project import Project
from retrain.registry import tracking
from retrain.registry.versions import ModelVersion
from retrain.step import Workspace
from retrain.store import Artifact
from tasks.data import image_table, package, predictions
from tasks.data.image_facts import digest
from tasks.data.metrics import outcomes
from tasks.data.predictions import write_reference
from tasks.data.shards import shard_name
from tests.tasks.toy_data import encoded, write_parquet

SIZE = 8
IMAGES = {"size": SIZE, "channels": 1, "resize": "crop"}
LABELS = ("ant", "bee", "cat", "dog")
SETTINGS = {"patch_size": 4, "hidden_size": 16, "layers": 1, "heads": 2}


VERSION = ModelVersion(
    name="toy", weights="w", package_digest="0" * 64, train_digest="t", train_key=None, start=None,
    family="vit", images={}, classes=None, metrics={}, data=None, commit=None, run_id="r",
    version=1, aliases=(), verdict=None, created="",
)  # fmt: skip
HISTORY = [
    {
        "epoch": epoch,
        "train_loss": 2 / epoch,
        "val_loss": 2.1 / epoch,
        "val_accuracy": 1 - 1 / epoch,
        "lr": 0.1,
        "images_per_second": 9.0,
    }
    for epoch in range(1, 4)
]


def pixels(rows: int, seed: int = 0) -> np.ndarray:
    """uint8 (rows, SIZE, SIZE, 1)"""
    return np.random.default_rng(seed).integers(0, 256, (rows, SIZE, SIZE, 1), np.uint8)


def png(image: np.ndarray) -> bytes:
    return encoded(Image.fromarray(image[..., 0]), "PNG")


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
        "sha256": [hashlib.sha256(png(image)).hexdigest() for image in images],
        "pixels": [digest(image) for image in images],
        "file": "images.parquet",
        "row": range(rows),
    }
    pd.DataFrame(table).to_parquet(test / "rows.parquet")
    for split, seed in (("train", 1), ("val", 2)):  # an image in each
        (folder / split).mkdir()
        rows_ = pd.DataFrame({"pixels": [digest(pixels(1, seed)[0])]})
        rows_.to_parquet(folder / split / "rows.parquet")
    (folder / "labels.json").write_text(json.dumps(labels))
    (folder / "images.json").write_text(json.dumps(IMAGES))
    return Artifact("preprocess", "k", "prepared", folder, {"storage": "pixels"})


def described(prepared: Artifact) -> Artifact:
    """What `validate` had said of prepared test images; it lies beside them."""
    folder = prepared.folder.with_name(f"{prepared.folder.name}-validated")
    folder.mkdir(exist_ok=True)
    rows = pd.read_parquet(prepared.folder / "test" / "rows.parquet")
    rows = rows.assign(split="test", width=SIZE, height=SIZE, brightness=0.5, contrast=0.5)
    rows = rows.reindex(columns=image_table.SCHEMA.names)
    image_table.write(rows, pa.table({}), folder / image_table.FILE_NAME)
    return Artifact("validate", "k", "validated", folder, {})


def write_data(root: Path, rows: int, labels=LABELS) -> tuple[Artifact, Artifact]:
    """The same images as `pull` and `validate` leave them, with a training image of each class."""
    splits = {
        "test": [(png(image), labels[row % len(labels)]) for row, image in enumerate(pixels(rows))],
        "train": [(png(pixels(1, seed)[0]), label) for seed, label in enumerate(labels, 1)],
    }
    table = []
    for split, images in splits.items():
        table += [
            {
                "split": split,
                "path": f"{row}.png",
                "label": label,
                "file": f"{split}.parquet",
                "row": row,
                "width": SIZE,
                "height": SIZE,
                "mode": "L",
                "bytes": len(data),
                "sha256": hashlib.sha256(data).hexdigest(),
                "pixels": digest(inspect(data)[1]),
            }
            for row, (data, label) in enumerate(images)
        ]
        named = [{"bytes": data, "path": f"{row}.png"} for row, (data, _) in enumerate(images)]
        file = root / "pull" / "data" / f"{split}.parquet"
        write_parquet(file, named, [label for _, label in images], row_group_size=17)
    (root / "validate").mkdir()
    listed = pa.Table.from_pylist(table, image_table.SCHEMA)
    pq.write_table(listed, root / "validate" / image_table.FILE_NAME)
    pq.write_table(listed.slice(0, 0), root / "validate" / image_table.SET_ASIDE)
    facts = {
        "classes": dict(Counter(row["label"] for row in table)),
        "rows": {"train": len(labels), "val": 0, "test": rows},
        "quarantined": 0,
        "near_duplicates": 0,
        "test_rows": image_table.digest_of_split(root / "validate", "test"),
    }
    return (
        Artifact("pull", "k", f"pulled-{rows}", root / "pull", {"image_column": "image"}),
        Artifact("validate", "k", f"validated-{rows}", root / "validate", facts),
    )


def write_report(trained: Artifact, project: Project) -> str:
    """What `train` leaves for people, with a run in MLflow; returns the run's id."""
    run = tracking.start_run(project, "toy", trained.key, {"train.lr": 0.1}, "digest")
    tracking.end_run(project, run, "FINISHED")
    report = trained.folder / "report"
    report.mkdir()
    (report / "history.json").write_text(json.dumps(HISTORY))
    (report / "mlflow.json").write_text(json.dumps({"run_id": run}))
    return run


def write_scores(folder: Path, trained: Artifact, rows: int, precision: str = "fp32") -> Artifact:
    """What `evaluate` leaves that later steps read: the predictions and the facts."""
    model = trained.folder / "model"
    known = json.loads((model / "labels.json").read_text())
    probabilities = plain_probabilities(model, pixels(rows), 256, precision)
    images = [png(image) for image in pixels(rows)]
    described = {
        "path": [f"{row}.png" for row in range(rows)],
        "sha256": [hashlib.sha256(image).hexdigest() for image in images],
        "pixels": [digest(inspect(image)[1]) for image in images],
        "label": [LABELS[row % len(LABELS)] for row in range(rows)],
    }
    folder.mkdir(parents=True, exist_ok=True)
    predictions.write(pa.table(described), [probabilities], known, folder / predictions.FILE)
    np.save(folder / predictions.GROUPS, np.arange(rows))
    measured = {"width": SIZE, "height": SIZE, "brightness": 0.5, "contrast": 0.5}
    write_reference(pa.Table.from_pylist([measured] * rows), {}, folder)
    counted = outcomes(predictions.read(folder).tally(LABELS))
    (folder / "classes.json").write_text(json.dumps(counted))
    facts = {
        "metrics": {"accuracy": 0.95, "log_loss": 0.2, "rows": rows},
        "train": trained.digest,
        "precision": precision,
        "test_images": f"images-{rows}",
        "package": package.package_digest(model, precision, package.code_of(model)),
        "slices": [],
        "package_bytes": package.size_of(model),
    }
    return Artifact("evaluate", "k", f"scores-{facts['package']}", folder, facts)


def write_model(folder: Path, labels=LABELS, seed: int = 0) -> Artifact:
    """A network that was not trained, but gives every image another answer."""
    import torch

    import models

    torch.manual_seed(seed)
    network = models.build("vit", SETTINGS, (SIZE, SIZE, 1), len(labels))
    with torch.no_grad():
        network.classifier.classifier.weight.mul_(8)
    model = folder / "model"
    models.save(network, model, family="vit", settings=SETTINGS, labels=list(labels), images=IMAGES)
    return model_in(folder, seed)


def write_custom(
    folder: Path, factory: str = "examples.network:build_model", **arguments: object
) -> Artifact:
    """A network that a function of a user's makes, which was not trained."""
    import models

    settings = {"factory": factory, "arguments": arguments}
    network = models.build("custom", settings, (SIZE, SIZE, 1), len(LABELS))
    saved = {"settings": settings, "labels": LABELS, "images": IMAGES}
    models.save(network, folder / "model", family="custom", **saved)
    return model_in(folder)


def model_in(folder: Path, seed: int = 0) -> Artifact:
    """What `write_model` or `write_custom` has written."""
    weights = hashlib.sha256((folder / "model" / "model.safetensors").read_bytes()).hexdigest()
    return Artifact("train", f"key{seed}", f"digest{seed}", folder, {"weights": weights})


def invert_images(package: Path) -> None:
    """Gives a package a decoder of its own, which inverts each image."""
    decoder, last = package / "code" / "models" / "image.py", "return np.asarray(image).reshape("
    text = decoder.read_text()
    assert last in text
    decoder.write_text(text.replace(last, last.replace("return ", "return 255 - ")))


def plain_probabilities(
    model: Path, images: np.ndarray, batch_size: int, precision: str = "fp32"
) -> np.ndarray:
    """The probabilities of the network, from a loop in this process: float32 (rows, classes)."""
    import torch

    import models

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    network = models.load(model).module
    network.prefer_attention("cpu", precision)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")
    with torch.inference_mode(), autocast:
        batches = [
            torch.softmax(network(torch.from_numpy(images[start : start + batch_size])), 1).numpy()
            for start in range(0, len(images), batch_size)
        ]
    torch.set_num_threads(threads)
    return np.concatenate(batches)


def workspace(folder: Path, root: Path) -> Workspace:
    folder.mkdir(parents=True)
    return Workspace(folder, folder, "key", "toy", Project(root))
