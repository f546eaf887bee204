"""Turns the accepted images into what the model takes: uint8 arrays on disk.

Ray Data spreads the units over tasks. A task decodes its images and writes the finished shards
itself, so that no pixel travels through Ray's blocks. `tasks/prepared.py` has the layout.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from models.image import to_array
from retrain.artifact import write_json
from retrain.step import Step
from tasks.parallel import run_tasks
from tasks.prepared import IMAGES, LABELS, ROWS, shard_name
from tasks.source import SPLITS, Piece, Source, open_source

if TYPE_CHECKING:
    import pandas as pd

    from retrain.artifact import Artifact
    from retrain.step import Facts, Workspace
    from retrain.workload import Data, Images


@dataclass(frozen=True)
class Job:
    """What one task does.

    Attributes:
        unit: What it reads.
        splits: The split of each image that it prepares, by file and row.
        shards: The file to write for each split.
    """

    unit: tuple[Piece, ...]
    splits: Mapping[tuple[str, int], str]
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
        `rows` of each split, the `classes` by index, and the `shape` (H, W, C) of an image.
    """
    import numpy as np
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    source = open_source(data, pulled)
    accepted = pd.read_parquet(validated.folder / "images.parquet")
    in_split = {split: accepted[accepted["split"] == split] for split in SPLITS}
    labels = sorted(in_split["train"]["label"].unique(), key=natural_order)

    for split, rows in in_split.items():
        folder = workspace.folder / split
        folder.mkdir()
        indices = rows["label"].map({label: index for index, label in enumerate(labels)})
        np.save(folder / "labels.npy", indices.to_numpy(np.int64))
        table = pa.Table.from_pandas(
            rows[["path", "label", "sha256", "file", "row"]], preserve_index=False
        )
        pq.write_table(table.replace_schema_metadata(None), folder / ROWS)
    run_tasks(
        partial(_write_shards, source, images), _plan(source.units(), accepted, workspace.folder)
    )
    write_json(workspace.folder / LABELS, labels)
    write_json(workspace.folder / IMAGES, images.model_dump())
    return {
        "rows": {split: len(rows) for split, rows in in_split.items()},
        "classes": labels,
        "shape": [images.size, images.size, images.channels],
    }


def natural_order(name: str) -> list[tuple[int, int, str]]:
    """A key to sort names by, with the numbers in them as numbers: "2" before "10"."""
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    return [(0, int(part), part) if part[0] in "0123456789" else (1, 0, part) for part in parts]


def _plan(units: Sequence[tuple[Piece, ...]], accepted: "pd.DataFrame", folder: Path) -> list[Job]:
    """Says which task writes which images to which shard; the shards are in order of the units."""
    places = zip(accepted["file"], accepted["row"], strict=True)
    split_of = dict(zip(places, accepted["split"], strict=True))
    shards = dict.fromkeys(SPLITS, 0)
    jobs = []
    for unit in units:
        held = ((p.file, row) for p in unit for row in range(p.first_row, p.first_row + p.rows))
        splits = {place: split_of[place] for place in held if place in split_of}
        files = {}
        for split in sorted(set(splits.values())):
            files[split] = folder / split / shard_name(shards[split])
            shards[split] += 1
        if splits:
            jobs.append(Job(unit, splits, files))
    return jobs


def _write_shards(source: Source, images: "Images", job: Job) -> None:
    """Prepares the images of a job, one at a time, and writes its shards."""
    import numpy as np

    counts = Counter(job.splits.values())
    partial_files = {split: path.with_suffix(".partial") for split, path in job.shards.items()}
    with ExitStack() as stack:
        files = {split: stack.enter_context(p.open("wb")) for split, p in partial_files.items()}
        for split, file in files.items():
            shape = (counts[split], images.size, images.size, images.channels)
            header = {"descr": "|u1", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
        for raw in source.read(job.unit):
            place = (raw.file, raw.row)
            if place in job.splits:
                array = to_array(raw.data, images.size, images.channels, images.resize)
                files[job.splits[place]].write(array.tobytes())
    for split, path in job.shards.items():
        partial_files[split].replace(path)


STEP = Step(
    "preprocess",
    preprocess,
    reads=("data.image_column", "data.label_column", "images"),
    inputs=("pull", "validate"),
    libraries=("numpy", "pillow", "pyarrow"),
)
