"""What a random crop of the originals costs, and what it is worth.

    python -m benchmarks.crop --data FOLDER [--seeds 3]

FOLDER holds the `train.parquet` and `test.parquet` of CIFAR-10 in the layout of the Hugging Face
hub.

- images/s of one core that decodes an image and scales a random part of it (`augment.crop`), as
  training does where images are streamed, against the whole image: of CIFAR-10 at its own 32 x 32,
  and of photos of 1,500 x 1,000, mixed as for `prepare`, at 224 x 224; median of the rounds
- the validation accuracy of a small ResNet on images of 16 x 16, learnt with `augment.crop` 0.25 on
  10,000 images of CIFAR-10, whose originals are 32 x 32: without a crop, with parts of prepared
  images, of prepared images with a margin of 16, and of originals; mean over the seeds

The step is the real one; the images are prepared by the real `validate` and `preprocess`.
"""

import argparse
import io
import logging
import statistics
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np
import pyarrow.parquet as pq

from benchmarks import loops
from benchmarks.prepare import scene
from benchmarks.table import Row, report
from models.image import Part, cut_array, to_array
from retrain.params import load_workload
from retrain.project import Project, find_project
from retrain.step import Workspace
from retrain.store import Artifact
from retrain.workload import Workload
from tasks.preprocess.step import preprocess
from tasks.train.cropping import draw_parts
from tasks.train.sampler import BatchSampler
from tasks.validate.step import validate

CROP, ROUNDS, LEARNT = 0.25, 5, 10_000
SMALL = {
    "data.path": "/images",
    "data.split": {"val": 0.3, "test": 0.02},
    "images.size": 16,
    "model": {
        "family": "auto",
        "config": {
            "model_type": "resnet",
            "layer_type": "basic",
            "embedding_size": 32,
            "hidden_sizes": [32, 64],
            "depths": [1, 1],
        },
    },
    "train.epochs": 10,
    "train.batch_size": 128,
    "train.lr": 3e-3,
    "train.label_smoothing": 0.0,
    "train.precision": "fp32",
    "scale.threads": 1,
}
WAYS = {
    "no crop": {"train.augment": {"flip": True}},
    "of prepared images": {},
    "with a margin of 16": {"images.margin": 16},
    "of originals": {"images.storage": "source"},
}


def main() -> None:
    """Prints speed and accuracy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    table = pq.read_table(options.data / "train.parquet").slice(0, LEARNT)
    encoded = [row["bytes"] for row in table["image"].to_pylist()]
    random = np.random.default_rng(0)
    photos = []
    for _ in range(24):
        file = io.BytesIO()
        scene(encoded, random).save(file, "JPEG", quality=85)
        photos.append(file.getvalue())
    speed("CIFAR-10 at 32 x 32", encoded[:1000], 32)
    speed("photos at 224 x 224", photos, 224)
    if not options.seeds:
        return
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data")
        data.mkdir()
        pq.write_table(table, data / "images.parquet")
        found = {
            way: learn(way, changes, Path(folder), options.seeds) for way, changes in WAYS.items()
        }
    for way, accuracies in found.items():
        mean, others = statistics.mean(accuracies), statistics.mean(found["of prepared images"])
        what = f"resnet on 16 x 16, crop {CROP:g}: {way}"
        report(Row("crop", what, mean, "of prepared images", others, "accuracy"))


def speed(what: str, encoded: list[bytes], size: int) -> None:
    """Reports images/s of parts and of whole images."""
    for crop in (0.08, 0.5):
        parts = draw_parts(crop, BatchSampler(len(encoded), len(encoded), 0, 0, 1), 0).tolist()
        took: dict[str, list[float]] = {"parts": [], "whole": []}
        for _ in range(ROUNDS):
            began = perf_counter()
            for data, part in zip(encoded, parts, strict=True):
                cut_array(data, size, 3, Part(*part))
            took["parts"].append(perf_counter() - began)
            began = perf_counter()
            for data in encoded:
                to_array(data, size, 3, "crop")
            took["whole"].append(perf_counter() - began)
        ours, theirs = (len(encoded) / statistics.median(each) for each in took.values())
        report(Row("crop", f"{what}, crop {crop:g}, a core", ours, "whole", theirs, "images/s"))


def learn(way: str, changes: dict[str, object], root: Path, seeds: int) -> list[float]:
    """Trains with each seed; returns the best validation accuracies."""
    crop = {"train.augment": {"flip": True, "crop": CROP}}
    workload = load_workload(find_project().params, "vit", SMALL | crop | changes)
    own = root / way.replace(" ", "-")
    pulled = Artifact("pull", "", "", root, {"format": "parquet"})
    checked = workspace(own / "validate")
    facts = validate(workload.data, workload.checks, pulled, checked)
    validated = Artifact("validate", "", "", checked.folder, facts)
    prepared = workspace(own / "preprocess")
    preprocess(workload.data, workload.images, pulled, validated, prepared)
    streamed = root if workload.images.storage == "source" else None
    accuracies = []
    for seed in range(seeds):
        facts, _ = loops.run_step(seeded(workload, seed), prepared.folder, streamed)
        accuracies.append(facts["val_accuracy"])
        print(way, seed, accuracies[-1], flush=True)
    return accuracies


def seeded(workload: Workload, seed: int) -> Workload:
    """The workload with another seed."""
    return workload.model_copy(update={"train": workload.train.model_copy(update={"seed": seed})})


def workspace(folder: Path) -> Workspace:
    """An empty place for a step's output."""
    (folder / "output").mkdir(parents=True)
    return Workspace(folder / "output", folder / "scratch", "", "vit", Project(folder))


if __name__ == "__main__":
    main()
