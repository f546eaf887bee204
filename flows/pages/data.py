"""What a page shows of the data: its classes, what has changed in it, what was set aside."""

import csv
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flows.pages import pictures
from flows.pages.run import Files
from retrain.messages import message_of
from retrain.project import Project
from retrain.registry import lineage, versions
from retrain.registry.lineage import Lineage
from retrain.runs.records import Document
from retrain.step import REPORT
from retrain.store import Store
from tasks.data import image_table
from tasks.data.image_table import NEAR_DUPLICATES, REJECTED, REJECTION, RESULTS
from tasks.data.reading import ImageFiles, open_images
from tasks.data.splits import SPLITS

if TYPE_CHECKING:
    import pandas as pd

MAX_CLASSES = 30  # rows of the table of classes
SHOWN = 24  # pictures of a gallery
PER_REASON = 6
BARS = 24  # of a histogram
COLUMNS = [
    *("split", "label", "path", "file", "row", "width", "height", "mode", "brightness", "bytes"),
    "pixels",
]
MAX_COMPARED = 2_000_000  # rows; more are not compared with the champion's


@dataclass(frozen=True)
class Before:
    """The images that the champion before was trained and evaluated on.

    Attributes:
        title: Which version that is.
        images: As `image_table` has them.
        source: Reads them.
    """

    title: str
    images: "pd.DataFrame"
    source: ImageFiles


def content(project: Project, document: Document, files: Files) -> dict[str, Any]:
    """The data of a run, if its checks have ended, also with a rejection; and the checks."""
    if files.has("validate"):
        return _accepted(project, document, files) | _checks(files.folders["validate"] / REPORT)
    folder = project.state / REJECTED / document["workload"]
    if "error" not in document or not (folder / REJECTION).is_file():
        return {}
    rejection = json.loads((folder / REJECTION).read_text(encoding="utf-8"))
    if message_of(ValueError(rejection["message"])) != document["error"]:
        return {}  # a later run's
    return _checks(folder) | {"set_aside": _set_aside(folder, _files(files))}


def _accepted(project: Project, document: Document, files: Files) -> dict[str, Any]:
    folder = files.folders["validate"]
    images = _read(folder)
    before = _before(project, document, images)
    source = _files(files)
    return {
        "rows": {split: int(images.split.eq(split).sum()) for split in SPLITS},
        "cut": files.manifest("validate")["facts"]["cut"],
        "before": before and before.title,
        **_classes(images, before),
        "properties": [*_properties(images)],
        "histograms": [*_histograms(images)],
        "changes": changes(images, source, before) if before else None,
        "set_aside": _set_aside(folder, source),
        "look_alike": _near_duplicates(folder, images, source),
    }


def _read(folder: Path) -> "pd.DataFrame":
    import pandas as pd

    return pd.read_parquet(folder / image_table.FILE_NAME, columns=COLUMNS)


def _files(files: Files) -> ImageFiles | None:
    """Reads the images of the data; None if the store has lost them."""
    if not files.has("pull"):
        return None
    column = files.manifest("pull")["facts"]["image_column"]
    return ImageFiles(files.folders["pull"] / "data", column)


def _before(project: Project, document: Document, images: "pd.DataFrame") -> Before | None:
    """The images of the champion before, if the store still has them."""
    champion = document.get("champion")
    if champion is None or len(images) > MAX_COMPARED:
        return None
    version = versions.get(project, document["workload"], champion["version"])
    with suppress(ValueError):  # the record is gone or was changed, as `verify` says
        if version:
            record = lineage.read(project, version)
            return _recorded(Store.of(project), record, f"version {champion['version']}")
    return None


def _recorded(store: Store, record: Lineage, title: str) -> Before | None:
    """The images that a record of a version names, from here or from the mirror."""
    found = {}
    for made in record.steps:
        if made.step in ("pull", "validate") and made.key:
            with store.lock(made.step, made.key):
                found[made.step] = store.obtain(made.step, made.key)
    pulled, validated = found.get("pull"), found.get("validate")
    if not (pulled and validated):
        return None
    return Before(title, _read(validated.folder), open_images(pulled))


def _checks(folder: Path) -> dict[str, Any]:
    """What Great Expectations found, from the folder with its results."""
    file = folder / RESULTS
    tables = json.loads(file.read_text(encoding="utf-8"))
    results = [result for table in tables for result in table["results"]]
    return {"checks": sorted(results, key=lambda result: result["success"]), "record": file}


def _classes(images: "pd.DataFrame", before: Before | None) -> dict[str, Any]:
    """The number of images by class and split, with the change; the smallest classes."""
    counts = _counts(images)
    smallest = counts.sum(axis=1).sort_values(kind="stable").index[:MAX_CLASSES]
    known = _counts(before.images) if before else counts
    differences = counts.sub(known, fill_value=0).astype(int)
    classes = [
        (name, [(int(counts.loc[name, of]), int(differences.loc[name, of])) for of in SPLITS])
        for name in sorted(smallest, key=image_table.natural_order)
    ]
    return {"classes": classes, "more_classes": len(counts) - len(classes)}


def _counts(images: "pd.DataFrame") -> "pd.DataFrame":
    counts = images.groupby(["label", "split"]).size().unstack(fill_value=0)
    return counts.reindex(columns=list(SPLITS), fill_value=0)


def changes(images: "pd.DataFrame", source: ImageFiles | None, before: Before) -> dict[str, Any]:
    """What is new, gone and labelled otherwise; an image is its pixels.

    Args:
        images: The columns `COLUMNS` of the image table.
        source: Reads them; None if they are gone.
        before: The images before.

    Returns:
        By what has changed, a gallery; without pictures if only the count is told.
    """
    new = images.drop_duplicates("pixels").set_index("pixels")
    old = before.images.drop_duplicates("pixels").set_index("pixels")
    both = new.join(old[["label", "split"]], how="inner", rsuffix="_before")
    relabelled = both[both.label != both.label_before]
    relabelled = relabelled.assign(label=relabelled.label_before + " → " + relabelled.label)
    found = {
        "new images": (new.loc[new.index.difference(old.index)], source),
        "images that are gone": (old.loc[old.index.difference(new.index)], before.source),
        "images with another label": (relabelled, source),
    }
    galleries = {
        name: _gallery(of.sort_values(["file", "row"]), len(of), of.label, "", reader)
        for name, (of, reader) in found.items()
    }
    moved = int((both.split != both.split_before).sum())
    return galleries | {"images in another split": pictures.gallery([], moved)}


def _properties(images: "pd.DataFrame") -> Iterator[tuple[str, str]]:
    for name in ("width", "height", "bytes"):
        least, middle, most = images[name].min(), images[name].median(), images[name].max()
        text = f"{least:,}" if least == most else f"{least:,} to {most:,}, median {middle:,.0f}"
        yield name, text
    endings = images.file.str.replace(r"^.*[.]", "", regex=True).str.lower()
    for name, values in (("mode", images["mode"]), ("files", endings)):
        counts = values.value_counts()
        yield name, ", ".join(f"{value} ({count:,})" for value, count in counts.items())


def _histograms(images: "pd.DataFrame") -> Iterator[tuple[str, list[int], list[float]]]:
    """The title, the counts and the ends of the ranges of what differs among the images."""
    for title, values in (
        ("Brightness", images.brightness),
        ("Width in pixels", images.width),
        ("Height in pixels", images.height),
        ("Width to height", images.width / images.height),
        ("Kilobytes of an image", images.bytes / 1000),
    ):
        if values.min() < values.max():
            numbers, edges = np.histogram(values, BARS)
            yield title, numbers.tolist(), edges.tolist()


def _set_aside(folder: Path, source: ImageFiles | None) -> dict[str, Any] | None:
    """The images that the checks have set aside, with the reasons; few for each."""
    import pandas as pd

    columns = ["path", "file", "row", "reason"]
    bad = pd.read_parquet(folder / image_table.SET_ASIDE, columns=columns)
    shown = bad.groupby("reason").head(PER_REASON)
    return _gallery(shown, len(bad), shown.reason, "bad", source) if len(bad) else None


def _gallery(
    rows: "pd.DataFrame", count: int, lines: "pd.Series[str]", style: str, source: ImageFiles | None
) -> dict[str, Any]:
    """The first rows of a count of images, each with a line; their names alone without a reader."""
    rows = rows.head(SHOWN)
    images = _thumbnails(rows, source) if source else [[]] * len(rows)
    described = zip(images, lines[rows.index], rows.path, strict=True)
    shown = ((found, [(line, style), (path, "path")]) for found, line, path in described)
    return pictures.gallery(shown, count)


def _thumbnails(rows: "pd.DataFrame", source: ImageFiles) -> list[list[pictures.Thumbnail]]:
    """A list with one thumbnail for each row."""
    ordered = rows.sort_values(["file", "row"])
    encoded = source.read(zip(ordered.file, ordered.row, strict=True))
    images = map(pictures.of_encoded, encoded, ordered.path)
    found = dict(zip(ordered.index, images, strict=True))
    return [[found[index]] for index in rows.index]


def _near_duplicates(
    folder: Path, images: "pd.DataFrame", source: ImageFiles | None
) -> dict[str, Any] | None:
    """Pairs of images that look alike in two splits, side by side."""
    with (folder / REPORT / NEAR_DUPLICATES).open(encoding="utf-8", newline="") as file:
        listed = list(csv.DictReader(file))
    if not listed or source is None:
        return None
    pairs = [(row["path"], row["near_duplicate_path"]) for row in listed[: SHOWN // 2]]
    rows = images[images.path.isin({path for pair in pairs for path in pair})]
    rows = rows.drop_duplicates("path")
    found = dict(zip(rows.path, _thumbnails(rows, source), strict=True))
    shown = [
        (
            [*found[one], *found[other]],
            [
                (f"{row['split']} and {row['near_duplicate_split']}", ""),
                (one, "path"),
                (other, "path"),
            ],
        )
        for row, (one, other) in zip(listed, pairs, strict=False)
    ]
    return pictures.gallery(shown, len(listed))
