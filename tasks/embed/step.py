"""Embeds the prepared images with a pretrained network, for a head that is trained on embeddings.

The output is laid out as that of `preprocess`, with an embedding in the place of each image. It
does not depend on the head or on how it is trained, so another head embeds nothing again.

Each shard of the images is embedded by itself: in a thread of this process, or for much work by a
worker on a cluster, on a GPU or a CPU. The files are made in the scratch folder, so a run that was
killed continues with the missing ones.
"""

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from retrain import file_io
from retrain.project import Project
from retrain.step import Facts, Workspace, step
from retrain.store import Artifact
from retrain.workload import Evaluate, Model, Workload
from tasks.compute import ray_data
from tasks.data.listing import SPLITS, link_file
from tasks.data.shards import IMAGES, LABELS, ROWS, Shards, digest_of_learnt, has_embeddings

SHARDS = "images-*.npy"


def check(workload: Workload, project: Project) -> Iterator[str]:
    """Finds settings of a training that do not go with a network that is not trained itself."""
    train = workload.train
    refused = {"function", "augment", "freeze_epochs"}
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


@step(
    inputs=("preprocess",),
    reads=("model.pretrained", "model.pretrained_version", "evaluate"),
    libraries=("numpy", "safetensors", "torch", "transformers"),
    needed=has_embeddings,
    check=check,
)
def embed(model: Model, evaluation: Evaluate, images: Artifact, workspace: Workspace) -> Facts:
    """Embeds all splits.

    The embeddings are those that the served network calculates for its head: in the precision of
    the evaluation.

    Args:
        model: The settings of the network; `pretrained` names the one that embeds.
        evaluation: The number of images per forward pass, and the precision.
        images: The output of `preprocess`.
        workspace: The scratch folder in it keeps finished parts.

    Returns:
        `rows` of each split, `classes` by index, `shape` (D,) of an embedding, `storage`, and
        `learnt`, the digest of what a training reads.

    Raises:
        ValueError: There is no such network, or it gives no embedding of such images.
        OSError: The hub cannot be reached.
    """
    from models.pretrained import find_folder

    shards = [path for split in SPLITS for path in sorted((images.folder / split).glob(SHARDS))]
    parts = {shard: workspace.scratch / shard.relative_to(images.folder) for shard in shards}
    missing = [(shard, part) for shard, part in parts.items() if not part.exists()]
    counts = [len(np.load(shard, mmap_mode="r")) for shard, _ in missing]
    settings = model.model_dump()
    name, version = settings["pretrained"], settings["pretrained_version"]
    folder = find_folder(name, workspace.project.root)
    load = partial(_load, str(folder or name), version, evaluation)
    seconds = sum(counts) * ray_data.SECONDS_PER_IMAGE
    ray_data.each_counted("embed", load, missing, counts, seconds=seconds, on_gpus=True)
    for split in SPLITS:
        (workspace.folder / split).mkdir()
        for name in ("labels.npy", ROWS):
            shutil.copyfile(images.folder / split / name, workspace.folder / split / name)
    for name in (LABELS, IMAGES):
        shutil.copyfile(images.folder / name, workspace.folder / name)
    for shard, part in parts.items():
        link_file(part, workspace.folder / shard.relative_to(images.folder))
    return {
        "rows": images.facts["rows"],
        "classes": images.facts["classes"],
        "shape": list(Shards([*parts.values()]).shape),
        "storage": "embeddings",
        "learnt": digest_of_learnt(workspace.folder),
    }


def _load(
    name: str, version: str | None, evaluation: Evaluate, device: str
) -> Callable[[tuple[Path, Path]], None]:
    """Loads the network on a device; returns what embeds a shard with it."""
    import torch

    from models.backbone import load
    from models.network import FeatureExtractor

    network = load(name, version).to(device)
    network.prefer_attention(torch.device(device).type, evaluation.precision)
    observed = FeatureExtractor(network)

    def embed_shard(shard: tuple[Path, Path]) -> None:
        """Embeds the images of a shard, a batch at a time, and writes the second path.

        Its name marks it as finished.
        """
        torch.set_num_threads(ray_data.THREADS)
        source, target = shard
        images, batches = np.load(source, mmap_mode="r"), []
        for first in range(0, len(images), evaluation.batch_size):
            pixels = torch.from_numpy(np.array(images[first : first + evaluation.batch_size]))
            _, embeddings = observed.answer(pixels.to(device), evaluation.precision)
            assert embeddings is not None
            batches.append(embeddings.cpu().numpy())
        target.parent.mkdir(parents=True, exist_ok=True)
        with file_io.replacing(target) as aside, aside.open("wb") as file:
            np.save(file, np.concatenate(batches))

    return embed_shard
