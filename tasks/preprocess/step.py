"""Decodes and resizes the accepted images and writes them as shards on disk.

A plan of Ray Data decodes the images of each unit of the data and writes the finished shards: no
pixels go through its blocks, and this process holds numbers only. The shards are made in the
scratch folder, so a run that was killed continues with the missing ones. `tasks/data/shards.py`
describes the layout.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

from models.image import to_arrays, to_jpeg
from retrain import atomic
from retrain.atomic import write_json
from retrain.runs import console
from retrain.step import Chosen, Step
from tasks.compute.ray_data import map_units
from tasks.data import image_table
from tasks.data.raw_dataset import READERS, RawDataset, Unit, open_raw_dataset
from tasks.data.shards import ENDS, IMAGES, JPEGS, LABELS, PIXELS, ROWS, SOURCE, publish, shard_name
from tasks.data.splits import SPLITS

if TYPE_CHECKING:
    from retrain.step import Facts, Workspace
    from retrain.store import Artifact
    from retrain.workload import Data, Images, Workload

# `images.storage: auto` keeps pixels up to this many bytes of the training split. Reading them
# needs no decoding, but they are several times as large as JPEGs.
MAX_PIXEL_BYTES = 100e9

WRITE_BYTES = 2**20  # a system call per image would take as long as decoding it

# The most images that are prepared together; small ones then fit into the processor's cache.
GROUP_ROWS = 16
GROUP_BYTES = 2**20


@dataclass(frozen=True)
class ShardTask:
    """The work on one unit: prepare its images and write its shards.

    Attributes:
        unit: The images it reads.
        row_group: The row group of the accepted images, which lists those it prepares.
        rows: How many images each of its shards gets, by split.
        shards: The shard to write for each split; the suffix decides the format.
    """

    unit: Unit
    row_group: int
    rows: Mapping[str, int]
    shards: Mapping[str, Path]


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
        `storage` of the training split: `pixels`, `jpeg` or `source`.
    """
    source = open_raw_dataset(data, pulled)
    groups = image_table.row_groups(validated.folder)
    rows = {split: sum(group.rows.get(split, 0) for group in groups) for split in SPLITS}
    labels = image_table.class_names(validated.folder)

    storage = _storage(images, rows["train"])
    suffixes = dict.fromkeys(SPLITS, PIXELS)  # evaluation uses the pixels that serving does
    if storage == "jpeg":
        suffixes["train"] = JPEGS
    elif storage == "source":
        del suffixes["train"]

    tasks = _plan(source.units(), groups, workspace.scratch, suffixes)
    missing = [task for task in map(_unfinished, tasks) if task.shards]
    for split in SPLITS:
        (workspace.scratch / split).mkdir(parents=True, exist_ok=True)
        (workspace.folder / split).mkdir()
    if missing:
        write = partial(_write_shards, source, images, validated.folder)
        with console.unit_progress("preprocess", len(missing)) as show:
            map_units(
                write,
                missing,
                seconds=sum(task.unit.seconds for task in missing),
                done=lambda task: show(task.unit.rows),
            )
    for task in tasks:
        for split, shard in task.shards.items():
            for path in (shard, *_ends_of(shard)):
                # Should this run be killed before the output is published, the next finds it.
                publish(path, workspace.folder / split / path.name)
    for split in SPLITS:
        _write_rows(validated.folder, groups, split, labels, workspace.folder / split)
    if storage == "source":
        described = {
            "format": pulled.facts["format"],
            "image_column": data.image_column,
            "label_column": data.label_column,
            "bytes": _encoded_bytes(validated.folder, groups, "train"),
        }
        write_json(workspace.folder / "train" / SOURCE, described)
    write_json(workspace.folder / LABELS, labels)
    form = images.model_dump(include={"size", "channels", "resize"})
    write_json(workspace.folder / IMAGES, form)
    return {
        "rows": rows,
        "classes": labels,
        "shape": [images.size, images.size, images.channels],
        "storage": storage,
    }


def _storage(images: "Images", train_rows: int) -> str:
    """How the training split is stored: `pixels`, `jpeg` or `source`."""
    if images.storage != "auto":
        return images.storage
    size = train_rows * _side(images, "train") ** 2 * images.channels
    return "jpeg" if size > MAX_PIXEL_BYTES else "pixels"


def _side(images: "Images", split: str) -> int:
    """Height and width of the stored images of a split: only training crops at random."""
    return images.size + (images.margin if split == "train" else 0)


def _plan(
    units: Sequence[Unit],
    groups: Sequence[image_table.RowGroup],
    folder: Path,
    suffixes: Mapping[str, str],
) -> list[ShardTask]:
    """Plans the shards of each unit's images; the shards are in order of the units.

    Args:
        units: Of the data.
        groups: Of the accepted images.
        folder: Where the shards are made.
        suffixes: By split; a split without one gets no shards.
    """
    count = dict.fromkeys(SPLITS, 0)
    tasks = []
    for group in groups:
        shards = {}
        for split in (each for each in group.rows if each in suffixes):
            shard = folder / split / shard_name(count[split])
            shards[split] = shard.with_suffix(suffixes[split])
            count[split] += 1
        tasks.append(ShardTask(units[group.unit], group.number, group.rows, shards))
    return tasks


def _unfinished(task: ShardTask) -> ShardTask:
    """The part of a task that is left: its missing shards."""
    missing = {split: path for split, path in task.shards.items() if not path.exists()}
    return ShardTask(task.unit, task.row_group, task.rows, missing)


def _write_shards(source: RawDataset, images: "Images", validated: Path, task: ShardTask) -> None:
    """Prepares the images of a task, a few at a time, and writes its shards."""
    import numpy as np

    table = image_table.read(validated, task.row_group, ["file", "row", "split"])
    columns = (table[name].to_pylist() for name in ("file", "row", "split"))
    splits = {(file, row): split for file, row, split in zip(*columns, strict=True)}
    ends: dict[str, list[int]] = {split: [] for split in task.shards}
    with ExitStack() as stack:
        files = {}
        for split, path in task.shards.items():
            aside = stack.enter_context(atomic.replacing(path))
            files[split] = stack.enter_context(aside.open("wb", buffering=WRITE_BYTES))
        for split, path in task.shards.items():
            if path.suffix == PIXELS:
                side = _side(images, split)
                shape = (task.rows[split], side, side, images.channels)
                _write_header(files[split], "|u1", shape)
        read = ((splits.get((raw.file, raw.row), ""), raw.data) for raw in source.read(task.unit))
        for group in _in_groups(each for each in read if each[0] in files):
            for split in {split: None for split, _ in group}:
                encoded = [data for one, data in group if one == split]
                side, file = _side(images, split), files[split]
                for array in to_arrays(encoded, side, images.channels, images.resize):
                    file.write(to_jpeg(array) if task.shards[split].suffix == JPEGS else array.data)
                    ends[split].append(file.tell())
        # The shards get their names at the end of the block, because these mark them as finished.
        for split, path in task.shards.items():
            for ends_path in _ends_of(path):
                with atomic.replacing(ends_path) as aside, aside.open("wb") as file:
                    np.save(file, np.array(ends[split], np.int64))


def _in_groups(images: Iterable[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    """Groups encoded images, so that only one group is in memory."""
    group: list[tuple[str, bytes]] = []
    size = 0
    for image in images:
        group.append(image)
        size += len(image[1])
        if len(group) == GROUP_ROWS or size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _ends_of(shard: Path) -> list[Path]:
    """The file with the end of each JPEG in a shard; none for a shard of pixels."""
    return [shard.with_suffix(ENDS)] if shard.suffix == JPEGS else []


def _write_header(file: IO[bytes], kind: str, shape: tuple[int, ...]) -> None:
    """Writes the header of a `.npy` file; the values follow."""
    import numpy as np

    header = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)


def _write_rows(
    validated: Path,
    groups: Sequence[image_table.RowGroup],
    split: str,
    labels: Sequence[str],
    folder: Path,
) -> None:
    """Writes the labels of a split and where its rows come from, a unit at a time."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    chosen = [group for group in groups if split in group.rows]
    columns = ["path", "label", "sha256", "pixels", "file", "row"]
    schema = pa.schema([image_table.schema().field(name) for name in columns])
    with (
        (folder / "labels.npy").open("wb") as file,
        pq.ParquetWriter(folder / ROWS, schema) as writer,
    ):
        _write_header(file, "<i8", (sum(group.rows[split] for group in chosen),))
        for group in chosen:
            table = image_table.read(validated, group.number, [*columns, "split"])
            table = table.filter(pc.equal(table["split"], split)).select(columns)
            writer.write_table(table)
            indices = pc.index_in(table["label"], pa.array(labels, pa.string()))
            file.write(indices.to_numpy().astype(np.int64).tobytes())


def _encoded_bytes(validated: Path, groups: Sequence[image_table.RowGroup], split: str) -> int:
    """The size of all encoded images of a split."""
    import pyarrow.compute as pc

    total = 0
    for group in groups:
        table = image_table.read(validated, group.number, ["split", "bytes"])
        total += pc.sum(table.filter(pc.equal(table["split"], split))["bytes"]).as_py() or 0
    return total


def _chosen(workload: "Workload", pulled: "Artifact", validated: "Artifact") -> Chosen:
    return Chosen(modules=(READERS[pulled.facts["format"]],))


STEP = Step(
    "preprocess",
    preprocess,
    reads=("data.image_column", "data.label_column", "images"),
    inputs=("pull", "validate"),
    libraries=("numpy", "pillow", "pyarrow", "simplejpeg"),
    chosen=_chosen,
)
