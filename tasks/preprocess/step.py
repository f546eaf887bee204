"""Decodes and resizes the accepted images and writes them as shards on disk.

A plan of Ray Data decodes the images of each unit of the data and writes the finished shards: no
pixels go through its blocks, and this process holds numbers only. The shards are made in the
scratch folder, so a run that was killed continues with the missing ones. `tasks/data/shards.py`
describes the layout.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

from models.image import to_array
from retrain import atomic
from retrain.atomic import write_json
from retrain.runs import console
from retrain.step import Chosen, step
from tasks.compute.ray_data import map_units
from tasks.data import image_table
from tasks.data.image_table import SPLITS
from tasks.data.listing import link_file
from tasks.data.raw_dataset import READERS, RawDataset, Unit, open_raw_dataset, unit_of
from tasks.data.shards import IMAGES, LABELS, ROWS, SOURCE, shard_name

if TYPE_CHECKING:
    from retrain.step import Facts, Workspace
    from retrain.store import Artifact
    from retrain.workload import Data, Images, Workload

WRITE_BYTES = 2**20  # a system call per image would take as long as decoding it


@dataclass(frozen=True)
class ShardTask:
    """The work on one unit: prepare its images and write its shards.

    Attributes:
        unit: How many images it reads, and their size.
        row_group: The row group of the accepted images, which lists those it prepares.
        rows: How many images each of its shards gets, by split.
        shards: The shard to write for each split.
    """

    unit: Unit
    row_group: int
    rows: Mapping[str, int]
    shards: Mapping[str, Path]


@step(
    inputs=("pull", "validate"),
    reads=("data.image_column", "data.label_column", "images"),
    libraries=("numpy", "pillow", "pyarrow"),
    imports=("numpy", "pyarrow.parquet"),
)
def preprocess(
    data: "Data",
    images: "Images",
    pulled: "Artifact",
    validated: "Artifact",
    workspace: "Workspace",
) -> "Facts":
    """Decodes and resizes the accepted images, and numbers their classes.

    The classes are those of the training split, in natural order: "2" before "10".

    Returns:
        `rows` of each split, the `classes` by index, the `shape` (H, W, C) of an image, and the
        `storage` of the training split: `pixels` or `source`.
    """
    source = open_raw_dataset(data, pulled)
    groups = image_table.row_groups(validated.folder)
    rows = {split: sum(group.rows.get(split, 0) for group in groups) for split in SPLITS}
    labels = image_table.class_names(validated.folder)
    # Evaluation always uses the pixels that serving does.
    stored = [split for split in SPLITS if (split, images.storage) != ("train", "source")]
    tasks = _plan(groups, workspace.scratch, stored)
    for split in SPLITS:
        (workspace.scratch / split).mkdir(parents=True, exist_ok=True)
        (workspace.folder / split).mkdir()
    if missing := _unfinished(tasks):
        with console.counted("preprocess", sum(task.unit.rows for task in missing)) as show:
            map_units(
                partial(_write_shards, source, images, validated.folder),
                missing,
                seconds=sum(task.unit.seconds for task in missing),
                done=lambda task: show(task.unit.rows),
            )
    for task in tasks:
        for split, shard in task.shards.items():
            # Should this run be killed before the output is published, the next finds it.
            link_file(shard, workspace.folder / split / shard.name)
    _write_rows(validated.folder, rows, labels, workspace.folder)
    if images.storage == "source":
        _describe_source(data, pulled, validated.folder, workspace.folder)
    write_json(workspace.folder / LABELS, labels)
    write_json(workspace.folder / IMAGES, images.model_dump(include={"size", "channels", "resize"}))
    return {
        "rows": rows,
        "classes": labels,
        "shape": [images.size, images.size, images.channels],
        "storage": images.storage,
    }


def _describe_source(data: "Data", pulled: "Artifact", validated: Path, folder: Path) -> None:
    """Says where the training images are read that are not stored as pixels."""
    described = data.model_dump(include={"image_column", "label_column"})
    described["format"] = pulled.facts["format"]
    sizes = image_table.read_split(validated, "train", ["bytes"])
    described["bytes"] = sum(sum(table["bytes"].to_pylist()) for table in sizes)
    write_json(folder / "train" / SOURCE, described)


def _side(images: "Images", split: str) -> int:
    """Height and width of the stored images of a split: only training crops at random."""
    return images.size + (images.margin if split == "train" else 0)


def _plan(
    groups: Sequence[image_table.RowGroup], folder: Path, stored: list[str]
) -> list[ShardTask]:
    """Plans the shards of each unit's images; the shards are in order of the units.

    Args:
        groups: The row groups of the accepted images.
        folder: The folder in which the shards are made.
        stored: The splits that get shards.
    """
    count = dict.fromkeys(stored, 0)
    tasks = []
    for group in groups:
        shards = {}
        for split in set(stored) & group.rows.keys():
            shards[split] = folder / split / shard_name(count[split])
            count[split] += 1
        unit = Unit(sum(group.rows.values()), group.bytes)
        tasks.append(ShardTask(unit, group.number, group.rows, shards))
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


def _write_shards(
    source: RawDataset,
    images: "Images",
    validated: Path,
    task: ShardTask,
) -> None:
    """Prepares the images of a task, a few at a time, and writes its shards."""
    table = image_table.read(validated, task.row_group, ["file", "row", "split"])
    images_of = [
        row for row in zip(*table.to_pydict().values(), strict=True) if row[2] in task.shards
    ]
    raws = source.read(unit_of((file, row) for file, row, _ in images_of))
    with ExitStack() as stack:
        # The shards get their names at the end of the block, because these mark them as finished.
        files = {}
        for split, path in task.shards.items():
            aside = stack.enter_context(atomic.replacing(path))
            files[split] = stack.enter_context(aside.open("wb", buffering=WRITE_BYTES))
            side = _side(images, split)
            _write_header(files[split], "|u1", (task.rows[split], side, side, images.channels))
        for (_, _, split), raw in zip(images_of, raws, strict=True):
            side = _side(images, split)
            pixels = to_array(raw.data, side, images.channels, images.resize)
            files[split].write(pixels.data)


def _write_header(file: IO[bytes], kind: str, shape: tuple[int, ...]) -> None:
    """Writes the header of a `.npy` file; the values follow."""
    import numpy as np

    header = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)


def _write_rows(
    validated: Path, rows: Mapping[str, int], labels: Sequence[str], folder: Path
) -> None:
    """Writes the labels of each split and where its rows come from, a unit at a time."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    columns = ["path", "label", "sha256", "pixels", "file", "row"]
    schema = pa.schema([image_table.schema().field(name) for name in columns])
    with ExitStack() as stack:
        files, writers = {}, {}
        for split in SPLITS:
            files[split] = stack.enter_context((folder / split / "labels.npy").open("wb"))
            writers[split] = stack.enter_context(pq.ParquetWriter(folder / split / ROWS, schema))
            _write_header(files[split], "<i8", (rows[split],))
        for table in image_table.read_groups(validated, ["split", *columns]):
            for split in table["split"].unique().to_pylist():
                part = table.filter(pc.equal(table["split"], split)).select(columns)
                writers[split].write_table(part)
                indices = pc.index_in(part["label"], pa.array(labels, pa.string()))
                files[split].write(indices.to_numpy().astype(np.int64).tobytes())


@preprocess.chooses
def _dependencies(workload: "Workload", pulled: "Artifact", validated: "Artifact") -> Chosen:
    return Chosen(modules=(READERS[pulled.facts["format"]],))
