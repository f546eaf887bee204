"""The review list: images that a person should look at, with what is proposed for each.

A step writes it as one file with the encoded images: `write`. `write_for_people` makes of it what
people fill in: a CSV file, and tasks of Label Studio (its JSON format for import), each with the
image, what the data says of it, and the model's answer as a prediction. The images are copied
beside the tasks, so that they can be shown whatever the data's format is, and are named by their
content. Label Studio reads them from its local files storage: `/data/local-files/?d=` and the path
from the project's folder on, which is its `LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT`. Its control is
named as the column of the CSV file, so that its exports have this column too, beside the label that
the data has.
"""

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

import pyarrow as pa
import pyarrow.parquet as pq

from retrain import atomic
from tasks.data.reading import ImageFiles, Place

FILE = "review_list.parquet"
WRONG_LABEL, CONTRADICTION, OUTLIER = "wrong label", "contradictory near-duplicate", "outlier"
TO_LABEL = "to label"
BATCH = 256  # images that are in memory at a time
CORRECTED = "corrected"  # the column of the CSV file, and the control, that a person fills
TO_NAME = "image"  # in the labelling interface
IMAGES = "-images"  # how the name of the folder with a list's images ends
# The suffix of an image by its first bytes, from which a browser is told its type.
SIGNATURES = {
    rb"\xff\xd8\xff": ".jpg",
    rb"\x89PNG": ".png",
    rb"GIF8": ".gif",
    rb"BM": ".bmp",
    rb"RIFF.{4}WEBP": ".webp",
    rb"II[*+]\0|MM\0[*+]": ".tif",
    rb".{4}ftyp.{0,40}avi[fs]": ".avif",
    rb".{4}ftyp": ".heic",
    rb".{4}jP  |\xff\x4f\xff\x51": ".jp2",
    rb"P[25]\s": ".pgm",
    rb"P[36]\s": ".ppm",
}


def schema() -> pa.Schema:
    """The columns of the file, which has a row for each image, the first one first.

    `why` it is listed; `path`, `split` and `label` (null where it has none); `proposed`, a class,
    and `confidence`, its probability; `distance` from the other images, in units of what is usual;
    `look_alike`, the path of an image that looks the same and has another label; `file`, `row` and
    `sha256`, by which it is found again; and `image`, the encoded image.
    """
    texts = ("why", "path", "split", "label", "proposed")
    numbers = ("confidence", "distance")
    return pa.schema(
        {
            **dict.fromkeys(texts, pa.string()),
            **dict.fromkeys(numbers, pa.float32()),
            "look_alike": pa.string(),
            "file": pa.string(),
            "row": pa.int64(),
            "sha256": pa.string(),
            "image": pa.binary(),
        }
    )


def write(folder: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes the file into a folder; a few rows are in memory at a time."""
    left = iter(rows)
    with pq.ParquetWriter(folder / FILE, schema()) as writer:
        while some := list(islice(left, BATCH)):
            writer.write_table(pa.Table.from_pylist(some, schema()))


def read(folder: Path) -> Iterator[dict[str, Any]]:
    """The rows of the file, a few of them in memory at a time."""
    with pq.ParquetFile(folder / FILE) as file:
        for batch in file.iter_batches(BATCH):
            yield from batch.to_pylist()


def with_images(
    files: ImageFiles, places: Sequence[Place], rows: Sequence[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Rows with the encoded images at their places; a few of these are in memory at a time."""
    for first in range(0, len(rows), BATCH):
        some = slice(first, first + BATCH)
        encoded = read_encoded(files, places[some])
        yield from (row | {"image": image} for row, image in zip(rows[some], encoded, strict=True))


def read_encoded(files: ImageFiles, places: Iterable[Place]) -> list[bytes]:
    """The encoded images at some places, in that order."""
    wanted = list(places)
    ordered = sorted(set(wanted))
    images = dict(zip(ordered, files.read(ordered), strict=True))
    return [images[place] for place in wanted]


def look(name: str, target: Path, root: Path) -> dict[str, str]:
    """Where a person finds the CSV file and the tasks, relative to the root.

    Args:
        name: The name of the list.
        target: The folder of the files.
        root: The project's folder.
    """
    below = target.relative_to(root).as_posix()
    return {"csv": f"{below}/{name}.csv", "tasks": f"{below}/{name}.json"}


def write_for_people(
    folder: Path, target: Path, name: str, root: Path, model: str, classes: Sequence[str]
) -> None:
    """Writes the CSV file, the tasks, and the labelling interface for them.

    A file that is there already stays as it is: a person may have filled it in. So the name has to
    be that of this list alone.

    Args:
        folder: The folder with the review list.
        target: The folder of the files.
        name: The name of the list, with which their names begin.
        root: The folder that Label Studio serves files from; the target is in it.
        model: Which version has answered, for people.
        classes: The labels to choose from.
    """
    target.mkdir(parents=True, exist_ok=True)
    images = target / f"{name}{IMAGES}"
    rows, tasks = [], []
    with atomic.replacing(images) as aside:
        aside.mkdir()
        for row in read(folder):
            encoded = row.pop("image")
            image = f"{row['sha256']}{_suffix(encoded)}"
            (aside / image).write_bytes(encoded)
            rows.append(row)
            tasks.append(_task(row, images.relative_to(root) / image, model))
    table = io.StringIO(newline="")
    columns = [column for column in schema().names if column != "image"]
    writer = csv.DictWriter(table, [*columns, CORRECTED])
    writer.writeheader()
    writer.writerows(rows)
    texts = {
        ".csv": table.getvalue(),
        ".json": json.dumps(tasks, indent=1),
        "-label-studio.xml": _interface(classes),
    }
    for suffix, text in texts.items():
        if not (file := target / f"{name}{suffix}").exists():
            atomic.write_text(file, text)


def _task(row: dict[str, Any], image: Path, model: str) -> dict[str, Any]:
    """A task of Label Studio for a listed image."""
    place = f"/data/local-files/?d={quote(image.as_posix())}"
    answer = {
        "from_name": CORRECTED,
        "to_name": TO_NAME,
        "type": "choices",
        "value": {"choices": [row["proposed"]]},
    }
    prediction = {"model_version": model, "score": row["confidence"], "result": [answer]}
    return {"data": row | {TO_NAME: place}, "predictions": [prediction]}


def _interface(classes: Sequence[str]) -> str:
    """The labelling interface, as Label Studio's `View` describes it."""
    choices = "".join(f"    <Choice value={quoteattr(name)}/>\n" for name in classes)
    return (
        f'<View>\n  <Image name="{TO_NAME}" value="${TO_NAME}"/>\n'
        f'  <Choices name="{CORRECTED}" toName="{TO_NAME}" choice="single-radio" '
        f'showInline="true">\n{choices}  </Choices>\n  <Text name="why" value="$why"/>\n</View>\n'
    )


def _suffix(encoded: bytes) -> str:
    found = (s for start, s in SIGNATURES.items() if re.match(start, encoded, re.DOTALL))
    return next(found, "")
