"""The ways to train that are compared: the project's step, and what one would write instead.

Each trains the same network with the same hyperparameters on the same images and says how many
images per second it went through, epoch by epoch.
"""

import hashlib
import json
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

import models
from retrain.project import Project
from retrain.step import Facts, Workspace
from retrain.store import Artifact
from retrain.workload import Workload
from tasks.data.shards import ROWS, SOURCE, Prepared, open_prepared, shard_name
from tasks.train.augmentation import augment
from tasks.train.data_loading import BatchSampler
from tasks.train.recipe import learning_rate, make_optimizer
from tasks.train.step import train

ROWS_PER_SHARD = 1000


@dataclass(frozen=True)
class Speed:
    """Images per second, medians over a training's epochs but the first.

    Attributes:
        training: From an epoch's first batch to its last.
        epoch: From an epoch's end to the next one's: with validation, and with whatever else is
            done between two epochs.
    """

    training: float
    epoch: float


def prepare(folder: Path, workload: Workload, rows: int) -> Path:
    """Writes random images as `preprocess` does; what is in them does not change the speed."""
    random = np.random.default_rng(0)
    shape = workload.images.shape
    for split, count in (("train", rows), ("val", rows // 6)):
        (folder / split).mkdir(parents=True)
        for number, first in enumerate(range(0, count, ROWS_PER_SHARD)):
            size = (min(ROWS_PER_SHARD, count - first), *shape)
            shard = random.integers(0, 256, size, dtype=np.uint8)
            np.save(folder / split / shard_name(number), shard)
        np.save(folder / split / "labels.npy", random.integers(0, 10, count))
    (folder / "labels.json").write_text(json.dumps([str(number) for number in range(10)]))
    images = workload.images.model_dump(include={"size", "channels", "resize"})
    (folder / "images.json").write_text(json.dumps(images))
    return folder


def jpeg(pixels: NDArray[np.uint8]) -> bytes:
    """An encoded image of pixels (H, W, C)."""
    buffer = BytesIO()
    Image.fromarray(pixels.squeeze()).save(buffer, "JPEG", quality=95, subsampling="4:4:4")
    return buffer.getvalue()


def leave_undecoded(images: Path) -> tuple[Path, Path]:
    """Makes prepared images those of a data set in Parquet, of which none is prepared for training.

    Args:
        images: As `prepare` writes them.

    Returns:
        What `preprocess` would write with `images.storage: source`, and the output of `pull`.
    """
    prepared, pulled = images.with_name("undecoded"), images.with_name("pulled")
    if prepared.exists():
        return prepared, pulled
    data = open_prepared(images)
    split = data.split("train")
    pixels = split.images[np.arange(len(split))]
    encoded = [jpeg(image) for image in pixels]
    (pulled / "data").mkdir(parents=True)
    table = pa.table({"image": encoded, "label": split.labels})
    pq.write_table(table, pulled / "data" / "train.parquet", row_group_size=ROWS_PER_SHARD)
    shutil.copytree(images, prepared, ignore=shutil.ignore_patterns("train"))
    folder = prepared / "train"
    folder.mkdir()
    np.save(folder / "labels.npy", split.labels)
    digests = [hashlib.sha256(each).hexdigest() for each in encoded]
    files, numbers = ["train.parquet"] * len(split), np.arange(len(split))
    pq.write_table(pa.table({"file": files, "row": numbers, "sha256": digests}), folder / ROWS)
    described = {"image_column": "image", "bytes": sum(map(len, encoded))}
    (folder / SOURCE).write_text(json.dumps(described))
    return prepared, pulled


def run_step(
    workload: Workload, images: Path, pulled: Path | None = None
) -> tuple[Facts, list[dict[str, Any]]]:
    """Runs the project's step from an empty workspace.

    Args:
        workload: What to train.
        images: Prepared images; or, with `pulled`, such as are not.
        pulled: The output of `pull`.

    Returns:
        The step's facts and its history.
    """
    rows = {"train": len(open_prepared(images).split("train"))}
    storage = "source" if pulled else "pixels"
    facts = {"storage": storage, "rows": rows, "learnt": "benchmark"}
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        output, scratch = root / "output", root / "scratch"
        output.mkdir()
        scratch.mkdir()
        trained = train(
            workload.model,
            workload.train,
            workload.scale,
            Artifact("preprocess", "benchmark", "benchmark", images, facts),
            Artifact("pull", "benchmark", "benchmark", pulled or root, {"image_column": "image"}),
            None,
            Workspace(output, scratch, "benchmark", workload.name, Project(root)),
        )
        return trained, json.loads((output / "report" / "history.json").read_text())


def step(workload: Workload, images: Path, pulled: Path | None = None) -> Speed:
    """The project's step: checkpoints, progress and MLflow included."""
    history = run_step(workload, images, pulled)[1][1:]
    rows = open_prepared(images).split("train")
    trained = len(rows) // workload.train.batch_size * workload.train.batch_size
    return Speed(
        statistics.median(epoch["images_per_second"] for epoch in history),
        statistics.median(trained / epoch["seconds"] for epoch in history),
    )


def bare(workload: Workload, images: Path) -> Speed:
    """A plain loop over tensors in memory, of a GPU if there is one, shuffled with `randperm`."""
    data, batch = open_prepared(images), workload.train.batch_size
    x, y = (each.to(_device()) for each in tensors(data, "train"))

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(x), device=x.device)
        for first in range(0, len(x) // batch * batch, batch):
            rows = order[first : first + batch]
            yield x[rows], y[rows]

    return by_hand(workload, data, batches)


def hf_trainer(workload: Workload, images: Path) -> Speed:
    """The Trainer of `transformers` with its own loader."""
    from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

    data, hyperparameters = open_prepared(images), workload.train
    network = build(workload, data)
    splits = {name: tensors(data, name) for name in ("train", "val")}
    loss_of = torch.nn.CrossEntropyLoss(label_smoothing=hyperparameters.label_smoothing)
    augment = _augment(workload, len(splits["train"][0]))
    marks: dict[str, list[float]] = {"begin": [], "trained": [], "end": []}

    class WithLoss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
            logits = self.network(augment(images) if self.training else images)
            return {"loss": loss_of(logits, labels), "logits": logits}

    class Clock(TrainerCallback):  # type: ignore[misc]  # transformers is not typed for us
        def on_epoch_begin(self, *_: Any, **__: Any) -> None:
            marks["begin"].append(monotonic())

        def on_epoch_end(self, *_: Any, **__: Any) -> None:
            marks["trained"].append(monotonic())

        def on_evaluate(self, *_: Any, **__: Any) -> None:
            marks["end"].append(monotonic())

    def collate(rows: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        x, y = zip(*rows, strict=True)
        return {"images": torch.stack(x), "labels": torch.stack(y)}

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=hyperparameters.epochs,
            per_device_train_batch_size=hyperparameters.batch_size,
            per_device_eval_batch_size=hyperparameters.batch_size,
            learning_rate=hyperparameters.lr,
            weight_decay=hyperparameters.weight_decay,
            max_grad_norm=hyperparameters.clip_norm,
            lr_scheduler_type="cosine",
            dataloader_drop_last=True,
            eval_strategy="epoch",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=not torch.cuda.is_available(),
            bf16=hyperparameters.precision == "bf16",
            log_level="error",
        )
        trainer = Trainer(
            WithLoss(),
            arguments,
            data_collator=collate,
            train_dataset=torch.utils.data.TensorDataset(*splits["train"]),
            eval_dataset=torch.utils.data.TensorDataset(*splits["val"]),
            callbacks=[Clock()],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    trained = len(splits["train"][0]) // hyperparameters.batch_size * hyperparameters.batch_size
    each = list(zip(*marks.values(), strict=True))[1:]
    return Speed(
        statistics.median(trained / (last - begin) for begin, last, _ in each),
        statistics.median(trained / (end - begin) for begin, _, end in each),
    )


def tensors(data: Prepared, split: str) -> tuple[Tensor, Tensor]:
    """All images, uint8 (n, H, W, C), and labels, int64 (n,), of a split, in memory."""
    opened = data.split(split)
    images = opened.images[np.arange(len(opened))]
    return torch.from_numpy(images), torch.from_numpy(opened.labels)


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def build(workload: Workload, data: Prepared) -> Any:
    """The workload's network, with the same first weights in every way of training."""
    torch.manual_seed(workload.train.seed)
    settings = workload.model.model_dump(exclude={"family"})
    return models.build(workload.model.family, settings, data.shape, len(data.labels))


def _augment(
    workload: Workload, rows: int, rank: int = 0, workers: int = 1
) -> Callable[[Tensor], Tensor]:
    """The step's own changes of the images, counting the steps itself."""
    hyperparameters = workload.train
    batches = BatchSampler(rows, hyperparameters.batch_size, hyperparameters.seed, rank, workers)
    steps = iter(range(2**31))
    return lambda images: augment(images, hyperparameters.augment, batches, next(steps))


def by_hand(
    workload: Workload,
    data: Prepared,
    batches: Callable[[], Iterator[tuple[Tensor, Tensor]]],
    rank: int = 0,
    workers: int = 1,
) -> Speed:
    """The loop that one would write by hand.

    Args:
        workload: What is trained.
        data: The images; those of `val` are in memory.
        batches: Gives those of an epoch, anew at each call.
        rank: Of this process among the workers.
        workers: How many there are.
    """
    hyperparameters = workload.train
    network = build(workload, data)
    device = _device()
    network.to(device)
    if workers > 1:
        network = torch.nn.parallel.DistributedDataParallel(network)
    optimizer = make_optimizer(network, hyperparameters)
    loss_of = torch.nn.CrossEntropyLoss(label_smoothing=hyperparameters.label_smoothing)
    rows = len(data.split("train"))
    per_epoch = rows // hyperparameters.batch_size
    augment = _augment(workload, rows, rank, workers)
    val_x, val_y = (each.to(device) for each in tensors(data, "val"))
    bf16 = hyperparameters.precision == "bf16"
    autocast = torch.autocast(device.type, torch.bfloat16) if bf16 else nullcontext()
    count, training, epochs = 0, [], []
    for _ in range(hyperparameters.epochs):
        began = monotonic()
        network.train()
        for x, y in batches():
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            with autocast:
                loss = loss_of(network(augment(x)), y)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), hyperparameters.clip_norm)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(
                    count, per_epoch * hyperparameters.epochs, hyperparameters
                )
            optimizer.step()
            count += 1
        loss.item()  # a GPU has to be waited for
        training.append(per_epoch * hyperparameters.batch_size / (monotonic() - began))
        network.eval()
        with torch.inference_mode(), autocast:
            for first in range(0, len(val_x), hyperparameters.batch_size):
                part = slice(first, first + hyperparameters.batch_size)
                logits = network(val_x[part])
                torch.nn.functional.cross_entropy(logits, val_y[part]).item()
                (logits.argmax(1) == val_y[part]).sum().item()
        epochs.append(per_epoch * hyperparameters.batch_size / (monotonic() - began))
    return Speed(statistics.median(training[1:]), statistics.median(epochs[1:]))
