"""Decodes and resizes the accepted images and writes them as shards on disk.

Threads, or workers of Ray Data where the work is worth it, decode the images of each unit of the
data and write the finished shards: no pixels go through Ray. The shards are made in the scratch
folder, so a run that was killed continues with the missing ones. `tasks/data/shards.py` describes
the layout.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from models.image import to_array
from retrain import disk
from retrain.disk import write_json
from retrain.runs import console
from retrain.step import step
from tasks.compute.ray_data import each
from tasks.data import image_table
from tasks.data.listing import SPLITS, link_file
from tasks.data.reading import ImageFiles, Place, cut, open_images, places_of, seconds_for
from tasks.data.shards import IMAGES, LABELS, ROWS, SOURCE, shard_name

if TYPE_CHECKING:
    from retrain.step import Facts, Workspace
    from retrain.store import Artifact
    from retrain.workload import Images

COLUMNS = ["path", "label", "sha256", "pixels", "file", "row"]  # of the list of a split's images
ROW_GROUP = 4096  # rows, of that list
WRITE_BYTES = 2**20  # a system call for each image would take as long as to decode a small one


@dataclass(frozen=True)
class Unit:
    """Images that are prepared together, and their shards, one for each split.

    Attributes:
        places: Where the images are.
        splits: The split of each.
        shards: The file for each split.
        seconds: How long it takes one core to prepare them, roughly.
    """

    places: Sequence[Place]
    splits: Sequence[str]
    shards: Mapping[str, Path]
    seconds: float


@step(
    inputs=("pull", "validate"),
    reads=("images",),
    libraries=("numpy", "pillow", "pyarrow"),
)
def preprocess(
    images: "Images", pulled: "Artifact", validated: "Artifact", workspace: "Workspace"
) -> "Facts":
    """Decodes and resizes the accepted images, and numbers their classes.

    The classes are those of the training split, in natural order: "2" before "10".

    Returns:
        `rows` of each split, the `classes` by index, the `shape` (H, W, C) of an image, and the
        `storage` of the training split: `pixels` or `source`.
    """
    files, folder = open_images(pulled), workspace.folder
    accepted = image_table.read_split(validated.folder, columns=[*COLUMNS, "split", "bytes"])
    labels = image_table.class_names(validated.folder)
    # Evaluation always uses the pixels that serving does.
    stored = [split for split in SPLITS if (split, images.storage) != ("train", "source")]
    kept = accepted.filter(pc.is_in(accepted["split"], pa.array(stored)))
    units = _plan(files, kept, workspace.scratch)
    _make(units, files, images)
    rows = {}
    for split in SPLITS:
        for unit in units:
            if split in unit.shards:
                # Should this run be killed before the output is published, the next finds it.
                link_file(unit.shards[split], folder / split / unit.shards[split].name)
        part = accepted.filter(pc.equal(accepted["split"], split))
        rows[split] = len(part)
        (folder / split).mkdir(exist_ok=True)
        pq.write_table(part.select(COLUMNS), folder / split / ROWS, row_group_size=ROW_GROUP)
        numbers = pc.index_in(part["label"], pa.array(labels, pa.string())).to_numpy()
        np.save(folder / split / "labels.npy", numbers.astype(np.int64))
        if split not in stored:  # where its images are read
            size = pc.sum(part["bytes"]).as_py()
            described = {"image_column": files.image_column, "bytes": size}
            write_json(folder / split / SOURCE, described)
    write_json(folder / LABELS, labels)
    write_json(folder / IMAGES, images.model_dump(include={"size", "channels", "resize"}))
    shape = [images.size, images.size, images.channels]
    return {"rows": rows, "classes": labels, "shape": shape, "storage": images.storage}


def _plan(files: ImageFiles, images: pa.Table, folder: Path) -> list[Unit]:
    """Plans the units and their shards, in order of the images; makes the folders of the shards."""
    places, sizes = places_of(images), images["bytes"].to_pylist()
    all_splits, units = images["split"].to_pylist(), []
    for number, unit in enumerate(cut(files, places, sizes)):
        splits = all_splits[unit]
        shards = {split: folder / split / shard_name(number) for split in {*splits}}
        units.append(Unit(places[unit], splits, shards, seconds_for(sizes[unit])))
    for split in SPLITS:
        (folder / split).mkdir(parents=True, exist_ok=True)
    return units


def _make(units: Sequence[Unit], files: ImageFiles, images: "Images") -> None:
    """Makes the shards that a killed run has not finished."""
    missing = [unit for unit in units if not all(path.exists() for path in unit.shards.values())]
    seconds = sum(unit.seconds for unit in missing)
    with console.counted("preprocess", sum(len(unit.places) for unit in missing)) as show:
        made = each(lambda _: partial(_write, files, images), missing, seconds=seconds)
        for unit, _ in zip(missing, made, strict=True):
            show(len(unit.places))


def _write(files: ImageFiles, images: "Images", unit: Unit) -> None:
    """Prepares images, one at a time, and writes the missing shards of their unit."""
    with ExitStack() as stack:
        # The shards get their names at the end of the block, because these mark them as finished.
        opened, sides = {}, {}
        for split, path in unit.shards.items():
            if not path.exists():
                aside = stack.enter_context(disk.replacing(path))
                # Only training crops at random.
                sides[split] = images.size + (images.margin if split == "train" else 0)
                shape = (unit.splits.count(split), sides[split], sides[split], images.channels)
                opened[split] = stack.enter_context(aside.open("wb", buffering=WRITE_BYTES))
                header = {"descr": "|u1", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(opened[split], header)
        wanted = [n for n, split in enumerate(unit.splits) if split in opened]
        encoded = files.read(unit.places[number] for number in wanted)
        for number, data in zip(wanted, encoded, strict=True):
            split = unit.splits[number]
            pixels = to_array(data, sides[split], images.channels, images.resize)
            opened[split].write(pixels.data)
