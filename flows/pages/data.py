"""What a page shows of the data: its classes, what has changed in it, what was set aside."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrain.messages import message_of
from retrain.project import Project
from retrain.registry import lineage, versions
from retrain.runs.records import Document
from retrain.step import REPORT
from retrain.store import Artifact, Store
from tasks.data import image_table, thumbnails
from tasks.data.image_table import REJECTED, REJECTION, RESULTS
from tasks.data.listing import SPLITS
from tasks.data.reading import ImageFiles, open_images

if TYPE_CHECKING:
    import pandas as pd

MAX_CLASSES = 30  # rows of the table of classes
SHOWN = 24  # pictures of a gallery
PER_REASON = 6
NUMBERS = ("width", "height", "bytes", "brightness")
COLUMNS = ["split", "label", "path", "file", "row", "pixels", *NUMBERS]


def content(project: Project, document: Document, made: Mapping[str, Artifact]) -> dict[str, Any]:
    """The data of a run, if its checks have ended, also with a rejection; and the checks.

    Args:
        project: The clone.
        document: Of the run.
        made: The outputs of its steps that are still there.
    """
    source = open_images(made["pull"]) if "pull" in made else None
    if "validate" in made:
        folder = made["validate"].folder
        return _accepted(project, document, folder, source) | _checks(folder / REPORT)
    folder = project.state / REJECTED / document["workload"]
    if "error" not in document or not (folder / REJECTION).is_file():
        return {}
    rejection = json.loads((folder / REJECTION).read_text(encoding="utf-8"))
    if message_of(ValueError(rejection["message"])) != document["error"]:
        return {}  # a later run's
    return _checks(folder) | {"set_aside": _set_aside(folder, source)}


def _accepted(
    project: Project, document: Document, folder: Path, source: ImageFiles | None
) -> dict[str, Any]:
    images, before = _read(folder), _before(project, document)
    counts = _counts(images)
    smallest = counts.sum(axis=1).sort_values(kind="stable").index[:MAX_CLASSES]
    return {
        "classes": counts.loc[sorted(smallest, key=image_table.natural_order)].to_dict("index"),
        "more_classes": len(counts) - len(smallest),
        "properties": images[[*NUMBERS]].agg(["min", "median", "max"]).to_dict(),
        "classes_before": before and _counts(before[0]).to_dict("index"),
        "changes": before and changes(images, source, *before),
        "set_aside": _set_aside(folder, source),
    }


def _read(folder: Path) -> "pd.DataFrame":
    import pandas as pd

    return pd.read_parquet(folder / image_table.FILE_NAME, columns=COLUMNS)


def _before(project: Project, document: Document) -> tuple["pd.DataFrame", ImageFiles] | None:
    """The images of the champion before, and what reads them, if the store still has them."""
    champion, store = document.get("champion"), Store.of(project)
    version = champion and versions.get(project, document["workload"], champion["version"])
    if not version:
        return None
    found = {}
    with suppress(ValueError):  # the record is gone or was changed, as `verify` says
        for made in lineage.read(project, version)["steps"]:
            if made["step"] in ("pull", "validate") and made["key"]:
                with store.lock(made["step"], made["key"]):
                    found[made["step"]] = store.obtain(made["step"], made["key"])
    pulled, validated = found.get("pull"), found.get("validate")
    return (_read(validated.folder), open_images(pulled)) if pulled and validated else None


def _checks(folder: Path) -> dict[str, Any]:
    """What Great Expectations found, from the folder with its results."""
    tables = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
    results = [result for table in tables for result in table["results"]]
    return {"checks": results, "record": folder / RESULTS}


def _counts(images: "pd.DataFrame") -> "pd.DataFrame":
    """The number of images by class and split."""
    counts = images.groupby(["label", "split"]).size().unstack(fill_value=0)
    return counts.reindex(columns=list(SPLITS), fill_value=0)


def changes(
    images: "pd.DataFrame", source: ImageFiles | None, before: "pd.DataFrame", earlier: ImageFiles
) -> dict[str, Any]:
    """What is new, gone and labelled otherwise; an image is its pixels.

    Args:
        images: The columns `COLUMNS` of the image table.
        source: Reads them; None if they are gone.
        before: The images before.
        earlier: Reads these.

    Returns:
        By what has changed, a gallery; without pictures if only the count is told.
    """
    new = images.drop_duplicates("pixels").set_index("pixels")
    old = before.drop_duplicates("pixels").set_index("pixels")
    both = new.join(old[["label", "split"]], how="inner", rsuffix="_before")
    relabelled = both[both.label != both.label_before]
    relabelled = relabelled.assign(label=relabelled.label_before + " → " + relabelled.label)
    found = {
        "new images": (new.loc[new.index.difference(old.index)], source),
        "images that are gone": (old.loc[old.index.difference(new.index)], earlier),
        "images with another label": (relabelled, source),
    }
    galleries = {
        name: _gallery(of.sort_values(["file", "row"]), len(of), "label", "", reader)
        for name, (of, reader) in found.items()
    }
    moved = int((both.split != both.split_before).sum())
    return galleries | {"images in another split": {"pictures": [], "count": moved}}


def _set_aside(folder: Path, source: ImageFiles | None) -> dict[str, Any]:
    """The images that the checks have set aside, with the reasons; few for each."""
    import pandas as pd

    columns = ["path", "file", "row", "reason"]
    bad = pd.read_parquet(folder / image_table.SET_ASIDE, columns=columns)
    return _gallery(bad.groupby("reason").head(PER_REASON), len(bad), "reason", "bad", source)


def _gallery(
    rows: "pd.DataFrame", count: int, line: str, style: str, source: ImageFiles | None
) -> dict[str, Any]:
    """The first rows of a count of images, each with a line; their names alone without a reader."""
    rows, found = rows.head(SHOWN), {}
    if source is not None:
        ordered = rows.sort_values(["file", "row"])
        encoded = source.read(zip(ordered.file, ordered.row, strict=True))
        shown = map(thumbnails.of_encoded, encoded, ordered.path)
        found = {index: [image] for index, image in zip(ordered.index, shown, strict=True)}
    pictures = [
        (found.get(index, []), [(text, style), (path, "path")])
        for index, text, path in zip(rows.index, rows[line], rows.path, strict=True)
    ]
    return {"pictures": pictures, "count": count}
