"""Trains every combination that a workload may have, in small, and writes the table of them.

    python -m tests.tasks.train.combinations

A combination is a network, a training loop, a way of the images to the training, workers that share
it in one way, and a recipe. What is not refused before the run is trained for two epochs on 48
images. `docs/combinations.md` is what came of it; `test_combinations.py` holds both.
"""

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby, product
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ruamel.yaml import YAML

import models
from retrain.params import load_workload, vary
from retrain.project import Project
from retrain.workload import Workload
from tasks.data.shards import open_prepared, shard_name
from tasks.train import step
from tasks.train.job import TrainingJob
from tests import hub

ROOT = Path(__file__).parents[3]
TABLE = ROOT / "docs" / "combinations.md"
LABELS = ("bottom", "left", "right", "top")
SIDE, ROWS, VALIDATED, EMBEDDED, EPOCHS = 16, 48, 16, 12, 2

LOOPS: dict[str, dict[str, Any]] = {
    "torch": {},
    "huggingface": {"train.loop": "huggingface"},
    "function": {"train.function": "examples.ported:train"},
}
INGESTS = ("memory", "windows", "dataloader", "stream")
# What goes to the loops `huggingface` and `function`, which have one way of their own.
OWN_INGEST = "auto"
SHARINGS: dict[str, dict[str, Any]] = {
    "one process": {"scale.workers": 0},
    "workers, ddp": {"scale.workers": 2},
    "workers, fsdp": {"scale.workers": 2, "scale.strategy": "fsdp"},
}
RECIPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "freeze_epochs": {"train.freeze_epochs": 1},
    "lora": {"train.lora": {"r": 2}},
    "layer_decay": {"train.layer_decay": 0.7},
    "ema": {"train.ema": 0.9},
    "balance: loss": {"train.balance": "loss"},
    "balance: sampling": {"train.balance": "sampling"},
    "augment, of an image": {
        "train.augment": {
            "flip": True, "shift": 1, "crop": 0.5, "erasing": 0.2,
            "color_jitter": {"brightness": 0.2, "hue": 0.1},
            "rand_augment": {"count": 2, "magnitude": 9},
        }
    },
    "augment: mixup, cutmix": {"train.augment": {"mixup": 0.2, "cutmix": 1.0}},
    "label_smoothing, clip_norm": {"train.label_smoothing": 0.1, "train.clip_norm": 0.5},
    "micro_batch": {"train.micro_batch": 4},
    "sgd, plateau": {"train.optimizer": "sgd", "train.schedule": "plateau"},
    "adam, one_cycle": {"train.optimizer": "adam", "train.schedule": "one_cycle"},
    "early_stopping": {"train.early_stopping": {"patience": 5}, "train.best.metric": "val_loss"},
    "init: champion": {"train.init": "champion"},
    "precision: bf16": {"train.precision": "bf16"},
}  # fmt: skip


@dataclass(frozen=True)
class Combination:
    """One of them, by its names."""

    family: str
    loop: str
    ingest: str
    sharing: str
    recipe: str


def combinations(families: Iterable[str]) -> Iterator[Combination]:
    """All of them, but for ways of images where a loop has its own."""
    for loop, sharing, recipe, family in product(LOOPS, SHARINGS, RECIPES, families):
        for ingest in INGESTS if loop == "torch" else (OWN_INGEST,):
            yield Combination(family, loop, ingest, sharing, recipe)


class Place:
    """A folder with prepared images, embeddings and pretrained networks, for small trainings."""

    def __init__(self, root: Path) -> None:
        """Makes all of it."""
        self.root = root
        self.images = _write(root / "images", (SIDE, SIDE, 3), np.uint8)
        self.embeddings = _write(root / "embeddings", (EMBEDDED,), np.float32)
        torch.manual_seed(0)
        hub.write_vit(root / "vit", SIDE)
        hub.write_clip(root / "clip", SIDE)
        _write_dinov2(root / "dinov2")
        config = {
            "model_type": "resnet", "layer_type": "basic", "embedding_size": 8,
            "hidden_sizes": [8, 16], "depths": [1, 1], "downsample_in_first_stage": False,
        }  # fmt: skip
        sizes = {"patch_size": 8, "hidden_size": 16, "layers": 2, "heads": 2}
        self.families: dict[str, dict[str, Any]] = {
            "vit": {"family": "vit", **sizes},
            "vit, pretrained": {"family": "vit", "pretrained": str(root / "vit")},
            "auto: ResNet": {"family": "auto", "config": config},
            "auto: DINOv2, pretrained": {"family": "auto", "pretrained": str(root / "dinov2")},
            "embedding_head": {"family": "embedding_head", "pretrained": str(root / "clip")},
            "custom": {"family": "custom", "factory": "examples.ported:build_model"},
        }
        self.workloads: dict[str, Workload] = {}
        self._write_params()

    def _write_params(self) -> None:
        common = {
            "data": {"path": "data/digits"},
            "images": {"size": SIDE, "channels": 3},
            "train": {"epochs": EPOCHS, "batch_size": 16, "lr": 0.01, "precision": "fp32"},
            "scale": {"threads": 1},
        }
        names = {family: f"w{number}" for number, family in enumerate(self.families)}
        tree = {names[family]: common | {"model": model} for family, model in self.families.items()}
        YAML().dump({"workloads": tree}, self.root / "params.yaml")
        for family, name in names.items():
            self.workloads[family] = load_workload(self.root / "params.yaml", name)

    def workload(self, chosen: Combination) -> Workload:
        """The workload of a combination.

        Raises:
            ValueError: It is refused.
        """
        values = LOOPS[chosen.loop] | SHARINGS[chosen.sharing] | RECIPES[chosen.recipe]
        values |= {"scale.ingest": chosen.ingest}
        if chosen.ingest == "stream":
            values |= {"images.storage": "source"}
        return vary(self.workloads[chosen.family], values)

    def refusal(self, chosen: Combination) -> str | None:
        """Why a combination is refused before the run; None if it is not."""
        try:
            workload = self.workload(chosen)
        except ValueError as error:
            return str(error)
        project = Project(ROOT)
        found = [*step.check(workload, project), *step.check_slowly(workload, project)]
        return found[0] if found else None

    def job(self, chosen: Combination, folder: Path, start: Path | None) -> TrainingJob:
        """The training of a combination, which leaves its files in a folder."""
        workload = self.workload(chosen)
        scale = workload.scale
        embedded = chosen.family == "embedding_head"
        bytes_each = EMBEDDED * 4 if embedded else SIDE * SIDE * 3
        half = ROWS * bytes_each / 2 / 1e9
        (folder / "scratch").mkdir(parents=True)
        return TrainingJob(
            family=workload.model.family,
            settings=workload.model.model_dump(exclude={"family"}),
            hyperparameters=workload.train,
            images=self.embeddings if embedded else self.images,
            scratch=folder / "scratch",
            output=folder / "model",
            start=start,
            pulled=self.root,
            root=ROOT,
            checkpoint_seconds=scale.checkpoint_seconds,
            keep_checkpoints=scale.keep_checkpoints,
            strategy=scale.strategy,
            ingest=scale.ingest,
            memory_gb=half if chosen.ingest in ("windows", "dataloader") else 1.0,
            data_cpus=0,
            threads=1,
            bounds={},
        )


def _write(folder: Path, shape: tuple[int, ...], dtype: type) -> Path:
    """Prepared images, or embeddings, of which the network can learn something."""
    random = np.random.default_rng(0)
    for split, count in (("train", ROWS), ("val", VALIDATED), ("test", 8)):
        (folder / split).mkdir(parents=True)
        labels = np.arange(count) % len(LABELS)
        values = random.integers(0, 156, (count, *shape)).astype(dtype)
        values[np.arange(count), labels] += 90
        np.save(folder / split / shard_name(0), values)
        np.save(folder / split / "labels.npy", labels)
    (folder / "labels.json").write_text(json.dumps(LABELS))
    form = {"size": SIDE, "channels": 3, "resize": "crop"}
    (folder / "images.json").write_text(json.dumps(form))
    return folder


def _write_dinov2(folder: Path) -> None:
    """A DINOv2, which has a mask token that no gradient reaches."""
    from transformers import BitImageProcessor, Dinov2Config, Dinov2Model

    config = Dinov2Config(
        image_size=SIDE, patch_size=8, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        mlp_ratio=2,
    )  # fmt: skip
    Dinov2Model(config).save_pretrained(folder)
    BitImageProcessor(size={"shortest_edge": SIDE}).save_pretrained(folder)


def train_all(jobs: Sequence[TrainingJob], loop: str, workers: int) -> list[str | None]:
    """Runs trainings one after the other in the same workers, as the step runs one.

    Returns:
        What failed in each of them; None for those that ended.
    """
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig

    from tasks.train.trainer import Trainer

    scaling = ScalingConfig(
        num_workers=workers, resources_per_worker={"CPU": 0.4} if workers else None
    )
    with tempfile.TemporaryDirectory() as storage:
        trainer = Trainer(
            _work_all,
            train_loop_config={"jobs": list(jobs), "loop": f"tasks.train.loops.{loop}"},
            torch_config=TorchConfig(backend="gloo", timeout_s=60),
            scaling_config=scaling,
            run_config=RunConfig(name="combinations", storage_path=storage),
        )
        return list(trainer.fit().return_value)


def _work_all(config: Mapping[str, Any]) -> list[str | None]:
    import traceback

    loop = import_module(config["loop"])
    found: list[str | None] = []
    for job in config["jobs"]:
        try:
            result = loop.work({"job": job})
            found.append(_fault(job, result) if result else None)
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
    return found


def _fault(job: TrainingJob, result: Mapping[str, Any]) -> str | None:
    """What is wrong with a training that ended: its numbers, or the network that it saved."""
    history = result["history"]
    numbers = [value for entry in history for value in entry.values() if isinstance(value, float)]
    if len(history) != EPOCHS or not all(map(isfinite, numbers)):
        return f"its history is {history}"
    data = open_prepared(job.images)
    network = models.load(job.output).module
    val = data.split("val")
    images = torch.from_numpy(val.images[np.arange(len(val))])
    if images.ndim == 2:  # embeddings
        images = torch.zeros(2, SIDE, SIDE, 3, dtype=torch.uint8)
    with torch.inference_mode():
        logits = network(images)
    if images.shape[0] == len(val):
        loss = float(torch.nn.functional.cross_entropy(logits, torch.from_numpy(val.labels)))
        told = result["best"].get("val_loss", loss)
        rough = job.hyperparameters.precision == "bf16"
        if abs(loss - told) > (0.05 if rough else 1e-3) * max(1.0, loss):
            return f"the saved network's loss is {loss}, and the training said {told}"
    return None if torch.isfinite(logits).all() else "the saved network gives no numbers"


def train_small(place: Place, chosen: Sequence[Combination]) -> dict[Combination, str | None]:
    """Trains combinations; what failed in each of them."""
    found: dict[Combination, str | None] = {}
    folders = place.root / "trained"
    starts = _starts(place, sorted({each.family for each in chosen if "champion" in each.recipe}))
    key = lambda each: (each.loop, bool(SHARINGS[each.sharing]["scale.workers"]))  # noqa: E731
    for (loop, workers), group in groupby(sorted(chosen, key=key), key):
        members = list(group)
        jobs = []
        for number, each in enumerate(members):
            folder = folders / f"{loop}-{workers}-{number}"
            start = starts[each.family] if "champion" in each.recipe else None
            jobs.append(place.job(each, folder, start))
        found |= dict(zip(members, train_all(jobs, loop, 2 * workers), strict=True))
    shutil.rmtree(folders, ignore_errors=True)
    return found


def _starts(place: Place, families: Sequence[str]) -> dict[str, Path]:
    """Saved networks to start from, by family."""
    starts = {}
    for number, family in enumerate(families):
        chosen = Combination(family, "torch", "memory", "one process", "plain")
        job = place.job(chosen, place.root / f"start-{number}", None)
        assert train_all([job], "torch", 0) == [None]
        starts[family] = job.output
    return starts
