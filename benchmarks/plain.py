"""The whole job as a script, without any orchestration: what one writes before it has to run often.

    python -m benchmarks.plain vit
    python -m benchmarks.plain vit --prefect

With `--prefect` it is a Prefect flow with a task for each of its functions, as Prefect's guides
show it, on the server that Prefect itself starts for a run.

It reads the data through DVC, checks a table about the images with Great Expectations, decodes
them to arrays, trains the same network by the same hyperparameters, scores the test split, and
registers the model in MLflow as champion. Nothing is cached, resumed, retried or compared with a
champion, no page is drawn, and its weights are PyTorch's pickle.
"""

import hashlib
import io
import sys
from collections.abc import Callable
from typing import Any

import great_expectations as gx
import mlflow
import numpy as np
import pandas as pd
import torch
from dvc.repo import Repo
from great_expectations import expectations as gxe
from PIL import Image
from sklearn.metrics import accuracy_score, log_loss, precision_recall_fscore_support
from torch.nn.functional import cross_entropy

import models
from retrain.params import load_workload
from retrain.project import Project, find_project
from retrain.workload import Augment, Checks, Train, Workload

SPLITS = ("train", "val", "test")


Task = Callable[[Callable[..., Any]], Callable[..., Any]]


def main() -> None:
    """Runs everything once."""
    workload = sys.argv[1]
    if "--prefect" in sys.argv:
        from prefect import flow, task

        flow(run)(workload, task)
    else:
        run(workload, lambda function: function)


def run(name: str, task: Task) -> None:
    """Calls the functions one after the other.

    Args:
        name: The workload.
        task: Makes of a function what is called.
    """
    project = find_project()
    workload = load_workload(project.params, name)
    tables = task(read)(project, workload)
    task(check)(tables, workload.checks)
    decoded = task(decode)
    arrays = {split: decoded(table, workload.images.channels) for split, table in tables.items()}

    mlflow.set_tracking_uri(project.tracking_uri)
    mlflow.set_experiment(workload.name)
    with mlflow.start_run():
        mlflow.log_params(workload.train.model_dump() | workload.model.model_dump())
        network = task(train)(workload, arrays)
        mlflow.log_metrics(task(evaluate)(network, *arrays["test"]))
        task(register)(workload, network)


def read(project: Project, workload: Workload) -> dict[str, pd.DataFrame]:
    """Fetches the data and reads its splits."""
    with Repo(str(project.root)) as repo:
        repo.pull(["data.dvc"])
    return {
        split: pd.read_parquet(project.root / workload.data.path / f"{split}.parquet")
        for split in SPLITS
    }


def register(workload: Workload, network: torch.nn.Module) -> None:
    """Registers a network as the first version, and makes it champion."""
    mlflow.pytorch.log_model(
        network,
        name="model",
        registered_model_name=workload.name,
        serialization_format="pickle",
        pip_requirements=["torch", "transformers"],  # else it loads the model to find out
    )
    mlflow.MlflowClient().set_registered_model_alias(workload.name, "champion", "1")


def check(tables: dict[str, pd.DataFrame], checks: Checks) -> None:
    """Expects of the images what the workload says, and stops if they are not so."""
    rows = []
    for split, table in tables.items():
        for image, label in zip(table["image"], table["label"], strict=True):
            with Image.open(io.BytesIO(image["bytes"])) as opened:
                opened.load()
                width, height = opened.size
            sha256 = hashlib.sha256(image["bytes"]).hexdigest()
            rows.append((split, label, min(width, height), max(width, height), sha256))
    images = pd.DataFrame(rows, columns=["split", "label", "shorter", "longer", "sha256"])
    in_splits = images.groupby("sha256")["split"].transform("nunique")
    counts = images["label"].value_counts().rename("images").reset_index()
    known = sorted(images["label"][images["split"] == "train"].unique())
    fewest = checks.min_images_per_class
    expected = [
        (images.assign(in_splits=in_splits), gxe.ExpectColumnValuesToNotBeNull(column="label")),
        (images, gxe.ExpectColumnValuesToBeInSet(column="label", value_set=known)),
        (images, gxe.ExpectColumnValuesToBeBetween(column="shorter", min_value=checks.min_side)),
        (images, gxe.ExpectColumnValuesToBeBetween(column="longer", max_value=checks.max_side)),
        (
            images.assign(in_splits=in_splits),
            gxe.ExpectColumnValuesToBeBetween(column="in_splits", max_value=1),
        ),
        (counts, gxe.ExpectColumnValuesToBeBetween(column="images", min_value=fewest)),
    ]
    source = gx.get_context(mode="ephemeral").data_sources.add_pandas("tables")
    for number, (table, expectation) in enumerate(expected):
        asset = source.add_dataframe_asset(str(number))
        batches = asset.add_batch_definition_whole_dataframe("all")
        done = batches.get_batch({"dataframe": table}).validate(expectation)
        if not done.success:
            raise SystemExit(f"The data is rejected: {done}")


def decode(table: pd.DataFrame, channels: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images as uint8 (N, H, W, C), which have the right size already; labels as int64 (N,)."""
    mode = {1: "L", 3: "RGB"}[channels]
    images = []
    for image in table["image"]:
        with Image.open(io.BytesIO(image["bytes"])) as opened:
            images.append(np.asarray(opened.convert(mode)))
    pixels = torch.from_numpy(np.stack(images))
    labels = torch.from_numpy(table["label"].to_numpy(np.int64))
    return pixels.reshape(*pixels.shape[:3], channels), labels


def train(
    workload: Workload, arrays: dict[str, tuple[torch.Tensor, torch.Tensor]]
) -> torch.nn.Module:
    """Trains; keeps the weights of the epoch with the best validation accuracy."""
    hyperparameters: Train = workload.train
    x, y = arrays["train"]
    torch.manual_seed(hyperparameters.seed)
    torch.set_num_threads(1)  # the fastest for a network as small as this
    network: torch.nn.Module = models.build(
        workload.model.family,
        workload.model.model_dump(exclude={"family"}),
        tuple(x.shape[1:]),  # type: ignore[arg-type]
        int(y.max()) + 1,
    )
    optimizer = torch.optim.AdamW(
        network.parameters(),
        lr=hyperparameters.lr,
        weight_decay=hyperparameters.weight_decay,
        fused=True,
    )
    batches = len(x) // hyperparameters.batch_size
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        hyperparameters.lr,
        hyperparameters.epochs * batches,
        pct_start=hyperparameters.warmup,
    )
    best, weights = -1.0, network.state_dict()
    for epoch in range(hyperparameters.epochs):
        network.train()
        losses = []
        for rows in torch.randperm(len(x))[: batches * hyperparameters.batch_size].split(
            hyperparameters.batch_size
        ):
            logits = network(shift(x[rows], hyperparameters.augment))
            loss = cross_entropy(logits, y[rows], label_smoothing=hyperparameters.label_smoothing)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), hyperparameters.clip_norm)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        scores = evaluate(network, *arrays["val"])
        mlflow.log_metrics(
            {"train_loss": float(np.mean(losses)), "val_accuracy": scores["accuracy"]}, step=epoch
        )
        if scores["accuracy"] > best:
            best = scores["accuracy"]
            weights = {name: value.clone() for name, value in network.state_dict().items()}
    network.load_state_dict(weights)
    return network


def shift(images: torch.Tensor, augment: Augment) -> torch.Tensor:
    """Moves each image by up to as many pixels, filling with the edge."""
    count, height, width = images.shape[:3]
    by = torch.randint(-augment.shift, augment.shift + 1, (2, count, 1))
    y = (torch.arange(height) + by[0]).clamp(0, height - 1)
    x = (torch.arange(width) + by[1]).clamp(0, width - 1)
    return images[torch.arange(count)[:, None, None], y[:, :, None], x[:, None, :]]


def evaluate(
    network: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor
) -> dict[str, float]:
    """The metrics of a split."""
    network.eval()
    with torch.inference_mode():
        logits = torch.cat([network(batch) for batch in images.split(256)])
    given = logits.softmax(1).numpy()
    predicted = given.argmax(1)
    precision, recall, f1, _ = precision_recall_fscore_support(
        labels, predicted, average="macro", zero_division=0
    )
    return {
        "accuracy": accuracy_score(labels, predicted),
        "log_loss": log_loss(labels, given.astype(np.float64), labels=range(given.shape[1])),
        "macro_precision": precision,
        "macro_recall": recall,
        "macro_f1": f1,
    }


if __name__ == "__main__":
    main()
