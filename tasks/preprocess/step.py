"""Decodes and resizes the accepted images and writes them as shards on disk.

Threads, or a plan of Ray Data where the work is worth it, decode the images of each unit of the
data and write the finished shards: no pixels go through its blocks. The shards are made in the
scratch folder, so a run that was killed continues with the missing ones. `tasks/data/shards.py`
describes the layout.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from models.image import to_array
from retrain import atomic
from retrain.atomic import write_json
from retrain.runs import console
from retrain.step import step
from tasks.compute.ray_data import map_units
from tasks.data import image_table
from tasks.data.listing import link_file
from tasks.data.reading import ImageFiles, Place, open_images, places_of
from tasks.data.shards import IMAGES, LABELS, ROWS, SOURCE, shard_name
from tasks.data.splits import SPLITS
from tasks.data.units import Unit, cut

if TYPE_CHECKING:
    from retrain.step import Facts, Workspace
    from retrain.store import Artifact
    from retrain.workload import Images

WRITE_BYTES = 2**20  # a system call per image would take as long as decoding it
COLUMNS = ["path", "label", "sha256", "pixels", "file", "row"]  # of the list of a split's images
ROW_GROUP = 4096  # rows, of that list


@dataclass(frozen=True)
class ShardTask:
    """The work on one unit: prepare its images and write its shards.

    Attributes:
        unit: How many images it has, and their size.
        places: Where they are.
        splits: The split of each image.
        shards: The shard to write for each split.
    """

    unit: Unit
    places: Sequence[Place]
    splits: Sequence[str]
    shards: Mapping[str, Path]


@step(
    inputs=("pull", "validate"),
    reads=("images",),
    libraries=("numpy", "pillow", "pyarrow"),
    imports=("numpy", "pyarrow.parquet"),
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
    for split in SPLITS:
        (workspace.scratch / split).mkdir(parents=True, exist_ok=True)
        (folder / split).mkdir()
    kept = accepted.filter(pc.is_in(accepted["split"], pa.array(stored)))
    tasks = _plan(files, kept, workspace.scratch)
    if missing := _unfinished(tasks):
        with console.counted("preprocess", sum(task.unit.rows for task in missing)) as show:
            map_units(
                partial(_write_shards, files, images),
                missing,
                seconds=sum(task.unit.seconds for task in missing),
                done=lambda task: show(task.unit.rows),
            )
    for task in tasks:
        for split, shard in task.shards.items():
            # Should this run be killed before the output is published, the next finds it.
            link_file(shard, folder / split / shard.name)
    rows = {}
    for split in SPLITS:
        part = accepted.filter(pc.equal(accepted["split"], split))
        rows[split] = len(part)
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


def _side(images: "Images", split: str) -> int:
    """Height and width of the stored images of a split: only training crops at random."""
    return images.size + (images.margin if split == "train" else 0)


def _plan(files: ImageFiles, images: pa.Table, folder: Path) -> list[ShardTask]:
    """Plans the shards of each unit's images; the shards are in order of the units."""
    made, tasks = Counter[str](), []
    places, splits = places_of(images), images["split"].to_pylist()
    for unit in cut(files, places, images["bytes"].to_pylist()):
        some = slice(unit.first, unit.first + unit.rows)
        names = sorted({*splits[some]})
        shards = {split: folder / split / shard_name(made[split]) for split in names}
        made.update(names)
        tasks.append(ShardTask(unit, places[some], splits[some], shards))
    return tasks


def _unfinished(tasks: Sequence[ShardTask]) -> list[ShardTask]:
    """The parts of tasks that are left: their missing shards."""
    parts = (
        replace(
            task,
            shards={split: shard for split, shard in task.shards.items() if not shard.exists()},
        )
        for task in tasks
    )
    return [part for part in parts if part.shards]


def _write_shards(files: ImageFiles, images: "Images", task: ShardTask) -> None:
    """Prepares the images of a task, a few at a time, and writes its shards."""
    wanted = [n for n, split in enumerate(task.splits) if split in task.shards]
    encoded = files.read(task.places[number] for number in wanted)
    with ExitStack() as stack:
        # The shards get their names at the end of the block, because these mark them as finished.
        opened = {}
        for split, path in task.shards.items():
            aside = stack.enter_context(atomic.replacing(path))
            opened[split] = stack.enter_context(aside.open("wb", buffering=WRITE_BYTES))
            side, count = _side(images, split), task.splits.count(split)
            header = {"descr": "|u1", "fortran_order": False}
            shape = {"shape": (count, side, side, images.channels)}
            np.lib.format.write_array_header_1_0(opened[split], header | shape)
        for number, data in zip(wanted, encoded, strict=True):
            split = task.splits[number]
            pixels = to_array(data, _side(images, split), images.channels, images.resize)
            opened[split].write(pixels.data)
