"""Trains every combination that a workload may have, in small, and writes the table of them.

    python -m tests.tasks.train.combinations

A combination is a network, a training loop, images that are prepared or not, workers that share the
training in one way, and a recipe. `test_combinations.py` trains what is not refused before the run
for two epochs on some 50 images, loads what it saves, compares it with what the training said, and
holds `docs/combinations.md` to what is refused. The command writes that page.
"""

import tempfile
from collections import namedtuple
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig, get_context
from ray.train.torch import TorchConfig, TorchTrainer, get_device
from ruamel.yaml import YAML

from flows.train import train
from retrain.params import load_workload, resolve
from retrain.project import Project
from retrain.step import DataVersion
from tasks.train.job import TrainingJob, try_settings
from tasks.train.launch import run_trainer
from tasks.train.session import Session
from tasks.train.train import fit
from tests import hub
from tests.tasks.train.helpers import ROOT, Trained, validated, write_prepared
from tests.tasks.train.test_stream import prepare

TABLE = ROOT / "docs" / "combinations.md"
SIDE, ROWS, VALIDATED, EMBEDDED, EPOCHS = 16, 48, 16, 12, 2

OWN, FUNCTION = "own loop", "function"
LOOPS = {
    OWN: {},
    FUNCTION: {
        "train.function": "examples.huggingface:train",
        "train.best.metric": "eval_accuracy",
    },
}
STORAGES = "pixels", "source"
ALONE = "one process"
SHARINGS = {
    ALONE: {"scale.workers": 0},
    "workers, ddp": {"scale.workers": 2},
    "workers, fsdp": {"scale.workers": 2, "scale.strategy": "fsdp"},
}
RECIPES = {
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


Combination = namedtuple("Combination", ("network", "loop", "storage", "sharing", "recipe"))


def combinations(networks):
    """Each network with each loop, storage and sharing; and each of them with each recipe.

    A recipe is tried with prepared images, and once with those that stream.
    """
    for loop, sharing, recipe, network in product(LOOPS, SHARINGS, RECIPES, networks):
        for storage in STORAGES:
            streams_once = (loop, sharing, network) == (OWN, ALONE, "vit")
            if recipe == "plain" or streams_once or storage == "pixels":
                yield Combination(network, loop, storage, sharing, recipe)


def to_train(refused):
    """Those that a test trains: all that is not refused by one process, by workers some of it.

    That are all networks, each third of them with each recipe, and one where workers start anew.

    Returns:
        Those that are trained each for itself, and those that the same workers train.
    """
    allowed = [each for each, is_refused in refused.items() if not is_refused]
    alone = [each for each in allowed if each.sharing == ALONE]
    by_workers = [each for each in allowed if each.sharing != ALONE]
    shared = [each for each in by_workers if (each.loop, each.storage) == (OWN, "pixels")]
    started = [each for each in by_workers if each not in shared and each.recipe == "plain"]
    plain = [each for each in shared if each.recipe == "plain"]
    others = [each for each in shared if each.recipe != "plain"]
    alone += [each for each in started if each.network == "pretrained vit"]
    return alone, plain + others[::3]


class Place:
    """A folder with prepared images, embeddings and pretrained networks, for small trainings."""

    def __init__(self, root):
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
        networks = {
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
        tree = {f"w{n}": common | {"model": model} for n, model in enumerate(networks.values())}
        YAML().dump({"workloads": tree}, root / "params.yaml")
        self.names = dict(zip(networks, tree, strict=True))
        # Whether each combination is refused before the run.
        self.refused = {each: self._is_refused(each) for each in combinations(self.names)}

    def write_images(self):
        """Makes what is trained on."""
        form = {"rows": ROWS, "val": VALIDATED, "size": SIDE, "channels": 3}
        self.images = write_prepared(self.root / "images", **form)
        self.embeddings = write_prepared(self.root / "embeddings", **form, embedded=EMBEDDED)
        self.not_prepared = prepare(self.root / "files", "folders", size=SIDE, channels=3)

    def workload(self, chosen):
        """The workload of a combination.

        Raises:
            ValueError: It is refused.
        """
        choices = LOOPS[chosen.loop] | SHARINGS[chosen.sharing] | RECIPES[chosen.recipe]
        values = {"images.storage": chosen.storage} | choices
        workload = load_workload(self.root / "params.yaml", self.names[chosen.network], values)
        return resolve(workload, Project(self.root))

    def _is_refused(self, chosen):
        project = Project(ROOT)
        with suppress(ValueError):
            workload = self.workload(chosen)
            steps = train.steps_for(workload)
            is_refused = any(fault for step in steps for fault in step.check(workload, project))
            if chosen.recipe == "plain" and not is_refused:  # the network itself
                try_settings(workload, project, DataVersion("data", tracked=False))
            return is_refused
        return True

    def job(self, chosen, folder):
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


def _write_dinov2(folder):
    """A DINOv2, which has a mask token that no gradient reaches."""
    from transformers import BitImageProcessor, Dinov2Config, Dinov2Model

    config = Dinov2Config(
        image_size=SIDE, patch_size=8, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        mlp_ratio=2,
    )  # fmt: skip
    Dinov2Model(config).save_pretrained(folder)
    BitImageProcessor(size={"shortest_edge": SIDE}).save_pretrained(folder)


def train_on_workers(jobs, storage):
    """Runs trainings by the project's own loop, one after the other in the same two workers."""
    replaces_workers = FailureConfig(max_failures=jobs[0].scale.max_failures)  # as a run does
    trainer = TorchTrainer(
        _work,
        train_loop_config={"jobs": list(jobs)},
        torch_config=TorchConfig(backend="gloo", timeout_s=60),
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.4}),
        run_config=RunConfig("combinations", str(storage), failure_config=replaces_workers),
    )
    run_trainer(trainer)


def _work(config):
    context = get_context()
    place = context.get_world_rank(), context.get_world_size(), get_device()
    for job in config["jobs"]:
        fit(Session(job, *place))


def check_saved(job):
    """Compares what a training said with the network that it saved."""
    session = Session(job)
    assert len(session.history) == EPOCHS
    if job.model.family != "embedding_head":  # whose network takes images, and not embeddings
        loss, _ = validated(Trained({}, job.output.parent, Project(job.root)), job.images)
        best = session.best.metrics
        told = best.get("val_loss", best.get("eval_loss"))
        tolerance = 0.05 if job.hyperparameters.precision == "bf16" else 1e-3
        assert loss == pytest.approx(told, rel=tolerance, abs=tolerance)


def document(refused):
    """The page with the tables.

    Args:
        refused: Whether each combination is refused.
    """
    plain = {each: no for each, no in refused.items() if each.recipe == "plain"}
    trained = {(each.network, each.loop, each.sharing) for each, no in plain.items() if not no}
    recipes = {
        each: no
        for each, no in refused.items()
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


def _table(row, detail, columns, refused):
    """A table in Markdown: by the row's attribute, loop and sharing, of which details are trained.

    A cell names those that are not, where they are fewer.
    """
    yield f"| {row} | {' | '.join(f'{loop}, {sharing}' for loop, sharing in columns)} |"
    yield "|---" * (1 + len(columns)) + "|"
    for name in dict.fromkeys(getattr(each, row) for each in refused):
        cells = []
        for column in columns:
            cases = {
                getattr(each, detail): no
                for each, no in refused.items()
                if (getattr(each, row), each.loop, each.sharing) == (name, *column)
            }
            trained = [case for case, no in cases.items() if not no]
            lacking = [case for case, no in cases.items() if no]
            cell = f"✓ but {', '.join(lacking)}" if lacking else "✓"
            if len(lacking) >= len(trained):
                cell = ", ".join(trained) or "no"
            cells.append(cell)
        yield f"| {name} | {' | '.join(cells)} |"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as root:
        TABLE.write_text(document(Place(Path(root)).refused), encoding="utf-8")
