"""Decodes and resizes the accepted images and writes them as shards on disk.

Threads, or workers of Ray Data where the work is worth it, decode the images of each unit of a
split and write the finished shard: no pixels go through Ray. The shards are made in the scratch
folder, so a run that was killed continues with the missing ones. `tasks/data/shards.py` describes
the layout.
"""

from collections.abc import Sequence
from dataclasses import dataclass
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
from tasks.compute.ray_data import each
from tasks.data import image_table
from tasks.data.listing import link_file
from tasks.data.reading import ImageFiles, Place, open_images, places_of
from tasks.data.shards import IMAGES, LABELS, ROWS, SOURCE, shard_name
from tasks.data.splits import SPLITS
from tasks.data.units import cut, seconds_for

if TYPE_CHECKING:
    from retrain.step import Facts, Workspace
    from retrain.store import Artifact
    from retrain.workload import Images

COLUMNS = ["path", "label", "sha256", "pixels", "file", "row"]  # of the list of a split's images
ROW_GROUP = 4096  # rows, of that list


@dataclass(frozen=True)
class Shard:
    """The prepared images of a unit.

    Attributes:
        path: The file.
        places: Where the images are.
        seconds: How long it takes one core to make it, roughly.
        side: Height and width of a prepared image.
    """

    path: Path
    places: Sequence[Place]
    seconds: float
    side: int


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
    rows, shards = {}, list[Shard]()
    for split in SPLITS:
        (folder / split).mkdir()
        part = accepted.filter(pc.equal(accepted["split"], split))
        rows[split] = len(part)
        pq.write_table(part.select(COLUMNS), folder / split / ROWS, row_group_size=ROW_GROUP)
        numbers = pc.index_in(part["label"], pa.array(labels, pa.string())).to_numpy()
        np.save(folder / split / "labels.npy", numbers.astype(np.int64))
        # Evaluation always uses the pixels that serving does.
        if (split, images.storage) == ("train", "source"):
            size = pc.sum(part["bytes"]).as_py()
            described = {"image_column": files.image_column, "bytes": size}
            write_json(folder / split / SOURCE, described)
        else:
            # Only training crops at random.
            side = images.size + (images.margin if split == "train" else 0)
            shards += _plan(files, part, side, workspace.scratch / split)
    _make([shard for shard in shards if not shard.path.exists()], files, images)
    for shard in shards:
        # Should this run be killed before the output is published, the next finds it.
        link_file(shard.path, folder / shard.path.relative_to(workspace.scratch))
    write_json(folder / LABELS, labels)
    write_json(folder / IMAGES, images.model_dump(include={"size", "channels", "resize"}))
    shape = [images.size, images.size, images.channels]
    return {"rows": rows, "classes": labels, "shape": shape, "storage": images.storage}


def _plan(files: ImageFiles, images: pa.Table, side: int, folder: Path) -> list[Shard]:
    """The shards of a split, in order of its rows."""
    folder.mkdir(parents=True, exist_ok=True)
    places, sizes = places_of(images), images["bytes"].to_pylist()
    return [
        Shard(folder / shard_name(number), places[unit], seconds_for(sizes[unit]), side)
        for number, unit in enumerate(cut(files, places, sizes))
    ]


def _make(shards: Sequence[Shard], files: ImageFiles, images: "Images") -> None:
    """Makes shards; what a killed run has finished is not among them."""
    seconds = sum(shard.seconds for shard in shards)
    with console.counted("preprocess", sum(len(shard.places) for shard in shards)) as show:
        made = each(lambda _: partial(_write, files, images), shards, seconds=seconds)
        for shard, _ in zip(shards, made, strict=True):
            show(len(shard.places))


def _write(files: ImageFiles, images: "Images", shard: Shard) -> None:
    """Prepares the images of a shard, one at a time. Its name marks it as finished."""
    shape = (len(shard.places), shard.side, shard.side, images.channels)
    with atomic.replacing(shard.path) as aside:
        pixels = np.lib.format.open_memmap(aside, "w+", np.uint8, shape)
        for row, data in enumerate(files.read(shard.places)):
            pixels[row] = to_array(data, shard.side, images.channels, images.resize)
