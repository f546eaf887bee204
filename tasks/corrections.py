"""Takes labels that people have given over into the corrections beside the data.

People fill in what `tasks/data/review_list.py` writes: each image is known by its file, its row
there, and its SHA-256. All is checked before anything changes. Images of the data stay as they are:
`tasks/data/corrections.py` says where their labels go. Images that are not in the data yet are
copied into the folder of their class.
"""

import json
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from retrain import atomic
from retrain.errors import UsageError
from retrain.faults import did_you_mean
from retrain.workload import Data
from tasks.data import corrections
from tasks.data.index import IMAGE_SUFFIXES, Index, build
from tasks.data.reading import ImageFiles
from tasks.data.review_list import CORRECTED, IMAGES, TO_LABEL
from tasks.data.splits import label_of

NEEDED = ("why", "path", "file", "row", "sha256")
CONTROLS = (CORRECTED, "label")  # the second is that of tasks of earlier versions


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

    @property
    def place(self) -> tuple[str, int, str]:
        """Where the image was, and what it is."""
        return self.file, self.row, self.sha256


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
    found: dict[Correction, None] = {}
    labels: dict[str, str] = {}
    try:
        for row, value in (_tasks if file.suffix.lower() == ".json" else _rows)(file):
            if (label := label_of(value)) is None:
                continue
            why, path, place, number, digest = (row[name] for name in NEEDED)
            if not corrections.SHA256.fullmatch(digest):
                raise ValueError(f"{digest!r} is no SHA-256")
            if labels.setdefault(digest, label) != label:
                raise UsageError(f"{path} is labelled {labels[digest]} and {label}: decide on one.")
            found[Correction(path, place, int(number), digest, label, why == TO_LABEL)] = None
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        reason = f"no {error}" if isinstance(error, KeyError) else error
        raise UsageError(
            f"{file} cannot be read: {reason}. It should be an export of Label Studio in its "
            "format JSON, JSON-MIN or CSV, or a CSV file with the columns "
            f"{', '.join((*NEEDED, CORRECTED))}."
        ) from None
    return [*found]


def _rows(file: Path) -> Iterator[tuple[Mapping[str, Any], Any]]:
    """The rows of a CSV file, and their labels, which may be empty."""
    return ((row, row[CORRECTED]) for _, row in corrections.read_csv(file)[1])


def _tasks(file: Path) -> Iterator[tuple[Mapping[str, Any], Any]]:
    """The data of the tasks of an export of Label Studio, and their labels, if there are any."""
    for task in json.loads(file.read_bytes()):
        if "sha256" in task:  # JSON-MIN has the label among the data
            yield task, task.get(CORRECTED)
        else:
            yield from ((task["data"], label) for label in _choices(task))


def _choices(task: Mapping[str, Any]) -> list[str]:
    """The labels of a task that were submitted; one that was skipped has none."""
    return [
        choice
        for annotation in task["annotations"]
        if not annotation.get("was_cancelled")
        for result in annotation["result"]
        if result["from_name"] in CONTROLS
        for choice in result["value"]["choices"]
    ]


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
    images = _named(index.images, root, data)
    classes = {*images["label"].drop_null().unique().to_pylist()}
    for correction in labelled:
        if correction.label not in classes:
            raise UsageError(
                f"{correction.path} is labelled {correction.label!r}, which is no class of the "
                f"data.{did_you_mean(correction.label, classes)}"
            )
    labels, copies = _find(index, images, labelled, lists)
    recorded = corrections.read(root)
    folders = _class_folders(images) if copies and index.format == "folders" else {}
    targets: dict[str, Path] = {}  # of new images, by their SHA-256
    changes = []
    for correction in labelled:
        path, digest, after = correction.path, correction.sha256, correction.label
        if correction in labels:
            before = recorded.get(digest, labels[correction])
            if before != after:
                changes.append(Change(path, before, after, digest))
        elif not (correction.is_new and digest in copies):
            raise UsageError(f"{path} has changed or is gone since it was listed: list it again.")
        elif not folders:
            raise UsageError(
                f"The data is of the format {index.format}, to which no images are added here: "
                "add them with their labels to its files."
            )
        elif digest not in targets:
            copy, folder = copies[digest], root / folders[after]
            targets[digest] = _free(folder, correction, copy, targets.values())
            changes.append(Change(path, None, after, digest, (copy, targets[digest])))
    return changes


def _find(
    index: Index, images: pa.Table, labelled: Sequence[Correction], lists: Path
) -> tuple[dict[Correction, str | None], dict[str, Path]]:
    """Looks for images in the data: where they were listed, and then those of the same content.

    Returns:
        The class that the data gives to each image that is there; and of those that are not where
        they were listed, the copies beside the review lists, by their SHA-256.
    """
    places = pa.array([f"{each.file}:{each.row}" for each in labelled], pa.string())
    named = pc.binary_join_element_wise(images["file"], pc.cast(images["row"], "string"), ":")
    in_place = _look(index.files, images.filter(pc.is_in(named, places)))
    copies = {
        correction.sha256: copy
        for correction in labelled
        if correction.place not in in_place
        for copy in lists.glob(f"*{IMAGES}/{correction.sha256}*")
    }
    sizes = pa.array({copy.stat().st_size for copy in copies.values()}, pa.int64())
    may_be = pc.is_in(images["bytes"], sizes)
    if copies and index.format == "parquet":  # whose rows have no size of their own
        may_be = pc.is_valid(images["file"])
    found = _look(index.files, images.filter(may_be))
    elsewhere = {digest: label for (_, _, digest), label in found.items()}
    labels = {
        each: in_place.get(each.place, elsewhere.get(each.sha256))
        for each in labelled
        if each.place in in_place or each.sha256 in elsewhere
    }
    return labels, copies


def _named(images: pa.Table, root: Path, data: Data) -> pa.Table:
    """The index with the names of the classes that people see."""
    if data.label_names is None:
        return images
    from tasks.validate.told import name_classes

    names = name_classes(images.select(["label", "path"]).to_pandas(), root, data.label_names)
    place = images.column_names.index("label")
    return images.set_column(place, "label", pa.array(names, pa.string(), from_pandas=True))


def _look(files: ImageFiles, images: pa.Table) -> dict[tuple[str, int, str], str | None]:
    """The classes of images of the data, by the file, the row and the SHA-256 of each."""
    rows = images.select(["file", "row", "label"]).to_pylist()
    encoded = files.read((row["file"], row["row"]) for row in rows)
    return {
        (row["file"], row["row"], sha256(data).hexdigest()): row["label"]
        for row, data in zip(rows, encoded, strict=True)
    }


def _class_folders(images: pa.Table) -> dict[str, str]:
    """The folder of each class; below that of the training split, where the data has splits."""
    rows = images.select(["file", "label", "split"]).to_pylist()
    files = (row["file"] for row in rows if row["split"] == "train")
    top = next(files, "train").split("/")[0]
    folders = {}
    for row in rows:
        first, *rest = row["file"].split("/")
        folders[row["label"]] = f"{top}/{rest[0]}" if row["split"] else first
    return folders


def _free(folder: Path, correction: Correction, copy: Path, taken: Collection[Path]) -> Path:
    """Where a new image is put; nothing is there, and nothing else will be."""
    named = Path(correction.path)
    stem, suffix = named.stem, named.suffix
    if suffix.lower() not in IMAGE_SUFFIXES:  # such as that of a row of a Parquet file
        stem, suffix = named.name, copy.suffix
    digest = correction.sha256
    places = [folder / f"{stem}{more}{suffix}" for more in ("", f"-{digest[:8]}", f"-{digest}")]
    return next(place for place in places if not place.exists() and place not in taken)


def apply(root: Path, changes: Sequence[Change], by: str) -> None:
    """Copies the new images, and then writes the corrections, all of them or none.

    If it is killed, the same import does the rest.

    Args:
        root: The folder of the data.
        changes: As `plan` gives them.
        by: Who has labelled the images.
    """
    recorded = corrections.read(root)
    labels = {}
    for change in changes:
        if change.copied:
            source, target = change.copied
            target.parent.mkdir(parents=True, exist_ok=True)
            with atomic.replacing(target) as aside:
                shutil.copyfile(source, aside)
        if not change.copied or change.sha256 in recorded:  # of an image that had been removed
            labels[change.sha256] = change.after
    if labels:
        corrections.append(root, labels, by)
