"""Embeds the prepared images with a pretrained network, for a head that is trained on embeddings.

The output is laid out as that of `preprocess`, with an embedding in the place of each image. It
does not depend on the head or on how it is trained, so another head embeds nothing again.

Each shard of the images is embedded by a worker that has loaded the network once: a thread of this
process, or for much work on a cluster an actor of Ray Data, on a GPU or a CPU. A worker reads the
images of its shards and writes finished files: no pixels go through Ray. The files are made in the
scratch folder, so a run that was killed continues with the missing ones.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrain import atomic
from retrain.hardware import gpu_capabilities
from retrain.runs import console
from retrain.step import step
from tasks.compute.ray_data import THREADS, map_with_workers
from tasks.data.embeddings import has_embeddings
from tasks.data.listing import link_file
from tasks.data.shards import (
    IMAGES,
    LABELS,
    ROWS,
    Shards,
    open_prepared,
)
from tasks.data.splits import SPLITS

if TYPE_CHECKING:
    from models.backbone import EmbeddingNetwork
    from retrain.project import Project
    from retrain.step import Facts, Workspace
    from retrain.store import Artifact
    from retrain.workload import Evaluate, Model, Workload

SHOWN = "test"  # the split whose images the plots of the evaluation show

# FLOPs of a ViT-B/32 for a pixel; and what a core or a GPU does in a second. They decide no more
# than where the work is done.
FLOPS = 9e9 / 224**2
SPEED = {"cpu": 4e10, "gpu": 2e13}


@dataclass(frozen=True)
class Part:
    """A shard of the images, how many rows it has, and the file for their embeddings."""

    images: Path
    rows: int
    file: Path


@step(
    inputs=("preprocess",),
    reads=("model.pretrained", "model.pretrained_version", "evaluate"),
    libraries=("numpy", "safetensors", "torch", "transformers"),
    needed=has_embeddings,
    imports=("torch", "transformers.modeling_utils"),
)
def embed(
    model: "Model", evaluation: "Evaluate", images: "Artifact", workspace: "Workspace"
) -> "Facts":
    """Embeds all splits.

    The embeddings are those that the served network calculates for its head: in the precision of
    the evaluation.

    Args:
        model: The settings of the network; `pretrained` names the one that embeds.
        evaluation: The number of images per forward pass, and the precision.
        images: The output of `preprocess`.
        workspace: The scratch folder in it keeps finished parts.

    Returns:
        `rows` of each split, `classes` by index, `shape` (D,) of an embedding, `storage`.

    Raises:
        ValueError: There is no such network, or it gives no embedding of such images.
        OSError: The hub cannot be reached.
    """
    parts = list(_plan(images.folder, workspace.scratch))
    missing = [part for part in parts if not part.file.exists()]
    if missing:
        shape = open_prepared(images.folder).image_shape
        load = partial(_load, model, _network(model, workspace), evaluation, shape)
        rows = sum(part.rows for part in missing)
        with console.counted("embed", rows) as show:
            map_with_workers(
                load,
                missing,
                seconds=_seconds(shape, rows),
                done=lambda part: show(part.rows),
            )
    _write(images, parts, workspace)
    return {
        "rows": images.facts["rows"],
        "classes": images.facts["classes"],
        "shape": list(Shards([parts[0].file]).shape),
        "storage": "embeddings",
    }


def _plan(images: Path, folder: Path) -> Iterator[Part]:
    """The shards of all splits; makes the folders of the files for their embeddings."""
    import numpy as np

    for split in SPLITS:
        (folder / split).mkdir(parents=True, exist_ok=True)
        for shard in sorted((images / split).glob("images-*.npy")):
            yield Part(shard, len(np.load(shard, mmap_mode="r")), folder / split / shard.name)


def _seconds(shape: tuple[int, int, int], rows: int) -> float:
    """How long a core, or a GPU, takes for some images of a shape, roughly."""
    height, width, _ = shape
    return rows * height * width * FLOPS / SPEED["gpu" if gpu_capabilities() else "cpu"]


def _network(model: "Model", workspace: "Workspace") -> Path | str:
    """The network's folder, or its name on the hub."""
    from models.pretrained import find_folder

    name: str = model.model_dump()["pretrained"]
    return find_folder(name, workspace.project.root) or name


def _load(
    model: "Model",
    network_name: Path | str,
    evaluation: "Evaluate",
    shape: tuple[int, int, int],
    device: str,
) -> Callable[[Part], None]:
    """Makes a worker: loads the network on a device."""
    import torch

    from models.backbone import load

    torch.set_num_threads(THREADS)
    network = load(str(network_name), model.model_dump()["pretrained_version"], shape)
    network.to(device)
    network.prefer_attention(torch.device(device).type, evaluation.precision)
    return partial(_embed_part, network, torch.device(device), evaluation)


def _embed_part(
    network: "EmbeddingNetwork", device: Any, evaluation: "Evaluate", part: Part
) -> None:
    """Embeds the images of a part, a batch at a time, and writes its file."""
    import numpy as np
    import torch

    images, batches = np.load(part.images, mmap_mode="r"), []
    for first in range(0, part.rows, evaluation.batch_size):
        rows = np.array(images[first : first + evaluation.batch_size])
        pixels = torch.from_numpy(rows).to(device)
        batches.append(network.embed(pixels, evaluation.precision).cpu().numpy())
    # Its name marks the part as finished.
    with atomic.replacing(part.file) as aside, aside.open("wb") as file:
        np.save(file, np.concatenate(batches))


def _write(images: "Artifact", parts: Sequence[Part], workspace: "Workspace") -> None:
    """Writes the output: the embeddings, and what is known of the images."""
    for split in SPLITS:
        (workspace.folder / split).mkdir()
        for name in ("labels.npy", ROWS):
            shutil.copyfile(images.folder / split / name, workspace.folder / split / name)
    for part in parts:
        link_file(part.file, workspace.folder / part.images.parent.name / part.file.name)
    for name in (LABELS, IMAGES):
        shutil.copyfile(images.folder / name, workspace.folder / name)
    for shard in (images.folder / SHOWN).glob("images-*.npy"):
        link_file(shard, workspace.report / SHOWN / shard.name)


@embed.checks
def check(workload: "Workload", project: "Project") -> Iterator[str]:
    """Finds settings of a training that do not go with a network that is not trained itself."""
    train = workload.train
    refused = {"function", "augment", "lora", "freeze_epochs", "layer_decay"}
    for name in train.model_dump(include=refused, exclude_defaults=True):
        yield (
            f"train.{name}: a head on embeddings is trained by the project's own loop, with its "
            "images and their embeddings as they are; leave it out."
        )
    if workload.images.storage == "source":
        yield "images.storage: embeddings are made of prepared images, and not of source."
    if workload.scale.strategy != "ddp":
        yield "scale.strategy: a head on embeddings is too small to be divided; leave it out."
    if train.batch_size // max(workload.scale.workers, 1) < 2 or train.micro_batch == 1:
        yield "train.batch_size: the head's batch norm needs two images or more at once."
