"""Trains every combination that a workload may have, in small, and writes the table of them.

    python -m tests.tasks.train.combinations

A combination is a network, a training loop, images that are prepared or not, workers that share the
training in one way, and a recipe. `test_combinations.py` trains what is not refused before the run
for two epochs on some 50 images, loads what it saves, compares it with what the training said, and
holds `docs/combinations.md` to what is refused. The command writes that page.
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ruamel.yaml import YAML

from flows.train import train
from retrain.params import load_workload, resolve, vary
from retrain.project import Project
from retrain.step import DataVersion
from retrain.workload import Workload
from tasks.train.job import TrainingJob, try_settings
from tests import hub
from tests.tasks.train.helpers import write_form, write_split
from tests.tasks.train.test_stream import prepare

ROOT = Path(__file__).parents[3]
TABLE = ROOT / "docs" / "combinations.md"
LABELS = ("bottom", "left", "right", "top")
SIDE, ROWS, VALIDATED, EMBEDDED, EPOCHS = 16, 48, 16, 12, 2

OWN, FUNCTION = "own loop", "function"
BY_TRAINER = {
    "train.function": "examples.huggingface:train", "train.best.metric": "eval_accuracy",
}  # fmt: skip
LOOPS: dict[str, dict[str, Any]] = {OWN: {}, FUNCTION: BY_TRAINER}
STORAGES = "pixels", "source"
SHARINGS: dict[str, dict[str, Any]] = {
    "one process": {"scale.workers": 0},
    "workers, ddp": {"scale.workers": 2},
    "workers, fsdp": {"scale.workers": 2, "scale.strategy": "fsdp"},
}
RECIPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "freeze_epochs": {"train.freeze_epochs": 1},
    "ema": {"train.ema": 0.9},
    "balance: loss": {"train.balance": "loss"},
    "balance: sampling": {"train.balance": "sampling"},
    "augment, of an image": {
        "train.augment": {
            "flip": True, "shift": 1, "crop": 0.5, "erasing": 0.2,
            "color_jitter": {"brightness": 0.2, "hue": 0.1},
            "rand_augment": 9,
        }
    },
    "augment: mixup, cutmix": {"train.augment": {"mixup": 0.2, "cutmix": 1.0}},
    "label_smoothing, clip_norm": {"train.label_smoothing": 0.1, "train.clip_norm": 0.5},
    "micro_batch": {"train.micro_batch": 4},
    "sgd, plateau": {"train.optimizer": "sgd", "train.schedule": "plateau"},
    "adam, one_cycle": {"train.optimizer": "adam", "train.schedule": "one_cycle"},
    "early_stopping": {"train.early_stopping": 5, "train.best.metric": "val_loss"},
    "init: champion": {"train.init": "champion"},
    "precision: bf16": {"train.precision": "bf16"},
}  # fmt: skip


@dataclass(frozen=True)
class Combination:
    """One of them, by its names."""

    network: str
    loop: str
    storage: str
    sharing: str
    recipe: str

    @property
    def workers(self) -> int:
        return SHARINGS[self.sharing]["scale.workers"]

    @property
    def starts_workers(self) -> bool:
        """Whether its workers start for it alone; others are trained in the same ones."""
        return bool(self.workers) and (self.loop == FUNCTION or self.storage == "source")


def combinations(networks: Iterable[str]) -> Iterator[Combination]:
    """Each network with each loop, storage and sharing; and each of them with each recipe.

    A recipe is tried with prepared images, and once with those that stream.
    """
    for loop, sharing, recipe, network in product(LOOPS, SHARINGS, RECIPES, networks):
        for storage in STORAGES:
            streams_once = (loop, sharing, network) == (OWN, "one process", "vit")
            if recipe == "plain" or streams_once or storage == "pixels":
                yield Combination(network, loop, storage, sharing, recipe)


def to_train(refused: Mapping[Combination, str | None]) -> list[Combination]:
    """Those that a test trains: all that is not refused by one process, by workers some of it.

    That are all networks, each third of them with each recipe, and one where workers start anew.
    """
    allowed = [each for each, why in refused.items() if why is None]
    started = [each for each in allowed if each.starts_workers and each.recipe == "plain"]
    shared = [each for each in allowed if each.workers and not each.starts_workers]
    return [
        *(each for each in allowed if not each.workers),
        *(each for each in started if each.network == "pretrained vit"),
        *(each for each in shared if each.recipe == "plain"),
        *[each for each in shared if each.recipe != "plain"][::3],
    ]


class Place:
    """A folder with prepared images, embeddings and pretrained networks, for small trainings."""

    def __init__(self, root: Path) -> None:
        """Makes the pretrained networks, and a workload for each family."""
        self.root = root
        torch.manual_seed(0)
        hub.write_vit(root / "vit", SIDE)
        hub.write_clip(root / "clip", SIDE)
        _write_dinov2(root / "dinov2")
        config = {
            "model_type": "resnet", "layer_type": "basic", "embedding_size": 8,
            "hidden_sizes": [8, 16], "depths": [1, 1], "downsample_in_first_stage": False,
        }  # fmt: skip
        sizes = {"patch_size": 8, "hidden_size": 16, "layers": 2, "heads": 2}
        families: dict[str, dict[str, Any]] = {
            "vit": {"family": "vit", **sizes},
            "pretrained vit": {"family": "vit", "pretrained": str(root / "vit")},
            "auto (ResNet)": {"family": "auto", "config": config},
            "auto (pretrained DINOv2)": {"family": "auto", "pretrained": str(root / "dinov2")},
            "embedding_head": {"family": "embedding_head", "pretrained": str(root / "clip")},
            "custom": {"family": "custom", "factory": "examples.network:build_model"},
        }
        common = {
            "data": {"path": "data/digits"},
            "images": {"size": SIDE, "channels": 3},
            "train": {"epochs": EPOCHS, "batch_size": 16, "lr": 0.01, "precision": "fp32"},
            "scale": {"threads": 1},
        }
        names = {family: f"w{number}" for number, family in enumerate(families)}
        tree = {names[family]: common | {"model": model} for family, model in families.items()}
        YAML().dump({"workloads": tree}, root / "params.yaml")
        self.workloads = {
            family: load_workload(root / "params.yaml", name) for family, name in names.items()
        }

    def write_images(self) -> None:
        """Makes what is trained on."""
        self.images = _write(self.root / "images", (SIDE, SIDE, 3), np.uint8)
        self.embeddings = _write(self.root / "embeddings", (EMBEDDED,), np.float32)
        self.not_prepared = prepare(self.root / "files", "folders", size=SIDE, channels=3)

    def workload(self, chosen: Combination) -> Workload:
        """The workload of a combination.

        Raises:
            ValueError: It is refused.
        """
        values = LOOPS[chosen.loop] | SHARINGS[chosen.sharing] | RECIPES[chosen.recipe]
        values |= {"images.storage": chosen.storage}
        return resolve(vary(self.workloads[chosen.network], values), Project(self.root))

    def refusals(self) -> dict[Combination, str | None]:
        """Why each combination is refused before the run; None of one that is not."""
        return {each: self._refusal(each) for each in combinations(self.workloads)}

    def _refusal(self, chosen: Combination) -> str | None:
        project = Project(ROOT)
        try:
            workload = self.workload(chosen)
            for step in train.steps_for(workload):
                for fault in step.check(workload, project):
                    return fault
            if chosen.recipe == "plain":  # the network itself
                try_settings(workload, project, DataVersion("data", tracked=False))
        except ValueError as error:
            return str(error).splitlines()[0]
        return None

    def job(self, chosen: Combination, folder: Path) -> TrainingJob:
        """The training of a combination, which leaves its files in a folder."""
        workload, folder = self.workload(chosen), self.root / folder
        images = self.embeddings if chosen.network == "embedding_head" else self.images
        if chosen.storage == "source":
            images = self.not_prepared.source
        (folder / "scratch").mkdir(parents=True)
        return TrainingJob(
            model=workload.model,
            hyperparameters=workload.train,
            scale=workload.scale.model_copy(update={"threads": 1}),
            images=images,
            pulled=self.not_prepared.pulled,
            start=None,
            root=ROOT,
            scratch=folder / "scratch",
            output=folder / "model",
            streams=chosen.storage == "source",
        )


def _write(folder: Path, shape: tuple[int, ...], dtype: type) -> Path:
    """Prepared images, or embeddings, of which the network can learn something."""
    random = np.random.default_rng(0)
    for split, count in (("train", ROWS), ("val", VALIDATED), ("test", 8)):
        labels = np.arange(count) % len(LABELS)
        values = random.integers(0, 156, (count, *shape)).astype(dtype)
        values[np.arange(count), labels] += 90
        write_split(folder / split, [values], labels)
    write_form(folder, LABELS, size=SIDE, channels=3)
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


def document(refused: Mapping[Combination, str | None]) -> str:
    """The page with the tables.

    Args:
        refused: Of each combination, why it is refused; None for those that are trained.
    """
    plain = {each: why for each, why in refused.items() if each.recipe == "plain"}
    trained = {(each.network, each.loop, each.sharing) for each, why in plain.items() if not why}
    recipes = {
        each: why
        for each, why in refused.items()
        if (each.network, each.loop, each.sharing) in trained and each.storage == "pixels"
    }
    columns = list(dict.fromkeys((each.loop, each.sharing) for each in recipes))
    lines = [
        HEAD,
        "## Networks, and images that are prepared or not\n",
        *_table("network", "storage", columns, plain),
        "\n## Recipes\n",
        *_table("recipe", "network", columns, recipes),
    ]
    return "\n".join(lines) + "\n"


HEAD = """# What goes with what

Each combination of a network, a loop, `images.storage`, workers with a strategy
and a recipe is either refused before a run starts, or it trains. A test does that, in small: two
epochs; then the saved network is loaded, and its loss compared with what the training said. By
workers it trains each network, and with each recipe a third of the networks. This page is written
by `python -m tests.tasks.train.combinations`, from what is refused.

In the first table a tick is for both of `images.storage`, in the second for all networks that the
first one has in that column; `no` is for none. Recipes are tried with `pixels`, and once with
`source`. The function is `examples/huggingface.py`; workers train one network with it, and with
each strategy one whose images stream. Grey images have fewer augmentations, `torch.compile` needs a
compiler, and NCCL a GPU for each worker: these are refused as well where they cannot be had. A
refusal says why.
"""


def _table(
    row: str,
    detail: str,
    columns: Sequence[tuple[str, str]],
    refused: Mapping[Combination, str | None],
) -> Iterator[str]:
    """A table in Markdown: by the row's attribute, loop and sharing, of which details are trained.

    A cell names those that are not, where they are fewer.
    """
    yield f"| {row} | {' | '.join(f'{loop}, {sharing}' for loop, sharing in columns)} |"
    yield "|---" * (1 + len(columns)) + "|"
    for name in dict.fromkeys(getattr(each, row) for each in refused):
        cells = []
        for column in columns:
            cases = {
                getattr(each, detail): why
                for each, why in refused.items()
                if (getattr(each, row), each.loop, each.sharing) == (name, *column)
            }
            trained = [case for case, why in cases.items() if not why]
            lacking = [case for case, why in cases.items() if why]
            cell = f"✓ but {', '.join(lacking)}" if lacking else "✓"
            if len(lacking) >= len(trained):
                cell = ", ".join(trained) or "no"
            cells.append(cell)
        yield f"| {name} | {' | '.join(cells)} |"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as root:
        TABLE.write_text(document(Place(Path(root)).refusals()), encoding="utf-8")
