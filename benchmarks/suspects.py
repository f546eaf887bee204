"""How many wrong labels `retrain suspects` finds, and how many of those that it lists are wrong.

    python -m benchmarks.suspects --data cifar10 [--images 20000] [--epochs 10]
    python -m benchmarks.suspects --data cifar10 --embeddings FILE

The first images of CIFAR-10 (`train.parquet` in the layout of the Hugging Face hub) are taken, and
3 % of their labels, chosen at random, become another class at random. In a copy of the project a
small ResNet of the family `auto` is trained on them from nothing, with the wrong labels, and
`retrain suspects` lists what it finds. With `--embeddings`, a file of NumPy with float32 (images,
D), nothing is trained: these are compared, such as those of a pretrained network.

Result of 2026-11-25, two cores, 20,000 images: with embeddings of EfficientNet-Lite0 (trained on
ImageNet, at 128 x 128) 0.79 of the wrong labels, at a precision of 0.53; the confident joint alone
0.71 at 0.22. With the small ResNet 0.43 at 0.62: it is right for 0.60 of its test images, and a
network that knows the classes little finds few.
"""

import argparse
import csv
import json
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks.flow import call, copy_project
from benchmarks.table import Row, report
from tasks.suspects import confident

FLIPPED = 0.03
PARAMS = {
    "data": {"path": "PLACE"},
    "images": {"size": 32},
    "model": {
        "family": "auto",
        "config": {
            "model_type": "resnet", "layer_type": "basic", "embedding_size": 32,
            "hidden_sizes": [32, 64, 128], "depths": [1, 1, 1], "downsample_in_first_stage": False,
        },
    },
    "train": {
        "batch_size": 128, "optimizer": "adam", "lr": 0.002, "schedule": "one_cycle",
        "augment": {"flip": True, "shift": 3}, "seed": 0,
    },
    "scale": {"workers": 0},
    "gate": {"min": {"accuracy": 0.1}, "metric": "accuracy"},
}  # fmt: skip


def main() -> None:
    """Prints the share that is found, and the precision of the list."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--embeddings", type=Path)
    options = parser.parse_args()
    embeddings = np.load(options.embeddings) if options.embeddings else None
    images = options.images if embeddings is None else len(embeddings)
    table = pq.read_table(options.data / "train.parquet").slice(0, images)
    classes, truth = np.unique(table["label"].to_numpy(), return_inverse=True)
    labels = flipped(truth, len(classes))
    if embeddings is None:
        table = table.set_column(
            table.schema.get_field_index("label"), "label", pa.array(classes[labels])
        )
        found = by_training(table, options.epochs)
    else:
        found = by_embeddings(embeddings, labels, labels != truth)
    tell("small ResNet" if embeddings is None else "embeddings", found, labels != truth)


def flipped(truth: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """The labels, of which a share are another class."""
    random = np.random.default_rng(0)
    wrong = random.choice(len(truth), round(FLIPPED * len(truth)), replace=False)
    labels = truth.copy()
    labels[wrong] = (truth[wrong] + random.integers(1, classes, len(wrong))) % classes
    return labels


def by_embeddings(
    embeddings: NDArray[np.float32], labels: NDArray[np.int64], is_wrong: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """The images that are listed; says what the confident joint alone would list."""
    logits = confident.out_of_sample(embeddings, labels)
    probabilities, noise = confident.probabilities_of(logits, labels)
    print(f"noise {noise:.4f}, accuracy {(probabilities.argmax(axis=1) == labels).mean():.4f}")
    classes = confident.confident_classes(probabilities, labels)
    joint = np.flatnonzero((classes >= 0) & (classes != labels))
    tell("the confident joint alone", joint, is_wrong)
    return confident.wrong_labels(probabilities, noise, labels)


def by_training(table: pa.Table, epochs: int) -> NDArray[np.int64]:
    """The images that `retrain suspects` lists after a training on them."""
    with tempfile.TemporaryDirectory() as folder:
        root = copy_project(Path(folder) / "clone")
        place = Path(folder) / "images"
        place.mkdir()
        pq.write_table(table, place / "images.parquet", row_group_size=2_500)
        entry = PARAMS | {"data": {"path": str(place)}}
        entry["train"] = PARAMS["train"] | {"epochs": epochs}
        (root / "team" / "params.yaml").write_text(json.dumps({"workloads": {"images": entry}}))
        took, said = call(root, ("-m", "retrain.cli", "train", "images", "--json"))
        print(f"accuracy {json.loads(said)['metrics']['accuracy']:.4f}, {took:.0f} s", flush=True)
        took, said = call(root, ("-m", "retrain.cli", "suspects", "images", "--json"))
        print(f"noise {json.loads(said)['suspects']['noise']:.4f}, {took:.0f} s", flush=True)
        with (root / "reports" / "images" / "suspects.csv").open(encoding="utf-8") as file:
            rows = [int(row["row"]) for row in csv.DictReader(file) if "wrong" in row["why"]]
    return np.array(rows)


def tell(what: str, found: NDArray[np.int64], is_wrong: NDArray[np.bool_]) -> None:
    """Reports the recall and the precision of a list."""
    right = int(is_wrong[found].sum())
    for name, of, target in (
        ("recall", int(is_wrong.sum()), 0.7),
        ("precision", len(found), 0.5),
    ):
        row = Row("suspects", f"{what}, {name}", right / of, "wanted", target, "", "≥ 1")
        report(row)


if __name__ == "__main__":
    main()
