"""Says before a training what of its images or libraries may surprise."""

import math
from collections.abc import Mapping
from contextlib import chdir
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

from models import processing
from retrain.code import libraries_of, names_in
from retrain.runs import console
from retrain.store import Artifact
from retrain.workload import Workload
from tasks.data.shards import open_prepared
from tasks.train.loop import modules_of_the_user


def say_how_images_differ(settings: Mapping[str, Any], images: Artifact, root: Path) -> None:
    """Says what a pretrained network's image processor has that the workload has not."""
    if name := settings.get("pretrained"):
        with chdir(root):
            version, prepared = settings.get("pretrained_version"), open_prepared(images.folder)
            if line := processing.difference(name, version, prepared.images):
                console.say(line)


def say_what_is_enlarged(crop: float, images: Artifact) -> None:
    """Says that the smallest parts of prepared images have less pixels than the network takes."""
    prepared = open_prepared(images.folder)
    stored, size = prepared.split("train").images.shape[0], prepared.images["size"]
    side = round(stored * crop**0.5)
    if side < size:
        console.say(
            f"train.augment.crop {crop:g} enlarges parts of {side} to {size} pixels: images are "
            f"prepared with {stored}. If yours are larger, images.margin="
            f"{math.ceil(size / crop**0.5) - size} or images.storage=source keeps their detail."
        )


def say_what_is_not_locked(workload: Workload, lock: Path) -> None:
    """Names the libraries of the user's modules that other machines would not have."""
    if not lock.exists():
        return
    known = {"torch", *names_in(lock)}  # its build differs by system: pyproject.toml pins it
    for name in libraries_of(modules_of_the_user(workload)):
        if name not in known:
            console.say(
                f"{name} {installed(name)} is not in requirements.lock: add it, so that it is "
                "installed wherever this runs."
            )
