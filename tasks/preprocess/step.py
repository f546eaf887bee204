"""Decodes and resizes the accepted images and writes them as shards on disk.

A plan of Ray Data decodes the images of each unit of the data and writes the finished shards: no
pixels go through its blocks, and this process holds numbers only. The shards are made in the
scratch folder, so a run that was killed continues with the missing ones. A shard with the images of
an earlier one is a link to it; images of others are copied. `tasks/data/shards.py` describes the
layout.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
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
    import numpy as np
    from numpy.typing import NDArray

    from retrain.step import Facts, Workspace
    from retrain.store import Artifact
    from retrain.workload import Data, Images, Workload
    from tasks.preprocess.earlier import EarlierSplit, FetchableShards

WRITE_BYTES = 2**20  # a system call per image would take as long as decoding it
AT_ONCE = 64  # images that are copied


@dataclass(frozen=True)
class ShardTask:
    """The work on one unit: prepare its images and write its shards.

    Attributes:
        unit: How many images it reads, and their size.
        row_group: The row group of the accepted images, which lists those it prepares.
        rows: How many images each of its shards gets, by split.
        shards: The shard to write for each split.
        known: For each split of the earlier output: int64 (rows,), the row in it of each image of
            the unit; -1 for one that is not there.
    """

    unit: Unit
    row_group: int
    rows: Mapping[str, int]
    shards: Mapping[str, Path]
    known: Mapping[str, "NDArray[np.int64]"] = field(default_factory=dict)


@step(
    inputs=("pull", "validate"),
    reads=("data.image_column", "data.label_column", "images"),
    libraries=("numpy", "pillow", "pyarrow"),
    by_difference=True,
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
    earlier = _open_earlier(workspace.earlier, stored)
    if earlier:
        tasks = _take_known(tasks, validated.folder, earlier)
    if missing := _unfinished(tasks):
        prepared = {split: there.images for split, there in earlier.items()}
        _make_shards(source, images, validated.folder, prepared, missing)
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


def _open_earlier(folder: Path | None, splits: Sequence[str]) -> dict[str, "EarlierSplit"]:
    """The splits of the earlier output; none without one."""
    from tasks.preprocess.earlier import EarlierSplit

    return {split: EarlierSplit.open(folder / split) for split in splits} if folder else {}


def _take_known(
    tasks: Sequence[ShardTask], validated: Path, earlier: Mapping[str, "EarlierSplit"]
) -> list[ShardTask]:
    """Links the shards that the earlier output has; says of the others which images it has."""
    taken, count = [], 0
    tables = image_table.read_groups(validated, ["split", "sha256"])
    for task, images in zip(tasks, tables, strict=True):
        known = {split: earlier[split].find(images, split) for split in task.shards}
        for split, shard in task.shards.items():
            same = earlier[split].images.file_of(known[split])
            if same and not shard.exists():
                link_file(same, shard)
        taken.append(replace(task, known=known))
        count += sum(int((rows >= 0).sum()) for rows in known.values())
    images_in_all = sum(task.rows[split] for task in tasks for split in task.shards)
    console.say(f"preprocess: {count:,} of {images_in_all:,} images were prepared before")
    return taken


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


def _make_shards(
    source: RawDataset,
    images: "Images",
    validated: Path,
    prepared: Mapping[str, "FetchableShards"],
    tasks: Sequence[ShardTask],
) -> None:
    """Makes the shards of tasks, here or on other machines.

    Args:
        source: The data.
        images: The form of the images.
        validated: The output of `validate`.
        prepared: The shards of the earlier output, by split.
        tasks: The work.
    """
    with console.counted("preprocess", sum(task.unit.rows for task in tasks)) as show:
        map_units(
            partial(_write_shards, source, images, validated, prepared),
            tasks,
            seconds=sum(task.unit.seconds for task in tasks),
            done=lambda task: show(task.unit.rows),
        )


def _write_shards(
    source: RawDataset,
    images: "Images",
    validated: Path,
    prepared: Mapping[str, "FetchableShards"],
    task: ShardTask,
) -> None:
    """Prepares the images of a task, a few at a time, and writes its shards."""
    table = image_table.read(validated, task.row_group, ["file", "row", "split"])
    images_of = [
        row for row in zip(*table.to_pydict().values(), strict=True) if row[2] in task.shards
    ]
    known = {split: iter(rows >= 0) for split, rows in task.known.items()}
    is_known = [next(known[split]) if known else False for _, _, split in images_of]
    new = [(file, row) for (file, row, _), old in zip(images_of, is_known, strict=True) if not old]
    raws = source.read(unit_of(new))
    copies = {split: _read_known(task, split, prepared) for split in task.known}
    with ExitStack() as stack:
        # The shards get their names at the end of the block, because these mark them as finished.
        files = {}
        for split, path in task.shards.items():
            aside = stack.enter_context(atomic.replacing(path))
            files[split] = stack.enter_context(aside.open("wb", buffering=WRITE_BYTES))
            side = _side(images, split)
            _write_header(files[split], "|u1", (task.rows[split], side, side, images.channels))
        for (_, _, split), old in zip(images_of, is_known, strict=True):
            if old:
                pixels = next(copies[split])
            else:
                side = _side(images, split)
                pixels = to_array(next(raws).data, side, images.channels, images.resize)
            files[split].write(pixels.data)


def _read_known(
    task: ShardTask, split: str, prepared: Mapping[str, "FetchableShards"]
) -> Iterator["NDArray[np.uint8]"]:
    """The known images of one of a task's shards, of which a few are in memory at a time."""
    rows = task.known[split][task.known[split] >= 0]
    for first in range(0, len(rows), AT_ONCE):
        yield from prepared[split][rows[first : first + AT_ONCE]]


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
