"""Proposes a workload for images: a network, how it is trained on this machine, and a gate.

It is a start that trains in minutes and gives a first champion, not the best that can be had.
`propose` is a pure function; what it goes by is in `tasks.data.survey` and `this_machine`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, sqrt
from pathlib import Path
from typing import Any

from models import pretrained
from retrain.hardware import gpu_capabilities, has_bf16, machine
from retrain.workload import Gate
from tasks.data.survey import BELOW_CLASS, Survey

# A small published network without a classifier of its own for the embeddings: 22 million weights.
PUBLISHED = "facebook/dinov2-small"

SECONDS = 120.0  # that a training from scratch may take
EPOCHS = (10, 40)  # at least and at most, or more for few images, up to
STEPS, MOST_EPOCHS = 1000, 200
SIZES = (32, 64, 96, 128, 224)  # of images, for a training from scratch

# A ResNet of eight 3 x 3 convolutions, trained from scratch; and that with 18 layers, for a GPU.
SMALL = {"embedding_size": 32, "hidden_sizes": [32, 64, 128, 256], "depths": [1, 1, 1, 1]}
LARGE = {"embedding_size": 64, "hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2]}
# FLOP/s that a training reaches on a core, and on a GPU of 2020 or later, roughly. Nothing is
# measured, so that the same images get the same proposal.
CORE_FLOPS = {"fp32": 5e10, "bf16": 1.5e11}
GPU_FLOPS = {"fp32": 10e12, "bf16": 150e12}
# FLOPs of a forward pass over an image of 64 x 64 pixels.
FLOPS_AT_64 = {"small": 4.1e7, "large": 2.96e8}

UNBALANCED = 3  # times as many images in the largest class as in the smallest
DIFFERING = 0.1  # the share of test images that two trainings usually answer differently
STANDARD_ERRORS = 2.49  # of the difference that the gate sees with a probability of 80 %
MIN_COMPARED = Gate().min_compared
MARGINS = (0.01, 0.1)  # the smallest and the largest that is proposed


@dataclass(frozen=True)
class Machine:
    """What a training has.

    Attributes:
        flops: FLOP/s that a training reaches, roughly.
        threads: Its CPU threads; None on a GPU.
    """

    flops: float
    threads: int | None


@dataclass(frozen=True)
class Backbone:
    """A pretrained network that can be had.

    Attributes:
        name: As `model.pretrained` takes it.
        size: Height and width of the images that it was made for, in pixels.
    """

    name: str
    size: int


@dataclass(frozen=True)
class Proposal:
    """A workload for images.

    Attributes:
        entry: Its entry in `params.yaml`.
        reasons: A sentence for each choice.
    """

    entry: Mapping[str, Any]
    reasons: tuple[str, ...]


def this_machine() -> Machine:
    """This machine, as far as its kind and its number of cores tell."""
    precision = "bf16" if has_bf16() else "fp32"
    if gpu_capabilities():
        return Machine(GPU_FLOPS[precision], threads=None)
    # A thread that has to share its core makes all of them wait.
    threads = max(1, machine()["cores"] // 2)
    return Machine(CORE_FLOPS[precision] * threads, threads)


def find_backbone(name: str | None, root: Path) -> Backbone | None:
    """A pretrained network: the one that is named, or else a small one, if the hub answers.

    Args:
        name: A folder, or `owner/name` on the hub; None for one that is chosen.
        root: Where a relative path starts.

    Raises:
        FileNotFoundError: There is no such folder or model.
        ConnectionError: The hub does not give the one that is named.
        ValueError: The folder holds no network.
    """
    wanted = name or PUBLISHED
    try:
        version = pretrained.find_version(wanted, root)
    except (ConnectionError, FileNotFoundError):
        if name:
            raise
        return None
    if not pretrained.find_folder(wanted, root):
        wanted = f"{pretrained.split_name(wanted)[0]}@{version}"
    config = pretrained.read_config(wanted, version, root)
    size = {**config, **config.get("vision_config", {})}.get("image_size") if config else None
    return Backbone(wanted, min(size, 224) if isinstance(size, int) else 224)


def propose(path: str, seen: Survey, machine: Machine, backbone: Backbone | None) -> Proposal:
    """Proposes a workload.

    Args:
        path: `data.path`.
        seen: The images.
        machine: What trains.
        backbone: The pretrained network to use; None trains from scratch.

    Raises:
        ValueError: There are too few classes, or images of one, or none to train on.
    """
    few = {label: count for label, count in seen.classes.items() if count < 3}
    if len(seen.classes) < 2 or few:
        listed = ", ".join(f"{label} ({count})" for label, count in [*few.items()][:5])
        raise ValueError(
            f"These classes have too few images, and each needs three: {listed}."
            if few
            else "There is a single class, and a classifier needs two: name the folder that holds "
            "the class folders."
        )
    if seen.splits and "train" not in seen.splits:
        raise ValueError(
            f"The names of the files mean the split {' and '.join(seen.splits)}, and nothing is "
            "left to train on: name them otherwise."
        )
    data, checks, of_data = _data(path, seen)
    network = _pretrained(backbone, seen) if backbone else _from_scratch(seen, machine)
    gate, of_gate = _gate(seen)
    sections, of_network = network
    if is_unbalanced(seen):
        sections["train"]["balance"] = "loss"
    entry = {"data": data, "checks": checks, **sections, "gate": gate}
    return Proposal(entry, (*of_data, *of_network, *of_gate))


def is_unbalanced(seen: Survey) -> bool:
    """Whether some classes have far more images than others."""
    return max(seen.classes.values()) > UNBALANCED * min(seen.classes.values())


Section = dict[str, Any]


def _data(path: str, seen: Survey) -> tuple[Section, Section, list[str]]:
    """The sections `data` and `checks`, and why."""
    data: Section = {"path": path}
    checks: Section = {"max_bad_fraction": 0.02}
    reasons = ["Up to 2 % bad images are set aside and listed; more stop the run."]
    if seen.groups:
        data["group"] = BELOW_CLASS
        reasons.append(
            f"The {seen.groups:,} folders below the class folders stay together: each is in one "
            "split."
        )
    if seen.splits:
        parts = ", ".join(f"{split} {count:,}" for split, count in seen.splits.items())
        reasons.append(f"The splits are those of the data: {parts}.")
    if (smallest := min(seen.classes.values())) < 10:
        checks["min_images_per_class"] = smallest
        reasons.append(
            f"The smallest class has {smallest} images: a good model needs some ten times as many."
        )
    return data, checks, reasons


def _pretrained(backbone: Backbone, seen: Survey) -> tuple[Section, list[str]]:
    """The sections about a head on the embeddings of a pretrained network, and why."""
    batch = 64 if seen.images >= 1000 else 16
    sections = {
        "images": {"size": backbone.size},
        "model": {"family": "embedding_head", "pretrained": backbone.name},
        "train": {
            "epochs": 30,
            "batch_size": batch,
            "optimizer": "adam",
            "lr": 0.001,
            "weight_decay": 0.0,
        },
        "scale": {"workers": 0},
    }
    return sections, [
        f"The pretrained network {backbone.name} sees each image once, and a small head on its "
        "embeddings is trained: that takes little data and time."
    ]


def _from_scratch(seen: Survey, machine: Machine) -> tuple[Section, list[str]]:
    """The sections about a network with random weights, and why."""
    kind, config = ("small", SMALL) if machine.threads else ("large", LARGE)
    images = round(0.7 * seen.images) if not seen.splits else seen.splits.get("train", seen.images)

    def seconds(size: int) -> float:  # of an epoch; a backward pass costs two forward passes
        return 3 * FLOPS_AT_64[kind] * (size / 64) ** 2 * images / machine.flops

    fitting = [size for size in SIZES[1:] if seconds(size) * EPOCHS[0] <= SECONDS]
    enough = next((size for size in SIZES if size >= seen.side), SIZES[-1])
    # The network halves an image five times, so smaller ones are enlarged.
    size = max(SIZES[1], min(enough, max(fitting, default=0)))
    batch = 64 if images >= 2000 else 32 if images >= 500 else 16
    most = max(EPOCHS[1], min(MOST_EPOCHS, STEPS * batch // images))
    epochs = min(most, max(EPOCHS[0], int(SECONDS / seconds(size))))
    augment = {"shift": size // 16} | ({} if seen.is_grey else {"flip": True})
    sections = {
        "images": {"size": size, "channels": 1 if seen.is_grey else 3},
        "model": {
            "family": "auto",
            "config": {"model_type": "resnet", "layer_type": "basic", **config},
        },
        "train": {
            "epochs": epochs,
            "batch_size": batch * (1 if machine.threads else 2),
            "lr": 0.003,
            "schedule": "one_cycle",
            "warmup": 0.3,
            "label_smoothing": 0.1,
            "augment": augment,
        },
        "scale": {"workers": 0} | ({"threads": machine.threads} if machine.threads else {}),
    }
    reasons = [
        "A small ResNet is trained from scratch, as no pretrained network is at hand; with one "
        "(--pretrained FOLDER or owner/name) photos are told apart far better.",
        f"{size} pixels and {epochs} epochs take about {seconds(size) * epochs:.0f} s of training "
        f"on this {'machine' if machine.threads else 'GPU'}; the images have {seen.side}.",
    ]
    if not seen.is_grey:
        reasons.append("Images are mirrored at random: take augment.flip out if left is not right.")
    return sections, reasons


def _gate(seen: Survey) -> tuple[Section, list[str]]:
    """The section `gate`, and why."""
    tested = seen.splits.get("test") or round(0.2 * seen.images)
    visible = STANDARD_ERRORS * sqrt(DIFFERING / tested)
    margin = min(MARGINS[1], max(MARGINS[0], ceil(200 * visible) / 200))
    metric = "macro_recall" if is_unbalanced(seen) else "accuracy"
    reasons = [
        "The first model becomes champion whatever it scores; later set bounds that it must keep "
        "(gate.min).",
        f"About {tested:,} test images show a difference of {visible:.1%} or more, so a later "
        f"model is promoted if it is better, or not worse by {margin:.1%}."
        if tested >= MIN_COMPARED
        else f"About {tested:,} test images are too few to compare a later model with the first: "
        f"{MIN_COMPARED} are needed, so add images.",
    ]
    if metric != "accuracy":
        reasons.append(
            f"The largest class has {max(seen.classes.values()):,} images and the smallest "
            f"{min(seen.classes.values()):,}, so each class counts the same, in the loss and in "
            "the gate (macro_recall)."
        )
    return {"metric": metric, "margin": margin}, reasons
