"""Writes listed images for people who label: tasks of Label Studio, and a CSV file.

A task of Label Studio (its JSON format for import) has the image, what the data says of it, and the
model's answer as a prediction. The images are copied beside the tasks, so that they can be shown
whatever the data's format is, and are named by their content. Label Studio reads them from its
local files storage: `/data/local-files/?d=` and the path from the project's folder on, which is
its `LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT`. Its control is named as the column of the CSV file, so
that the exports of Label Studio have this column too, beside the label that the data has.
"""

import csv
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

from retrain import atomic
from tasks.data import listed

CORRECTED = "corrected"  # the column of the CSV file, and the control, that a person fills
TO_NAME = "image"  # in the labelling interface
COLUMNS = [name for name in listed.schema().names if name != "image"]
SIGNATURES = {b"\x89PNG": ".png", b"GIF8": ".gif", b"BM": ".bmp", b"RIFF": ".webp"}


def look(name: str, target: Path, root: Path) -> dict[str, str]:
    """Where a person finds the page, the CSV file and the tasks, relative to the root.

    Args:
        name: How their names begin.
        target: The folder of the files.
        root: The project's folder.
    """
    suffixes = {"report": "html", "csv": "csv", "tasks": "json"}
    below = target.relative_to(root).as_posix()
    return {what: f"{below}/{name}.{suffix}" for what, suffix in suffixes.items()}


def write(
    folder: Path, target: Path, name: str, root: Path, model: str, classes: Sequence[str]
) -> None:
    """Writes the files, in place of those of an earlier run.

    They are the CSV file, the tasks, and the labelling interface for them, whose choices are the
    classes.

    Args:
        folder: The folder with the listed images.
        target: The folder of the files.
        name: How their names begin.
        root: The folder that Label Studio serves files from; the target is in it.
        model: Which version has answered, for people.
        classes: The labels to choose from.
    """
    images = target / f"{name}-images"
    shutil.rmtree(images, ignore_errors=True)
    images.mkdir(parents=True)
    rows, tasks = [], []
    for row in listed.read(folder):
        encoded = row.pop("image")
        image = images / f"{row['sha256']}{_suffix(encoded)}"
        image.write_bytes(encoded)
        rows.append(row)
        tasks.append(_task(row, image.relative_to(root), model))
    with (
        atomic.replacing(target / f"{name}.csv") as aside,
        aside.open("w", encoding="utf-8", newline="") as file,
    ):
        writer = csv.DictWriter(file, [*COLUMNS, CORRECTED])
        writer.writeheader()
        writer.writerows(rows)
    atomic.write_json(target / f"{name}.json", tasks)
    atomic.write_text(target / f"{name}-label-studio.xml", _interface(classes))


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
    """The suffix of an image by its first bytes, from which a browser is told its type."""
    return next((s for start, s in SIGNATURES.items() if encoded.startswith(start)), ".jpg")
