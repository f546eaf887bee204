"""Takes labels that people have given over into the corrections beside the data.

People fill in what `tasks/data/review_list.py` writes: each image is known by its file, its row
there, and its SHA-256. All is checked before anything changes. Images of the data stay as they are:
`tasks/data/corrections.py` says where their labels go. Images that are not in the data yet are
copied into the folder of their class, under the name of the copy beside the review list: their
SHA-256.
"""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate
from pathlib import Path, PurePath
from typing import Any

import pyarrow as pa

from retrain import disk
from retrain.errors import UsageError, did_you_mean
from retrain.workload import Data
from tasks.data import corrections
from tasks.data.index import Index, build
from tasks.data.listing import label_of
from tasks.data.review_list import CORRECTED, IMAGES, TO_LABEL

NEEDED = ("why", "path", "file", "row", "sha256")


@dataclass(frozen=True)
class Correction:
    """The label that a person has given to an image.

    Attributes:
        path: The name of the image in reports.
        file: The file that holds it: of the data, or of the images that were to be labelled.
        row: Its row in the file.
        sha256: SHA-256 (hex) of the encoded image.
        label: The name of its class.
        is_new: Whether the image was to be labelled.
    """

    path: str
    file: str
    row: int
    sha256: str
    label: str
    is_new: bool


@dataclass(frozen=True)
class Change:
    """The label of an image that changes.

    Attributes:
        path: The name of the image in reports.
        before: Its class so far; None for a new image, and for one that had none.
        after: Its class from now on.
        sha256: SHA-256 (hex) of the encoded image.
        copied: Of a new image, where its copy beside the review list is, and where it has to be.
    """

    path: str
    before: str | None
    after: str
    sha256: str
    copied: tuple[Path, Path] | None = None


def read(file: Path) -> list[Correction]:
    """Reads the images that have a label of a person, each once.

    Args:
        file: An export of Label Studio in its format JSON, JSON-MIN or CSV, or the CSV file of a
            review list, whose column `corrected` a person has filled.

    Raises:
        UsageError: There is no such file, it lacks something, or an image has two labels.
    """
    if not file.is_file():
        raise UsageError(f"{file}: there is no such file.")
    try:
        is_json = file.suffix.lower() == ".json"
        rows = (
            _tasks(file)
            if is_json
            else ((row, row[CORRECTED]) for _, row in corrections.read_csv(file)[1])
        )
        found = [_correction(row, label) for row, value in rows if (label := label_of(value))]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else error
        raise UsageError(
            f"{file} cannot be read: {reason}. It should be an export of Label Studio in its "
            "format JSON, JSON-MIN or CSV, or a CSV file with the columns "
            f"{', '.join((*NEEDED, CORRECTED))}."
        ) from None
    labels: dict[str, str] = {}
    for each in found:
        if labels.setdefault(each.sha256, each.label) != each.label:
            raise UsageError(
                f"{each.path} is labelled {labels[each.sha256]} and {each.label}: decide on one."
            )
    return [*dict.fromkeys(found)]


def _tasks(file: Path) -> Iterator[tuple[Mapping[str, Any], Any]]:
    """The data of the tasks of an export of Label Studio, and the labels that were submitted."""
    for task in json.loads(file.read_bytes()):
        if "sha256" in task:  # JSON-MIN has the label among the data
            yield task, task.get(CORRECTED)
            continue
        submitted = (each for each in task["annotations"] if not each.get("was_cancelled"))
        for result in (result for each in submitted for result in each["result"]):
            if result["from_name"] == CORRECTED:
                yield from ((task["data"], choice) for choice in result["value"]["choices"])


def _correction(row: Mapping[str, Any], label: str) -> Correction:
    why, path, file, number, digest = (row[name] for name in NEEDED)
    if not corrections.SHA256.fullmatch(digest):
        raise ValueError(f"{digest!r} is no SHA-256")
    return Correction(path, file, int(number), digest, label, why == TO_LABEL)


def plan(root: Path, data: Data, labelled: Sequence[Correction], lists: Path) -> list[Change]:
    """What changes: all labels but those that the images have already.

    Args:
        root: The folder of the data.
        data: The section of the workload.
        labelled: The labels of images.
        lists: The folder with the review lists, and the copies of their images.

    Raises:
        UsageError: An image has changed or is gone, or a label is no class of the data.
    """
    index = build(root, data)
    rows = _rows_of(index, root, data)
    classes = {row["class"] for row in rows} - {None}
    for each in labelled:
        if each.label not in classes:
            raise UsageError(
                f"{each.path} is labelled {each.label!r}, which is no class of the "
                f"data.{did_you_mean(each.label, classes)}"
            )
    known = _find(index, rows, labelled)
    recorded, folders = corrections.read(root), _class_folders(rows)
    changes = []
    for each in labelled:
        if each in known:
            before = recorded.get(each.sha256, known[each])
            if before != each.label:
                changes.append(Change(each.path, before, each.label, each.sha256))
            continue
        copy = next(lists.glob(f"*{IMAGES}/{each.sha256}*"), None)
        if not (each.is_new and copy):
            raise UsageError(
                f"{each.path} has changed or is gone since it was listed: list it again."
            )
        if index.format != "folders":
            raise UsageError(
                f"The data is of the format {index.format}, to which no images are added here: "
                "add them with their labels to its files."
            )
        copied = (copy, root / folders[each.label] / copy.name)
        changes.append(Change(each.path, None, each.label, each.sha256, copied))
    return changes


def _rows_of(index: Index, root: Path, data: Data) -> list[dict[str, Any]]:
    """The images of the data, each with its `class` as people see it."""
    images = index.images.select(["file", "row", "path", "label", "split"])
    names = images["label"]
    if data.label_names is not None:
        from tasks.validate.told import name_classes

        named = name_classes(images.to_pandas(), root, data.label_names)
        names = pa.array(named, pa.string(), from_pandas=True)
    return list(images.append_column("class", names).to_pylist())


def _find(
    index: Index, rows: Iterable[Mapping[str, Any]], labelled: Sequence[Correction]
) -> dict[Correction, str | None]:
    """The class that the data gives to each image that is in it: where it was listed, or added."""
    listed = {(row["file"], row["row"]): row["class"] for row in rows}
    added = {PurePath(file).stem: label for (file, _), label in listed.items()}
    found = {each: added[each.sha256] for each in labelled if each.sha256 in added}
    places = sorted(listed.keys() & {(each.file, each.row) for each in labelled})
    encoded = index.files.read(places)
    digests = {place: sha256(data).hexdigest() for place, data in zip(places, encoded, strict=True)}
    for each in labelled:
        place = (each.file, each.row)
        if digests.get(place) == each.sha256:
            found[each] = listed[place]
    return found


def _class_folders(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The folder of each class; that of the training split, where the data has splits."""
    folders: dict[str, str] = {}
    for row in sorted(rows, key=lambda row: row["split"] != "train"):
        above = [*accumulate(row["file"].split("/")[:-1], "{}/{}".format)]
        of_class = (path for path in above if label_of(PurePath(path).name) == row["label"])
        folders.setdefault(row["class"], next(of_class, ""))
    return folders


def apply(root: Path, changes: Sequence[Change], by: str) -> None:
    """Copies the new images, and then writes the corrections, all of them or none.

    If it is killed, the same import does the rest.

    Args:
        root: The folder of the data.
        changes: As `plan` gives them.
        by: Who has labelled the images.
    """
    for change in changes:
        if change.copied:
            source, target = change.copied
            with disk.replacing(target) as aside:
                shutil.copyfile(source, aside)
    recorded = corrections.read(root)  # a new image may be in it, if it was removed from the data
    labels = {
        change.sha256: change.after
        for change in changes
        if not change.copied or change.sha256 in recorded
    }
    if labels:
        corrections.append(root, labels, by)
