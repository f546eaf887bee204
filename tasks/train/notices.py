"""Says before a training what of its start, images or libraries may surprise."""

import math
from collections.abc import Iterator
from contextlib import chdir
from importlib.metadata import version as installed
from pathlib import Path
from typing import TYPE_CHECKING

from models import processing
from retrain.code import libraries_of, names_in
from retrain.workload import Workload
from tasks.data.shards import open_prepared
from tasks.train import checkpoint
from tasks.train.job import TrainingJob
from tasks.train.loops import modules_of_the_user

if TYPE_CHECKING:
    from tasks.data.champion import Start


def of_training(job: TrainingJob, start: "Start") -> Iterator[str]:
    """Where it starts, what it takes otherwise than asked, and how its images differ."""
    if start.registered:
        yield f"train starts from the weights of version {start.registered.version.version}."
    if step := checkpoint.newest(job.scratch):
        yield f"train continues at step {step}, from its last checkpoint."
    wanted = job.hyperparameters.batch_size
    if job.batch_size < wanted:
        yield (
            f"train takes batches of {job.batch_size} images: {wanted} cannot be divided among "
            f"{job.scale.workers} workers."
        )
    data, settings = open_prepared(job.images), job.settings
    if name := settings.get("pretrained"):
        with chdir(job.root):
            lines = processing.difference(name, settings.get("pretrained_version"), data.images)
        yield from [lines] if lines else []
    crop = job.hyperparameters.augment.crop
    if crop and job.ingest != "stream":
        stored, size = data.split("train").images.shape[0], data.images["size"]
        side = round(stored * crop**0.5)
        if side < size:
            yield (
                f"train.augment.crop {crop:g} enlarges parts of {side} to {size} pixels: images "
                f"are prepared with {stored}. If yours are larger, images.margin="
                f"{math.ceil(size / crop**0.5) - size} or images.storage=source keeps their detail."
            )


def of_libraries(workload: Workload, lock: Path) -> Iterator[str]:
    """Names the libraries of the user's modules that other machines would not have."""
    if not lock.exists():
        return
    known = {"torch", *names_in(lock)}  # its build differs by system: pyproject.toml pins it
    for name in libraries_of(modules_of_the_user(workload)):
        if name not in known:
            yield (
                f"{name} {installed(name)} is not in requirements.lock: add it, so that it is "
                "installed wherever this runs."
            )
