"""What a page shows of the data: its classes, what has changed in it, what was set aside."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flows.pages import charts, thumbnails
from flows.pages.blocks import (
    Block,
    Cell,
    Columns,
    Gallery,
    Heading,
    Picture,
    Section,
    Table,
    Text,
    cells,
)  # fmt: skip
from flows.pages.files import Files
from retrain.messages import message_of
from retrain.project import Project
from retrain.registry import versions
from retrain.runs.records import Document
from retrain.step import REPORT
from tasks.data import image_table
from tasks.data.image_table import SPLITS
from tasks.data.listed import read_encoded
from tasks.data.raw_dataset import RawDataset, Reader, open_format
from tasks.data.reference import evaluated_of
from tasks.validate.step import BRIGHTNESS, NEAR_DUPLICATES, REJECTED, REJECTION, RESULTS

if TYPE_CHECKING:
    import pandas as pd

MAX_CLASSES = 30  # rows of the table of classes
SHOWN = 24  # pictures of a gallery
PER_REASON = 6
BARS = 24  # of a histogram
COLUMNS = ["split", "label", "path", "file", "row", "width", "height", "mode", "bytes", "pixels"]
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
    source: Reader


def sections(project: Project, document: Document, files: Files) -> list[Section]:
    """The data of a run, if its checks have ended, also with a rejection; and the checks."""
    if files.has("validate"):
        folder = files.folders["validate"]
        found = [Section("Data", _accepted(project, document, files))]
        return found + _checks(folder / REPORT)
    folder = project.state / REJECTED / document["workload"]
    if "error" not in document or not (folder / REJECTION).is_file():
        return []
    rejection = json.loads((folder / REJECTION).read_text(encoding="utf-8"))
    if message_of(ValueError(rejection["message"])) != document["error"]:
        return []  # a later run's
    source = _source(files, rejection["columns"]) if files.has("pull") else None
    bad = list(_set_aside(folder, source))
    return _checks(folder) + ([Section("Data", bad)] if bad else [])


def _accepted(project: Project, document: Document, files: Files) -> list[Block]:
    facts, folder = document["data"], files.folders["validate"]
    images = _read(folder)
    before = _before(project, document, images)
    rows = ", ".join(f"{images.split.eq(split).sum():,} {split}" for split in SPLITS)
    tracked = "under DVC" if facts["tracked"] else "not under DVC"
    config = files.manifest("validate")["plan"]["config"]
    columns = {name: config[f"data.{name}"] for name in ("image_column", "label_column")}
    source = _source(files, columns) if files.has("pull") else None
    return [
        Text(f"{facts['path']} ({tracked}), version {facts['version'][:12]}: {rows}.", "muted"),
        Columns([_classes(images, before), _properties(images)]),
        Columns(list(_distributions(images, folder / REPORT / BRIGHTNESS))),
        *(changes(images, source, before) if before else ()),
        *_set_aside(folder, source),
        *_near_duplicates(folder, images, source),
    ]


def _read(folder: Path) -> "pd.DataFrame":
    import pandas as pd

    return pd.read_parquet(folder / image_table.FILE_NAME, columns=COLUMNS)


def _source(files: Files, columns: Mapping[str, Any]) -> RawDataset:
    form = files.manifest("pull")["facts"]["format"]
    return open_format(form, files.folders["pull"] / "data", **columns)


def _before(project: Project, document: Document, images: "pd.DataFrame") -> Before | None:
    """The images of the champion before, if the store still has them."""
    champion = document.get("champion")
    if champion is None or len(images) > MAX_COMPARED:
        return None
    version = versions.get(project, document["workload"], champion["version"])
    found = version and evaluated_of(project, version)
    if not found:
        return None
    return Before(f"version {champion['version']}", _read(found.validated), found.source)


def _checks(folder: Path) -> list[Section]:
    """What Great Expectations found, from the folder with its results; none in an old output."""
    if not (folder / RESULTS).is_file():
        return []
    tables = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
    results = [result for table in tables for result in table["results"]]
    rows = [_check(result) for result in sorted(results, key=lambda result: result["success"])]
    failed = sum(not result["success"] for result in results)
    caption = f"{len(rows)} expectations, {failed} not met"
    file = folder / RESULTS
    record = cells("All that Great Expectations found", Cell(RESULTS, link=file.as_uri()))
    columns = ("there should be no", "", "found", "expectation")
    return [
        Section(
            "Checks",
            [Table(caption, rows, columns, frozenset({2})), Table("The raw record", [record])],
        )
    ]


def _check(result: Mapping[str, Any]) -> Sequence[Cell]:
    config, found = result["expectation_config"], result["result"]
    arguments = config["kwargs"]
    limits = {name: arguments[name] for name in ("min_value", "max_value") if name in arguments}
    shown = ", ".join([arguments["column"], *(f"{name}={end}" for name, end in limits.items())])
    mark = Cell("✓", "good") if result["success"] else Cell("✗", "bad")
    if arguments.get("mostly") == 0:
        mark = Cell("counted only", "muted")
    failed, rows = (found.get(name) or 0 for name in ("unexpected_count", "element_count"))
    return cells(
        config["notes"], mark, f"{failed:,} of {rows:,}", Cell(f"{config['type']}({shown})", "path")
    )


def _classes(images: "pd.DataFrame", before: Before | None) -> Block:
    """The number of images by class and split, with the change; the smallest classes."""
    counts = _counts(images)
    smallest = counts.sum(axis=1).sort_values(kind="stable").index[:MAX_CLASSES]
    shown = sorted(smallest, key=image_table.natural_order)
    caption = "Images by class"
    if left := len(counts) - len(shown):
        caption += f"; {left:,} larger classes are left out"
    if before is None:
        rows = [cells(name, *(f"{counts.loc[name, of]:,}" for of in SPLITS)) for name in shown]
    else:
        changes = counts.sub(_counts(before.images), fill_value=0).astype(int)
        caption += f"; in brackets, the change since {before.title}"
        rows = [
            cells(name, *(_changed(counts.loc[name, of], changes.loc[name, of]) for of in SPLITS))
            for name in shown
        ]
    return Table(caption, rows, ("class", *SPLITS), frozenset({1, 2, 3}))


def _counts(images: "pd.DataFrame") -> "pd.DataFrame":
    counts = images.groupby(["label", "split"]).size().unstack(fill_value=0)
    return counts.reindex(columns=list(SPLITS), fill_value=0)


def _changed(count: int, change: int) -> Cell:
    return Cell(f"{count:,} ({change:+,})" if change else f"{count:,}")


def changes(images: "pd.DataFrame", source: Reader | None, before: Before) -> Iterator[Block]:
    """What is new, gone and labelled otherwise; an image is its pixels.

    Args:
        images: The columns `COLUMNS` of the image table.
        source: Reads them; None if they are gone.
        before: The images before.
    """
    new = images.drop_duplicates("pixels").set_index("pixels")
    old = before.images.drop_duplicates("pixels").set_index("pixels")
    both = new.join(old[["label", "split"]], how="inner", rsuffix="_before")
    relabelled = both[both.label != both.label_before]
    found = {
        "new images": (new.loc[new.index.difference(old.index)], source),
        "images that are gone": (old.loc[old.index.difference(new.index)], before.source),
        "images with another label": (
            relabelled.assign(label=relabelled.label_before + " → " + relabelled.label),
            source,
        ),
        "images in another split": (both[both.split != both.split_before], None),
    }
    rows = [cells(name, f"{len(of):,}") for name, (of, _) in found.items()]
    yield Heading(f"Since {before.title}")
    if not any(len(of) for of, _ in found.values()):
        yield Text("The same images, with the same labels, in the same splits.")
        return
    yield Table("An image is its pixels", rows, numbers=frozenset({1}))
    for name, (of, reader) in found.items():
        if reader and len(of):
            yield Heading(name.capitalize())
            shown = of.sort_values(["file", "row"]).head(SHOWN)
            yield from _pictures(shown, len(of), shown.label, "", reader)


def _properties(images: "pd.DataFrame") -> Block:
    rows = [
        cells(name, _range(of))
        for name, of in (
            ("width", images.width),
            ("height", images.height),
            ("bytes", images.bytes),
        )
    ]
    endings = images.file.str.replace(r"^.*[.]", "", regex=True).str.lower()
    for name, values in (("mode", images["mode"]), ("files", endings)):
        counts = values.value_counts()
        texts = [f"{value} ({count:,})" for value, count in counts.items()]
        rows.append(cells(name, ", ".join(texts)))
    return Table("The images", rows)


def _range(values: "pd.Series[int]") -> str:
    least, most = values.min(), values.max()
    middle = values.median()
    return f"{least:,}" if least == most else f"{least:,} to {most:,}, median {middle:,.0f}"


def _distributions(images: "pd.DataFrame", brightness: Path) -> Iterator[Block]:
    """Histograms of what differs among the images."""
    if brightness.is_file():  # not in an old output
        levels = json.loads(brightness.read_text(encoding="utf-8"))
        counts = np.add.reduceat(levels, range(0, 256, 8)).tolist()
        edges = np.linspace(0, 1, len(counts) + 1).tolist()
        yield charts.histogram(f"Brightness of {sum(counts):,} images", counts, edges)
    for title, values in (
        ("Width in pixels", images.width),
        ("Height in pixels", images.height),
        ("Width to height", images.width / images.height),
        ("Kilobytes of an image", images.bytes / 1000),
    ):
        if values.min() < values.max():
            numbers, ends = np.histogram(values, BARS)
            yield charts.histogram(title, numbers.tolist(), ends.tolist())


def _set_aside(folder: Path, source: Reader | None) -> Iterator[Block]:
    """The images that the checks have set aside, with the reasons; few for each."""
    import pandas as pd

    columns = ["path", "file", "row", "reason"]
    bad = pd.read_parquet(folder / image_table.SET_ASIDE, columns=columns)
    if bad.empty:
        return
    yield Heading("Set aside by the checks")
    shown = bad.groupby("reason").head(PER_REASON).head(SHOWN)
    yield from _pictures(shown, len(bad), shown.reason, "bad", source)


def _pictures(
    shown: "pd.DataFrame",
    count: int,
    lines: "pd.Series[str]",
    style: str,
    source: Reader | None,
) -> Iterator[Block]:
    """Some of a count of images, each with a line; a table where they cannot be read."""
    yield Text(f"{len(shown):,} of {count:,} images.", "muted")
    if source is None:
        yield Table("Images", [cells(*row) for row in zip(shown.path, lines, strict=True)])
        return
    encoded = read_encoded(source, zip(shown.file, shown.row, strict=True))
    described = zip(encoded, shown.path, lines, strict=True)
    yield Gallery(
        [
            Picture([thumbnails.of_encoded(data, path)], [Text(line, style), Text(path, "path")])
            for data, path, line in described
        ]
    )


def _near_duplicates(
    folder: Path, images: "pd.DataFrame", source: Reader | None
) -> Iterator[Block]:
    """Pairs of images that look alike in two splits, side by side."""
    with (folder / REPORT / NEAR_DUPLICATES).open(encoding="utf-8", newline="") as file:
        listed = list(csv.DictReader(file))
    if not listed or source is None:
        return
    shown = listed[: SHOWN // 2]
    paths = [row[name] for row in shown for name in ("path", "near_duplicate_path")]
    places = images[images.path.isin(paths)].drop_duplicates("path").set_index("path")
    wanted = [(places.file[path], int(places.row[path])) for path in paths]
    encoded = dict(zip(paths, read_encoded(source, wanted), strict=True))
    pictures = []
    for row in shown:
        pair = (row["path"], row["near_duplicate_path"])
        lines = [
            Text(f"{row['split']} and {row['near_duplicate_split']}"),
            *(Text(path, "path") for path in pair),
        ]
        pair_of = [thumbnails.of_encoded(encoded[path], path) for path in pair]
        pictures.append(Picture(pair_of, lines))
    yield Heading("Images that look alike in two splits")
    yield Text(f"{len(shown)} of {len(listed):,} pairs.", "muted")
    yield Gallery(pictures)
