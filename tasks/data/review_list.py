"""The review list: images that a person should look at, with what is proposed for each.

It is a CSV file, and tasks of Label Studio (its JSON format for import), each with the image, what
the data says of it, and the model's answer as a prediction. The images are copied beside the tasks,
so that they can be shown whatever the data's format is, and are named by their content. Label
Studio reads them from its local files storage: `/data/local-files/?d=` and the path from the
project's folder on, which is its `LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT`. Its control is named as
the column of the CSV file, so that its exports have this column too, beside the label that the data
has.
"""

import csv
import json
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote
from xml.sax.saxutils import quoteattr

from models.image import inspect
from retrain import disk
from tasks.data.reading import ImageFiles

WRONG_LABEL, CONTRADICTION, OUTLIER = "wrong label", "contradictory near-duplicate", "outlier"
TO_LABEL = "to label"
# Why an image is listed; its class, if it has one; a class that is proposed, and its probability;
# the distance from the other images, in units of what is usual; the path of an image that looks the
# same and has another label; and by what the image is found again.
COLUMNS = (
    *("why", "path", "split", "label", "proposed", "confidence", "distance", "look_alike"),
    *("file", "row", "sha256"),
)
CORRECTED = "corrected"  # the column of the CSV file, and the control, that a person fills
TO_NAME = "image"  # in the labelling interface
IMAGES = "-images"  # how the name of the folder with a list's images ends
SERVED = "/data/local-files/?d="


def look(name: str, target: Path, root: Path) -> dict[str, str]:
    """Where a person finds the CSV file and the tasks, relative to the root.

    Args:
        name: The name of the list.
        target: The folder of the files.
        root: The project's folder.
    """
    path = (target / name).relative_to(root).as_posix()
    return {"csv": f"{path}.csv", "tasks": f"{path}.json"}


def write(
    rows: Sequence[Mapping[str, Any]],
    files: ImageFiles,
    target: Path,
    name: str,
    root: Path,
    model: str,
    classes: Sequence[str],
) -> None:
    """Writes the CSV file, the tasks, and the labelling interface for them.

    A file that is there already stays as it is: a person may have filled it in. So the name has to
    be that of this list alone.

    Args:
        rows: The images, with some of the `COLUMNS`, the first one first.
        files: Reads them.
        target: The folder of the files.
        name: The name of the list, with which their names begin.
        root: The folder that Label Studio serves files from; the target is in it.
        model: Which version has answered, for people.
        classes: The labels to choose from.
    """
    target.mkdir(parents=True, exist_ok=True)
    folder = target / f"{name}{IMAGES}"
    ordered = sorted(rows, key=lambda row: (row["file"], row["row"]))
    encoded = files.read((row["file"], row["row"]) for row in ordered)
    images: dict[str, str] = {}  # by their SHA-256
    with disk.replacing(folder) as aside:
        aside.mkdir()
        for row, image in zip(ordered, encoded, strict=True):
            images[row["sha256"]] = f"{row['sha256']}{_suffix(image)}"
            (aside / images[row["sha256"]]).write_bytes(image)
    tasks = [_task(row, folder.relative_to(root) / images[row["sha256"]], model) for row in rows]
    table = StringIO(newline="")
    writer = csv.DictWriter(table, [*COLUMNS, CORRECTED])
    writer.writeheader()
    writer.writerows(rows)
    texts = {
        ".csv": table.getvalue(),
        ".json": json.dumps(tasks, indent=1, ensure_ascii=False),
        "-label-studio.xml": _interface(classes),
    }
    for suffix, text in texts.items():
        if not (file := target / f"{name}{suffix}").exists():
            disk.write_text(file, text.encode("utf-8", "replace").decode())  # of names of files


def read(root: Path, tasks: str) -> list[dict[str, Any]]:
    """The rows of a list, each with the file of its `image`; none if a person has removed it.

    Args:
        root: The folder that Label Studio serves files from.
        tasks: The file with the tasks, relative to the root, as `look` gives it.
    """
    file = root / tasks
    listed = json.loads(file.read_bytes()) if file.exists() else []
    rows = [task["data"] for task in listed]
    return [row | {TO_NAME: root / unquote(row[TO_NAME].removeprefix(SERVED))} for row in rows]


def _suffix(encoded: bytes) -> str:
    """The suffix of an image by its format, from which a browser is told its type."""
    kind = inspect(encoded, reduced=True)[0].format
    return ".jp2" if kind == "JPEG2000" else f".{kind.lower()}"


def _task(row: Mapping[str, Any], image: Path, model: str) -> dict[str, Any]:
    """A task of Label Studio for a listed image."""
    answer = {
        "from_name": CORRECTED,
        "to_name": TO_NAME,
        "type": "choices",
        "value": {"choices": [row["proposed"]]},
    }
    prediction = {"model_version": model, "score": row["confidence"], "result": [answer]}
    data = {column: row.get(column) for column in COLUMNS}
    place = f"{SERVED}{quote(image.as_posix())}"
    return {"data": data | {TO_NAME: place}, "predictions": [prediction]}


def _interface(classes: Sequence[str]) -> str:
    """The labelling interface, as Label Studio's `View` describes it."""
    choices = "".join(f"    <Choice value={quoteattr(name)}/>\n" for name in classes)
    return (
        f'<View>\n  <Image name="{TO_NAME}" value="${TO_NAME}"/>\n'
        f'  <Choices name="{CORRECTED}" toName="{TO_NAME}" choice="single-radio" '
        f'showInline="true">\n{choices}  </Choices>\n  <Text name="why" value="$why"/>\n</View>\n'
    )
