"""Decodes and resizes the accepted images and writes them as shards on disk.

Threads, or workers of Ray Data where the work is worth it, decode the images of each unit of the
data and write the finished shards: no pixels go through Ray. The shards are made in the scratch
folder, so a run that was killed continues with the missing ones. `tasks/data/shards.py` describes
the layout.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from models.image import to_array
from retrain import file_io
from retrain.step import Facts, Workspace, step
from retrain.store import Artifact
from retrain.workload import Images
from tasks.compute.ray_data import each_counted
from tasks.data import image_table
from tasks.data.listing import SPLITS, link_file
from tasks.data.raw_images import ImageFiles, Place, cut, open_images, places_of, seconds_for
from tasks.data.shards import IMAGES, LABELS, ROWS, SOURCE, digest_of_learnt, shard_name

COLUMNS = ["path", "label", "sha256", "pixels", "file", "row"]  # of the list of a split's images
ROW_GROUP = 4096  # rows, of that list
WRITE_BYTES = 2**20  # a system call for each image would take as long as to decode a small one


# Images that are prepared together: where they are, the split of each, and the file for each split.
Unit = tuple[Sequence[Place], Sequence[str], Mapping[str, Path]]


@step(
    inputs=("pull", "validate"),
    reads=("images",),
    libraries=("numpy", "pillow", "pyarrow"),
)
def preprocess(
    images: Images, pulled: Artifact, validated: Artifact, workspace: Workspace
) -> Facts:
    """Decodes and resizes the accepted images, and numbers their classes.

    The classes are those of the training split, in natural order: "2" before "10".

    Returns:
        `rows` of each split, the `classes` by index, the `shape` (H, W, C) of an image, the
        `storage` of the training split: `pixels` or `source`, and `learnt`, the digest of what a
        training reads.
    """
    files, folder = open_images(pulled), workspace.folder
    accepted = image_table.read_split(validated.folder, columns=[*COLUMNS, "split", "bytes"])
    labels = image_table.class_names(validated.folder)
    # Evaluation always uses the pixels that serving does.
    stored = [split for split in SPLITS if (split, images.storage) != ("train", "source")]
    kept = accepted.filter(pc.is_in(accepted["split"], pa.array(stored)))
    shards = _make(files, images, kept, workspace.scratch)
    rows = {}
    for split in SPLITS:
        for unit in shards:
            if split in unit:
                # Should this run be killed before the output is published, the next finds it.
                link_file(unit[split], folder / split / unit[split].name)
        part = accepted.filter(pc.equal(accepted["split"], split))
        rows[split] = len(part)
        (folder / split).mkdir(exist_ok=True)
        pq.write_table(part.select(COLUMNS), folder / split / ROWS, row_group_size=ROW_GROUP)
        numbers = pc.index_in(part["label"], pa.array(labels, pa.string())).to_numpy()
        np.save(folder / split / "labels.npy", numbers.astype(np.int64))
        if split not in stored:  # where its images are read
            size = pc.sum(part["bytes"]).as_py()
            described = {"image_column": files.image_column, "bytes": size}
            file_io.write_json(folder / split / SOURCE, described)
    file_io.write_json(folder / LABELS, labels)
    file_io.write_json(folder / IMAGES, images.model_dump(include={"size", "channels", "resize"}))
    shape = [images.size, images.size, images.channels]
    return {
        "rows": rows,
        "classes": labels,
        "shape": shape,
        "storage": images.storage,
        "learnt": digest_of_learnt(folder),
    }


def _make(
    files: ImageFiles, images: Images, kept: pa.Table, folder: Path
) -> list[Mapping[str, Path]]:
    """Makes the shards that a killed run has not finished.

    Args:
        files: Reads the images.
        images: The form of every image.
        kept: The images, in order.
        folder: The folder of the shards.

    Returns:
        The shards of each unit, in order of the images: a file for each split.
    """
    places, sizes, splits = places_of(kept), kept["bytes"].to_pylist(), kept["split"].to_pylist()
    shards, missing, seconds = list[Mapping[str, Path]](), list[Unit](), 0.0
    for number, unit in enumerate(cut(files, places, sizes)):
        shards.append({split: folder / split / shard_name(number) for split in {*splits[unit]}})
        if not all(path.exists() for path in shards[-1].values()):
            missing.append((places[unit], splits[unit], shards[-1]))
            seconds += seconds_for(sizes[unit])
    for split in SPLITS:
        (folder / split).mkdir(parents=True, exist_ok=True)
    counts, write = [len(places) for places, *_ in missing], partial(_write, files, images)
    each_counted("preprocess", lambda _: write, missing, counts, seconds=seconds)
    return shards


def _write(files: ImageFiles, images: Images, unit: Unit) -> None:
    """Prepares images, one at a time, and writes the missing shards of their unit."""
    places, splits, shards = unit
    with ExitStack() as stack:
        # The shards get their names at the end of the block, because these mark them as finished.
        opened, sides = {}, {}
        for split, path in shards.items():
            if not path.exists():
                aside = stack.enter_context(file_io.replacing(path))
                # Only training crops at random.
                sides[split] = images.size + (images.margin if split == "train" else 0)
                shape = (splits.count(split), sides[split], sides[split], images.channels)
                opened[split] = stack.enter_context(aside.open("wb", buffering=WRITE_BYTES))
                header = {"descr": "|u1", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(opened[split], header)
        wanted = [n for n, split in enumerate(splits) if split in opened]
        encoded = files.read(places[number] for number in wanted)
        for number, data in zip(wanted, encoded, strict=True):
            split = splits[number]
            pixels = to_array(data, sides[split], images.channels, images.resize)
            opened[split].write(pixels.data)
