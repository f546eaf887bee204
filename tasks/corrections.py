"""Takes labels that people have given over into the corrections beside the data.

People fill in what `tasks/data/review_list.py` writes: each image is known by its file, its row
there, and its SHA-256. All is checked before anything changes. Images of the data stay as they are:
`tasks/data/corrections.py` says where their labels go.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa

from retrain.errors import UsageError, did_you_mean
from retrain.workload import Data
from tasks.data import corrections
from tasks.data.index import Index, build
from tasks.data.listing import label_of
from tasks.data.review_list import CORRECTED

NEEDED = ("path", "file", "row", "sha256", CORRECTED)


@dataclass(frozen=True)
class Correction:
    """The label that a person has given to an image.

    Attributes:
        path: The name of the image in reports.
        file: The file of the data that holds it.
        row: Its row in the file.
        sha256: SHA-256 (hex) of the encoded image.
        label: The name of its class.
    """

    path: str
    file: str
    row: int
    sha256: str
    label: str


@dataclass(frozen=True)
class Change:
    """The label of an image that changes.

    Attributes:
        path: The name of the image in reports.
        before: Its class so far; None if it had none.
        after: Its class from now on.
        sha256: SHA-256 (hex) of the encoded image.
    """

    path: str
    before: str | None
    after: str
    sha256: str


def read(file: Path) -> list[Correction]:
    """Reads the images that have a label of a person, each once.

    Args:
        file: The CSV file of a review list, whose column `corrected` a person has filled.

    Raises:
        UsageError: There is no such file, it lacks something, or an image has two labels.
    """
    if not file.is_file():
        raise UsageError(f"{file}: there is no such file.")
    try:
        rows = [row for _, row in corrections.read_csv(file)[1]]
        found = [_correction(row, label) for row in rows if (label := label_of(row[CORRECTED]))]
    except (KeyError, TypeError, ValueError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else error
        raise UsageError(
            f"{file} cannot be read: {reason}. It should be a CSV file with the columns "
            f"{', '.join(NEEDED)}."
        ) from None
    labels: dict[str, str] = {}
    for each in found:
        if labels.setdefault(each.sha256, each.label) != each.label:
            raise UsageError(
                f"{each.path} is labelled {labels[each.sha256]} and {each.label}: decide on one."
            )
    return [*dict.fromkeys(found)]


def _correction(row: Mapping[str, Any], label: str) -> Correction:
    path, file, number = row["path"], row["file"], row["row"]
    digest = (row["sha256"] or "").strip().lower()
    if not corrections.SHA256.fullmatch(digest):
        raise ValueError(f"{digest!r} is no SHA-256")
    return Correction(path, file, int(number), digest, label)


def plan(root: Path, data: Data, labelled: Sequence[Correction]) -> list[Change]:
    """What changes: all labels but those that the images have already.

    Args:
        root: The folder of the data.
        data: The section of the workload.
        labelled: The labels of images.

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
    recorded = corrections.read(root)
    changes = []
    for each in labelled:
        if each not in known:
            raise UsageError(
                f"{each.path} has changed or is gone since it was listed: list it again."
            )
        before = recorded.get(each.sha256, known[each])
        if before != each.label:
            changes.append(Change(each.path, before, each.label, each.sha256))
    return changes


def _rows_of(index: Index, root: Path, data: Data) -> list[dict[str, Any]]:
    """The images of the data, each with its `class` as people see it."""
    images = index.images.select(["file", "row", "path", "label"])
    names = images["label"]
    if data.label_names is not None:
        from tasks.validate.annotations import name_classes

        named = name_classes(images.to_pandas(), root, data.label_names)
        names = pa.array(named, pa.string(), from_pandas=True)
    return list(images.append_column("class", names).to_pylist())


def _find(
    index: Index, rows: Iterable[Mapping[str, Any]], labelled: Sequence[Correction]
) -> dict[Correction, str | None]:
    """The class that the data gives to each image that is still where it was listed."""
    listed = {(row["file"], row["row"]): row["class"] for row in rows}
    places = sorted(listed.keys() & {(each.file, each.row) for each in labelled})
    encoded = index.files.read(places)
    digests = {place: sha256(data).hexdigest() for place, data in zip(places, encoded, strict=True)}
    found = {}
    for each in labelled:
        place = (each.file, each.row)
        if digests.get(place) == each.sha256:
            found[each] = listed[place]
    return found


def apply(root: Path, changes: Sequence[Change], by: str) -> None:
    """Writes the corrections, all of them or none.

    Args:
        root: The folder of the data.
        changes: As `plan` gives them.
        by: Who has labelled the images.
    """
    if changes:
        corrections.append(root, {change.sha256: change.after for change in changes}, by)
