"""Trains every combination that a workload may have, in small, and writes the table of them.

    python -m tests.tasks.train.combinations

A combination is a network, a training loop, a way of the images to the training, workers that share
it in one way, and a recipe. What is not refused before the run is trained for two epochs on some 50
images, and what it saves is loaded and compared with what the training said. `test_combinations.py`
does the same, and holds `docs/combinations.md` to it.
"""

import json
import sys
import tempfile
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, product
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ruamel.yaml import YAML

import models
from flows.train import train
from retrain.params import load_workload, vary
from retrain.project import Project
from retrain.store import Artifact
from retrain.workload import Checks, Data, Images, Workload
from tasks.data.shards import open_prepared, shard_name
from tasks.preprocess.step import preprocess
from tasks.train import stream_ingest
from tasks.train.job import TrainingJob
from tasks.train.launch import fit, launch
from tasks.validate.step import validate
from tests import hub
from tests.tasks import toy_data

ROOT = Path(__file__).parents[3]
TABLE = ROOT / "docs" / "combinations.md"
LABELS = ("bottom", "left", "right", "top")
SIDE, ROWS, VALIDATED, EMBEDDED, EPOCHS = 16, 48, 16, 12, 2
BY_TRAINER = "eval_accuracy"
FILES = 80  # of images that are not prepared

OWN, FUNCTION = "own loop", "function"
LOOPS: dict[str, dict[str, Any]] = {
    OWN: {},
    FUNCTION: {"train.function": "examples.huggingface:train", "train.best.metric": BY_TRAINER},
}
# What goes to the training; a function has one way of its own.
INGESTS = {OWN: ("memory", "windows", "dataloader", "stream"), FUNCTION: ("auto",)}
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
    """Each network with each loop, way of images and sharing; and each of them with each recipe.

    A recipe is tried with images in memory, and once with those that stream.
    """
    for loop, sharing, recipe, family in product(LOOPS, SHARINGS, RECIPES, families):
        for ingest in INGESTS[loop]:
            streams_once = (ingest, sharing, family) == ("stream", "one process", "vit")
            if recipe == "plain" or streams_once or ingest in ("memory", "auto"):
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
            "pretrained vit": {"family": "vit", "pretrained": str(root / "vit")},
            "auto (ResNet)": {"family": "auto", "config": config},
            "auto (pretrained DINOv2)": {"family": "auto", "pretrained": str(root / "dinov2")},
            "embedding_head": {"family": "embedding_head", "pretrained": str(root / "clip")},
            "custom": {"family": "custom", "factory": "examples.network:build_model"},
        }
        self._write_files()
        self.workloads: dict[str, Workload] = {}
        self._write_params()

    def _write_files(self) -> None:
        """Images that are not prepared, as the steps before the training leave them."""
        names = {
            f"{LABELS[number % len(LABELS)]}/{number:03}.png": number for number in range(FILES)
        }
        files = {name: toy_data.png(number, SIDE, SIDE) for name, number in names.items()}
        toy_data.write_files(self.root / "pulled" / "data", files)
        raw = toy_data.pulled(self.root / "pulled", "folders")
        space = toy_data.workspace(self.root, "validate")
        facts = validate(Data(path="data"), Checks(min_images_per_class=1), raw, space)
        validated = Artifact("validate", "key", "digest", space.folder, facts)
        images = Images(size=SIDE, channels=3, storage="source")
        space = toy_data.workspace(self.root, "preprocess")
        preprocess(Data(path="data"), images, raw, validated, space)
        self.pulled, self.source = raw.folder, space.folder

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
        if chosen.ingest == "stream":
            values |= {"images.storage": "source"}
        elif chosen.ingest == "dataloader":
            values |= {"scale.ingest": "dataloader"}
        return vary(self.workloads[chosen.family], values)

    def refusal(self, chosen: Combination) -> str | None:
        """Why a combination is refused before the run; None if it is not."""
        try:
            workload = self.workload(chosen)
        except ValueError as error:
            return str(error)
        steps, project = train.steps_for(workload), Project(ROOT)
        found = [fault for step in steps for fault in step.check(workload, project)]
        found = found or [fault for step in steps for fault in step.check_slowly(workload, project)]
        return found[0] if found else None

    def images_for(self, chosen: Combination) -> Path:
        """What a combination is trained on."""
        if chosen.family == "embedding_head":
            return self.embeddings
        return self.source if chosen.ingest == "stream" else self.images

    def job(self, chosen: Combination, folder: Path, start: Path | None) -> TrainingJob:
        """The training of a combination, which leaves its files in a folder."""
        workload = self.workload(chosen)
        images = open_prepared(self.images_for(chosen)).split("train").images
        half = len(images) * images.bytes_per_image / 2 / 1e9
        (folder / "scratch").mkdir(parents=True)
        memory = {"memory_gb": 1.0 if chosen.ingest == "memory" else half, "threads": 1}
        return TrainingJob(
            model=workload.model,
            hyperparameters=workload.train,
            scale=workload.scale.model_copy(update=memory),
            images=self.images_for(chosen),
            pulled=self.pulled,
            start=start,
            root=ROOT,
            scratch=folder / "scratch",
            output=folder / "model",
            ingest="stream" if chosen.ingest == "stream" else workload.scale.ingest,
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


def train_all(jobs: Sequence[TrainingJob], workers: int) -> list[str | None]:
    """Runs trainings by the project's own loop, one after the other in the same workers.

    Returns:
        What failed in each of them; None for those that ended.
    """
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    resources = {"resources_per_worker": {"CPU": 0.4}} if workers else {}
    scaling = ScalingConfig(num_workers=workers, **resources)
    streamed = [job for job in jobs if job.ingest == "stream"]
    assert not streamed or len(jobs) == 1, "a trainer has the images of one training"
    images = stream_ingest.of_trainer(*streamed, scaling) if streamed else {}
    with tempfile.TemporaryDirectory() as storage:
        trainer = TorchTrainer(
            _work_all,
            train_loop_config={"job": jobs[0], "jobs": list(jobs)},
            torch_config=TorchConfig(backend="gloo", timeout_s=60),
            scaling_config=scaling,
            run_config=RunConfig(name="combinations", storage_path=storage),
            **images,
        )
        return list(fit(trainer).return_value)


def _work_all(config: Mapping[str, Any]) -> list[str | None]:
    from tasks.train.loops import torch as own_loop

    return [_attempt(partial(own_loop.work, job), job) for job in config["jobs"]]


def _attempt(train: Callable[[], dict[str, Any]], job: TrainingJob) -> str | None:
    """What fails in a training."""
    try:
        result = train()
        return _fault(job, result) if result else None
    except Exception as error:
        return f"{type(error).__name__}: {error}\n{traceback.format_exc()}"


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
        told = result["best"].get("val_loss", result["best"].get("eval_loss"))
        rough = job.hyperparameters.precision == "bf16"
        if abs(loss - told) > (0.05 if rough else 1e-3) * max(1.0, loss):
            return f"the saved network's loss is {loss}, and the training said {told}"
    return None if torch.isfinite(logits).all() else "the saved network gives no numbers"


def train_small(place: Place, chosen: Iterable[Combination]) -> dict[Combination, str]:
    """Trains combinations.

    Args:
        place: Where.
        chosen: Those that are not refused. Ray is up if some have workers or stream.

    Returns:
        What failed, and how.
    """
    chosen = sorted(filter(is_trained, chosen), key=_together)
    starts = _starts(place, sorted({each.family for each in chosen if "champion" in each.recipe}))
    found: dict[Combination, str | None] = {}
    for number, ((loop, workers, _), group) in enumerate(groupby(chosen, _together)):
        jobs = {}
        for each in group:
            start = starts[each.family] if "champion" in each.recipe else None
            jobs[each] = place.job(each, place.root / f"trained-{number}" / str(len(jobs)), start)
        if loop == OWN:
            found |= dict(zip(jobs, train_all([*jobs.values()], workers), strict=True))
        else:
            for each, job in jobs.items():
                found[each] = _attempt(partial(launch, job), job)
    return {each: fault for each, fault in found.items() if fault}


def is_trained(chosen: Combination) -> bool:
    """Whether a combination is trained: workers start for each function anew, so one has two."""
    with_workers = SHARINGS[chosen.sharing]["scale.workers"] > 0
    few = (chosen.family, chosen.recipe) == ("pretrained vit", "plain")
    return chosen.loop == OWN or not with_workers or few


def _together(chosen: Combination) -> tuple[str, int, str]:
    """What combinations share that one trainer trains."""
    alone = str(chosen) if chosen.ingest == "stream" else ""
    return chosen.loop, SHARINGS[chosen.sharing]["scale.workers"], alone


def _starts(place: Place, families: Sequence[str]) -> dict[str, Path]:
    """Saved networks to start from, by family."""
    starts = {}
    for number, family in enumerate(families):
        chosen = Combination(family, OWN, "memory", "one process", "plain")
        job = place.job(chosen, place.root / f"start-{number}", None)
        assert train_all([job], 0) == [None]
        starts[family] = job.output
    return starts


def document(refused: Mapping[Combination, str | None]) -> str:
    """The page with the tables.

    Args:
        refused: Of each combination, why it is refused; None for those that are trained.
    """
    plain = {each: why for each, why in refused.items() if each.recipe == "plain"}
    trained = {(each.family, each.loop, each.sharing) for each, why in plain.items() if not why}
    shown = [
        each
        for each in refused
        if (each.family, each.loop, each.sharing) in trained and each.ingest != "stream"
    ]
    ways, recipes = defaultdict(list), defaultdict(list)
    for each, why in plain.items():
        ways[each.family, each.loop, each.sharing].append((each.ingest, why))
    for each in shown:
        if each.ingest in ("memory", "auto"):
            recipes[each.recipe, each.loop, each.sharing].append((each.family, refused[each]))
    columns = [key for key in product(LOOPS, SHARINGS) if any(one[1:] == key for one in trained)]
    lines = [
        HEAD,
        "## Networks and the ways of images\n",
        *_table("network", list(dict.fromkeys(each.family for each in refused)), columns, ways),
        "\n## Recipes\n",
        *_table("recipe", list(RECIPES), columns, recipes),
        "\n## What a refusal says\n",
        *(f"- {why}" for why in sorted({why for why in refused.values() if why})),
    ]
    return "\n".join(lines) + "\n"


HEAD = """# What goes with what

Each combination of a network, a loop, a way of the images, workers with a strategy
and a recipe is either refused before a run starts, or trained by a test, in small: two epochs; then
the saved network is loaded, and its loss compared with what the training said. This page is written
by `python -m tests.tasks.train.combinations`, from what is refused and what was trained.

In the first table a tick is for all ways of images that the loop has, in the second for all
networks that the first one has in that column; `no` is for none. Recipes are tried with images in
memory, and once with `stream`. The function is `examples/huggingface.py`, which has its own way of
images; workers train one of its networks. Grey images have fewer augmentations, `torch.compile`
needs a compiler, and NCCL a GPU for each worker: these are refused as well where they cannot be
had.
"""


def _table(
    name: str,
    rows: Sequence[str],
    columns: Sequence[tuple[str, str]],
    cases: Mapping[tuple[str, str, str], Sequence[tuple[str, str | None]]],
) -> Iterator[str]:
    """A table in Markdown, of which cases are trained.

    Args:
        name: Of the first column.
        rows: The first cell of each row.
        columns: The loop and the sharing of each of the others.
        cases: By row, loop and sharing, the cases, each with why it is refused.
    """
    yield f"| {name} | {' | '.join(f'{loop}, {sharing}' for loop, sharing in columns)} |"
    yield "|---" * (1 + len(columns)) + "|"
    for row in rows:
        yield f"| {row} | {' | '.join(_cell(cases[row, *column]) for column in columns)} |"


def _cell(cases: Sequence[tuple[str, str | None]]) -> str:
    """Of cases, those that are trained."""
    trained = [name for name, why in cases if not why]
    lacking = [name for name, why in cases if why]
    if not trained or not lacking:
        return "✓" if trained else "no"
    if len(lacking) < len(trained):
        return f"✓ but {', '.join(lacking)}"
    return ", ".join(trained)


def main() -> int:
    """Trains what is not refused, and writes the page if nothing failed."""
    from retrain.servers import ray_cluster

    with tempfile.TemporaryDirectory() as root:
        place = Place(Path(root))
        refused = {each: place.refusal(each) for each in combinations(place.families)}
        ray_cluster.connect()
        failed = train_small(place, [each for each, why in refused.items() if why is None])
    for each, fault in failed.items():
        print(each, fault, sep="\n", file=sys.stderr)
    if not failed:
        TABLE.write_text(document(refused), encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
