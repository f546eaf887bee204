"""Looks at images that nobody has described yet, and proposes a workload for them.

That is a network, how it is trained on this machine, and a gate: a start that trains in minutes and
gives a first champion, not the best that can be had. `propose` is a pure function of what `survey`
has found and of the number of cores, so that the same images get the same proposal.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from models import pretrained
from models.image import ImageProperties, inspect
from retrain.hardware import gpu_capabilities, machine
from retrain.workload import Data, Gate, Split
from tasks.data import index
from tasks.data.listing import list_files
from tasks.data.raw_images import places_of
from tasks.data.sample_size import smallest_margin, units_needed

if TYPE_CHECKING:
    import pandas as pd

DECODED = 300  # images, evenly spaced; all of them are counted

GREY = ("1", "L", "LA", "I", "F")  # modes
# The folder below a class folder, in an image's name from the class folder on.
BELOW_CLASS = r"^[^/]+/([^/]+)/"
FEW_GROUPS = 3  # of a class; with fewer it cannot be in all splits

# A small published network without a classifier of its own for the embeddings: 22 million weights.
PUBLISHED = "facebook/dinov2-small"

STEPS = 1500  # of a training from scratch, roughly; in at least and at most so many epochs:
EPOCHS = (10, 200)
# Of images, for a training from scratch; on a core it may see so many of 64 pixels, in minutes.
SIZES, SEEN = (64, 96, 128, 224), 250_000

# A ResNet of eight 3 x 3 convolutions, trained from scratch; and that with 18 layers, for a GPU.
SMALL = {"embedding_size": 32, "hidden_sizes": [32, 64, 128, 256], "depths": [1, 1, 1, 1]}
LARGE = {"embedding_size": 64, "hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2]}

UNBALANCED = 3  # times as many images in the largest class as in the smallest
MIN_COMPARED = Gate().min_compared
MARGINS = (0.01, 0.1)  # the smallest and the largest that is proposed


@dataclass(frozen=True)
class Survey:
    """What images are like.

    Attributes:
        format: `parquet`, `folders` or `table`.
        bytes: The size of all files.
        classes: The number of images of each class, by its name; without images without a class.
        splits: The number of images of each split; empty if no names define splits.
        groups: The number of folders below the class folders, if all images are in one, and each
            class in several; else 0.
        side: The median of the shorter sides, in pixels.
        is_grey: Whether no image has colours.
        undecodable: Why images do not decode, by their paths.
        decoded: How many images were decoded, for these figures.
    """

    format: str
    bytes: int
    classes: Mapping[str, int]
    splits: Mapping[str, int]
    groups: int
    side: int
    is_grey: bool
    undecodable: Mapping[str, str]
    decoded: int

    @property
    def images(self) -> int:
        """How many images have a class."""
        return sum(self.classes.values())


def survey(place: Path, data: Data) -> Survey:
    """Looks at a folder of images.

    Args:
        place: The folder.
        data: What the user says of it; the path does not matter.

    Raises:
        ValueError: The format is not recognised, a file is broken, or no image decodes.
    """
    found = index.build(place, data)
    if found.format == "folders":
        index.check_classes(place, found.images)
    images = found.images.select(["file", "label", "split"]).to_pandas()
    shapes, undecodable = _decode(found)
    if not shapes:
        path, error = next(iter(undecodable.items()), ("", "there is none"))
        raise ValueError(f"None of the images in {place} decodes: {path} ({error}).")
    return Survey(
        format=found.format,
        bytes=sum(size for _, size in list_files(place)),
        classes=dict(Counter(images["label"].dropna())),
        splits=dict(Counter(images["split"].dropna())),
        groups=_groups(images) if found.format == "folders" else 0,
        side=round(median(min(shape.width, shape.height) for shape in shapes)),
        is_grey=all(shape.mode in GREY or shape.mode.startswith("I;") for shape in shapes),
        undecodable=undecodable,
        decoded=len(shapes),
    )


def _decode(found: index.Index) -> tuple[list[ImageProperties], dict[str, str]]:
    """The properties of some images; and why others do not decode."""
    some = found.images[:: max(1, len(found.images) // DECODED)]
    shapes, undecodable = [], {}
    encoded = found.files.read(places_of(some))
    for path, data in zip(some["path"].to_pylist(), encoded, strict=True):
        try:
            shapes.append(inspect(data, reduced=True)[0])
        except ValueError as error:
            undecodable[path] = str(error)
    return shapes, undecodable


def _groups(images: "pd.DataFrame") -> int:
    """The number of folders below class folders that can stay in one split each."""
    from_class = images["file"].where(images["split"].isna(), images["file"].str.partition("/")[2])
    below = from_class.str.extract(BELOW_CLASS, expand=False)
    groups = below.groupby(images["label"]).nunique()
    return below.nunique() if below.notna().all() and groups.min() >= FEW_GROUPS else 0


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


def threads_here() -> int | None:
    """The CPU threads of a training on this machine; None on a GPU."""
    # A thread that has to share its core makes all of them wait.
    return None if gpu_capabilities() else max(1, machine()["cores"] // 2)


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
    size = getattr(getattr(config, "vision_config", config), "image_size", None)
    return Backbone(wanted, min(size, 224) if isinstance(size, int) else 224)


def propose(path: str, seen: Survey, threads: int | None, backbone: Backbone | None) -> Proposal:
    """Proposes a workload.

    Args:
        path: `data.path`.
        seen: The images.
        threads: As `threads_here` gives them.
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
    network = _pretrained(backbone, seen) if backbone else _from_scratch(seen, threads)
    gate, of_gate = _gate(seen)
    sections, of_network = network
    if is_unbalanced(seen):
        sections["train"] |= {"balance": "loss", "best": {"metric": "val_macro_recall"}}
    entry = {"data": data, "checks": checks, **sections, "gate": gate}
    return Proposal(entry, (*of_data, *of_network, *of_gate))


def is_unbalanced(seen: Survey) -> bool:
    """Whether some classes have far more images than others."""
    return max(seen.classes.values()) > UNBALANCED * min(seen.classes.values())


def splits_of_run(seen: Survey) -> dict[str, int]:
    """How many images each split will have: those that the data lacks are cut out of training."""
    free = seen.splits["train"] if seen.splits else seen.images
    fractions = {"val": Split().val, "test": Split().test}
    cut = {name: round(part * free) for name, part in fractions.items() if name not in seen.splits}
    return {**seen.splits, **cut, "train": free - sum(cut.values())}


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
        lacking = [name for name in ("val", "test") if name not in seen.splits]
        cut = f"; {' and '.join(lacking)} will be cut out of train" if lacking else ""
        reasons.append(f"The splits are those of the data: {parts}{cut}.")
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


def _from_scratch(seen: Survey, threads: int | None) -> tuple[Section, list[str]]:
    """The sections about a network with random weights, and why."""
    images = splits_of_run(seen)["train"]
    batch = 64 if images >= 2000 else 32 if images >= 500 else 16
    epochs = min(EPOCHS[1], max(EPOCHS[0], STEPS * batch // images))
    size = SIZES[0]  # the network halves an image five times, so smaller ones are enlarged
    for larger in SIZES[1:]:
        seen_images = epochs * images * (larger / SIZES[0]) ** 2
        if size < seen.side and (threads is None or seen_images <= SEEN * threads):
            size = larger
    augment = {"shift": size // 16} | ({} if seen.is_grey else {"flip": True})
    sections = {
        "images": {"size": size, "channels": 1 if seen.is_grey else 3},
        "model": {
            "family": "auto",
            "config": {
                "model_type": "resnet",
                "layer_type": "basic",
                **(SMALL if threads else LARGE),
            },
        },
        "train": {
            "epochs": epochs,
            "batch_size": batch * (1 if threads else 2),
            "lr": 0.003,
            "schedule": "one_cycle",
            "warmup": 0.3,
            "label_smoothing": 0.1,
            "augment": augment,
        },
        "scale": {"workers": 0} | ({"threads": threads} if threads else {}),
    }
    reasons = [
        "A small ResNet is trained from scratch, as no pretrained network is at hand; with one "
        "(--pretrained FOLDER or owner/name) photos are told apart far better.",
        f"{size} pixels and {epochs} epochs are a training of minutes; the images have "
        f"{seen.side}.",
    ]
    if not seen.is_grey:
        reasons.append("Images are mirrored at random: take augment.flip out if left is not right.")
    return sections, reasons


def _gate(seen: Survey) -> tuple[Section, list[str]]:
    """The section `gate`, and why.

    Images below one folder count once, as in a comparison.
    """
    tested = splits_of_run(seen)["test"]
    metric = "macro_recall" if is_unbalanced(seen) else "accuracy"
    share = tested / seen.images * (seen.groups / seen.images if seen.groups else 1)
    units = [max(1, round(count * share)) for count in seen.classes.values()]
    smallest = smallest_margin(metric, units, Gate().level)
    assert smallest is not None
    margin = min(MARGINS[1], max(MARGINS[0], ceil(200 * smallest) / 200))
    reasons = [
        "The first model becomes champion whatever it scores; later set bounds that it must keep "
        "(gate.min)."
    ]
    kept = f"About {sum(units):,} test images"
    if seen.groups:
        kept = f"About {tested:,} test images in {sum(units):,} groups"
    if sum(units) < MIN_COMPARED:
        reasons.append(
            f"{kept} are too few to compare a later model with the first: {MIN_COMPARED} are "
            "needed, so add images."
        )
    elif smallest <= margin:
        reasons.append(
            f"{kept} usually show that a model that is as good is not worse by {margin:.1%}, so a "
            "later model is promoted if it is better, or not worse by that."
        )
    else:
        needed = units_needed(metric, units, Gate().level, margin)
        reasons.append(
            f"{kept} are too few to show that a later model is not worse by {margin:.1%}, which "
            f"needs about {needed:,}: until then one is promoted only if it is surely better."
        )
    if metric != "accuracy":
        reasons.append(
            f"The largest class has {max(seen.classes.values()):,} images and the smallest "
            f"{min(seen.classes.values()):,}, so each class counts the same, in the loss and in "
            "the gate (macro_recall)."
        )
    return {"metric": metric, "margin": margin}, reasons
