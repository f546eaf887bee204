"""What the page of a training, or of the checks of data, shows beside the document of the run.

The data: its classes, what has changed in it, what was set aside. The model's answers: confusion,
calibration, mistakes, disagreements.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.filesize import decimal

from retrain.messages import message_of
from retrain.outputs import MANIFEST
from retrain.project import Project
from retrain.registry import lineage, versions
from retrain.runs.records import Document
from retrain.step import REPORT
from retrain.store import Artifact, Store
from tasks.data import image_table, predictions, thumbnails
from tasks.data.image_table import REJECTED, REJECTION, RESULTS
from tasks.data.listing import SPLITS
from tasks.data.metrics import CLASSES, wilson
from tasks.data.raw_images import ImageFiles, open_images
from tasks.data.shards import Shards, open_prepared
from tasks.promote import outcome
from tasks.train.job import FIRST_BATCH

# Rows of the table of classes, and of a confusion matrix that can be read; of more classes, pairs.
MAX_CLASSES = 30
MAX_PAIRS = 12  # of classes whose mistakes are shown
PER_PAIR = 8
PER_REASON = 6
SHOWN = 24  # pictures of a gallery
NUMBERS = ("width", "height", "bytes", "brightness")
COLUMNS = ["split", "label", "path", "file", "row", "pixels", *NUMBERS]
MODELS = {  # the columns with their answers
    "this model": ("prediction", "confidence"),
    "champion": ("other", "other_confidence"),
}


def content(project: Project, document: Document, made: Mapping[str, Artifact]) -> dict[str, Any]:
    """What the files of a run of `train` or `validate` add, which may have failed at any step.

    Args:
        project: The clone.
        document: As `flows.reports.training` makes it.
        made: The outputs of its steps that are still there.
    """
    found: dict[str, Any] = {"data": _data(project, document, made)}
    if document.get("decision") and document["model"]:
        slices = sorted(document["decision"]["slices"], key=lambda row: float(row["accuracy"]))
        found["slices"] = [row | {"row": outcome.slice_row(row)} for row in slices]
        found["differences"] = [
            {"label": f"{metric} against {opponent} {compared['version']}", **values}
            for opponent, compared in document["decision"]["comparisons"].items()
            for metric, values in compared["metrics"].items()
        ]
    if "compare_champion" in made:
        manifest = _json_in(made["compare_champion"].folder / MANIFEST)
        found["margin"] = manifest["plan"]["config"]["gate.margin"]
    if "train" in made:
        found["history"] = _json_in(made["train"].folder / REPORT / "history.json")
        found["precision"] = outcome.precision(made["train"].facts)
        found["first_images"] = _first_images(made["train"].folder / REPORT / FIRST_BATCH)
    if "evaluate" in made:
        found["classes"] = _recalls(made["evaluate"])
    if {"evaluate", "preprocess"} <= made.keys():
        found["answers"] = _answers(made)
    return found


def _recalls(scores: Artifact) -> list[dict[str, Any]]:
    """The classes with the intervals of their recalls, the worst first."""
    classes = sorted(_json_in(scores.folder / CLASSES)["classes"], key=lambda row: row["recall"])
    for row in classes:
        if row["rows"]:
            row["low"], row["high"] = wilson(round(row["recall"] * row["rows"]), row["rows"])
    return classes


def _first_images(file: Path) -> list[Any]:
    """The first images that the network saw, as a gallery has them; of the project's own loop."""
    if not file.exists():
        return []
    with np.load(file) as kept:
        seen = zip(kept["images"], kept["labels"].tolist(), strict=True)
        return [([thumbnails.of_array(pixels, name)], [(name, "")]) for pixels, name in seen]


def _json_in(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def _data(project: Project, document: Document, made: Mapping[str, Artifact]) -> dict[str, Any]:
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
    if message_of(ValueError(_json_in(folder / REJECTION)["message"])) != document["error"]:
        return {}  # a later run's
    return _checks(folder) | {"set_aside": _set_aside(folder, source)}


def _accepted(
    project: Project, document: Document, folder: Path, source: ImageFiles | None
) -> dict[str, Any]:
    images, before = _read_images(folder), _before(project, document)
    counts = _counts(images)
    change = counts - (_counts(before[0]) if before else counts).reindex_like(counts).fillna(0)
    texts = counts.map("{:,}".format) + change.map(lambda more: f" ({more:+,.0f})" if more else "")
    smallest = counts.sum(axis=1).sort_values(kind="stable").index[:MAX_CLASSES]
    return {
        "classes": [
            *texts.loc[sorted(smallest, key=image_table.natural_order)].itertuples(name=None)
        ],
        "more_classes": len(counts) - len(smallest),
        "properties": [(name, _range(images[name])) for name in NUMBERS],
        "changes": before and changes(images, source, *before),
        "set_aside": _set_aside(folder, source),
    }


def _range(values: "pd.Series[float]") -> str:
    """The median of a property of the images, with its least and its greatest value."""
    found = [values.min(), values.median(), values.max()]
    is_size = values.name == "bytes"
    low, median, high = (decimal(int(each)) if is_size else f"{each:,.4g}" for each in found)
    return low if low == high else f"median {median} ({low} to {high})"


def _read_images(folder: Path) -> pd.DataFrame:
    return pd.read_parquet(folder / image_table.FILE_NAME, columns=COLUMNS)


def champion_record(project: Project, document: Document) -> Mapping[str, Any]:
    """The lineage of the champion that a model was compared with; empty if that is not known."""
    champion = document.get("champion")
    with suppress(ValueError):  # the record is gone or was changed, as `verify` says
        version = champion and versions.get(project, document["workload"], champion["version"])
        return lineage.read(project, version) if version else {}
    return {}


def _before(project: Project, document: Document) -> tuple[pd.DataFrame, ImageFiles | None] | None:
    """The champion's images, if the store or its mirror has their table, and what reads them.

    They are read where they are on this machine; they are not fetched for a page.
    """
    store, steps = Store.of(project), champion_record(project, document).get("steps", ())
    keys = {step["step"]: step["key"] for step in steps}
    if not keys.get("validate"):
        return None
    with store.lock("validate", keys["validate"]):
        validated = store.obtain("validate", keys["validate"])
    if validated is None:
        return None
    pulled = store.find("pull", keys["pull"])
    return _read_images(validated.folder), open_images(pulled) if pulled else None


def _checks(folder: Path) -> dict[str, Any]:
    """What Great Expectations found, from the folder with its results."""
    record = folder / RESULTS
    results = [result for table in _json_in(record) for result in table["results"]]
    return {"checks": results, "record": record}


def _counts(images: pd.DataFrame) -> pd.DataFrame:
    """The number of images by class and split."""
    counts = images.groupby(["label", "split"]).size().unstack(fill_value=0)
    return counts.reindex(columns=list(SPLITS), fill_value=0)


def changes(
    images: pd.DataFrame,
    source: ImageFiles | None,
    before: pd.DataFrame,
    earlier: ImageFiles | None,
) -> dict[str, Any]:
    """What is new, gone and labelled otherwise; an image is its pixels.

    Args:
        images: The columns `COLUMNS` of the image table.
        source: Reads them; None if they are gone.
        before: The images before.
        earlier: Reads these; None if they are not on this machine.

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
    columns = ["path", "file", "row", "reason"]
    bad = pd.read_parquet(folder / image_table.SET_ASIDE, columns=columns)
    return _gallery(bad.groupby("reason").head(PER_REASON), len(bad), "reason", "bad", source)


def _gallery(
    rows: pd.DataFrame, count: int, line: str, style: str, source: ImageFiles | None
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


def _answers(made: Mapping[str, Artifact]) -> dict[str, Any]:
    """How the model answers the test images, and the champion, if that was evaluated, too.

    Args:
        made: The outputs of the run's steps, with those of `preprocess` and `evaluate`.
    """
    prepared = open_prepared(made["preprocess"].folder)
    images, answers = prepared.split("test").images, read_answers(made["evaluate"])
    tally = predictions.read(made["evaluate"].folder).tally(prepared.labels)
    is_right, disagreements = answers.prediction == answers.label, {}
    if "evaluate_champion" in made:
        theirs = read_answers(made["evaluate_champion"])
        answers = answers.assign(other=theirs.prediction, other_confidence=theirs.confidence)
        other_is_right = answers.other == answers.label
        disagreements = {
            "Right only in the champion": _examples(answers[~is_right & other_is_right], images),
            "Right only in this model": _examples(answers[is_right & ~other_is_right], images),
        }
    wrong = answers[~is_right].sort_values("confidence", ascending=False, kind="stable")
    pairs = wrong.groupby(["label", "prediction"])
    counts: dict[Any, int] = pairs.size().sort_values(ascending=False, kind="stable").to_dict()
    images_of = answers.label.value_counts()
    bins = tally.calibration
    counted = (bins.share * len(answers)).round().astype(int)
    return {
        "names": tally.names,
        "matrix": tally.confusion.tolist() if len(tally.names) <= MAX_CLASSES else None,
        "pairs": len(counts),
        "confused": [
            (*pair, counts[pair], int(images_of[pair[0]])) for pair in [*counts][:MAX_CLASSES]
        ],
        "calibration": [
            {
                "sure": sure,
                "accuracy": accuracy,
                "low": min(sure, accuracy),
                "high": max(sure, accuracy),
                "images": images,
                "right": accuracy * images,
                "expected": sure * images,
            }
            for sure, accuracy, images in zip(
                bins.confidence.tolist(), bins.accuracy.tolist(), counted.tolist(), strict=True
            )
        ],
        "disagreements": disagreements,
        "mistakes": _examples(wrong, images),
        "mistakes_of": {
            pair: _examples(pairs.get_group(pair), images, PER_PAIR)
            for pair in [*counts][:MAX_PAIRS]
        },
    }


def read_answers(scores: Artifact) -> pd.DataFrame:
    """The answers for the test images, whose index is their row in the split."""
    columns = ["path", "label", "prediction", "confidence"]
    return pd.read_parquet(scores.folder / predictions.FILE, columns=columns)


def _examples(answers: pd.DataFrame, images: Shards, most: int = SHOWN) -> dict[str, Any]:
    """The first images of some answers, each with what it shows, and what the models say."""
    first = answers.head(most)
    pictures = []
    for row, pixels in zip(first.to_dict("records"), images[first.index.to_numpy()], strict=True):
        lines = [(f"is {row['label']}", "")]
        for model, (answer, sure) in MODELS.items():
            if answer in row:
                style = "good" if row[answer] == row["label"] else "bad"
                lines.append((f"{model}: {row[answer]} ({row[sure]:.0%})", style))
        lines.append((row["path"], "path"))
        pictures.append(([thumbnails.of_array(pixels, row["path"])], lines))
    return {"pictures": pictures, "count": len(answers)}
