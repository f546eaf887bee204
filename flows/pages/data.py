"""What a page shows of the data: its classes, what has changed in it, what was set aside."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from flows.pages import thumbnails
from flows.pages.blocks import (
    Block,
    Cell,
    Columns,
    Facts,
    Gallery,
    Heading,
    Picture,
    Table,
    Text,
    cells,
)  # fmt: skip
from flows.pages.files import Files
from retrain.project import Project
from retrain.registry import versions
from retrain.runs.records import Document
from retrain.step import REPORT
from retrain.store import Store
from tasks.data import image_table
from tasks.data.image_table import SPLITS
from tasks.data.raw_dataset import RawDataset, open_format
from tasks.data.reference import find_evaluated
from tasks.validate.step import NEAR_DUPLICATES

if TYPE_CHECKING:
    import pandas as pd

MAX_CLASSES = 30  # rows of the table of classes
SHOWN = 24  # pictures of a gallery
COLUMNS = ["split", "label", "path", "file", "row", "width", "height", "mode", "bytes", "pixels"]
MAX_COMPARED = 2_000_000  # rows; more are not compared with the champion's


def blocks(project: Project, document: Document, files: Files) -> list[Block]:
    """The data of a run, which was checked."""
    facts, folder = document["data"], files.folders["validate"]
    images = _read(folder)
    before, title = _before(project, document, images)
    rows = ", ".join(f"{images.split.eq(split).sum():,} {split}" for split in SPLITS)
    tracked = "under DVC" if facts["tracked"] else "not under DVC"
    tables = [] if before is None else [_changes(images, before, title)]
    source = _source(files) if files.has("pull") else None
    return [
        Facts([f"{facts['path']} ({tracked})", f"version {facts['version'][:12]}", rows]),
        Columns([_classes(images, before, title), *tables, _properties(images)]),
        *_set_aside(folder, source),
        *_near_duplicates(folder, images, source),
    ]


def _read(folder: Path) -> "pd.DataFrame":
    import pandas as pd

    return pd.read_parquet(folder / image_table.FILE_NAME, columns=COLUMNS)


def _before(
    project: Project, document: Document, images: "pd.DataFrame"
) -> "tuple[pd.DataFrame | None, str]":
    """The images of the champion before, if the store still has them, and its name."""
    champion = document.get("champion")
    if champion is None or len(images) > MAX_COMPARED:
        return None, ""
    version = versions.get(project, document["workload"], champion["version"])
    evaluated = version and find_evaluated(Store(project.store), version)
    return _read(evaluated.validated) if evaluated else None, f"version {champion['version']}"


def _classes(images: "pd.DataFrame", before: "pd.DataFrame | None", title: str) -> Block:
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
        changes = counts.sub(_counts(before), fill_value=0).astype(int)
        caption += f"; in brackets, the change since {title}"
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


def _changes(images: "pd.DataFrame", before: "pd.DataFrame", title: str) -> Block:
    """What is new, gone and labelled otherwise; an image is its pixels."""
    new = images.drop_duplicates("pixels").set_index("pixels")
    old = before.drop_duplicates("pixels").set_index("pixels")
    both = new.join(old, how="inner", rsuffix="_before")
    counts = {
        "new images": len(new.index.difference(old.index)),
        "images that are gone": len(old.index.difference(new.index)),
        "images with another label": int((both.label != both.label_before).sum()),
        "images in another split": int((both.split != both.split_before).sum()),
    }
    rows = [cells(name, f"{count:,}") for name, count in counts.items()]
    return Table(f"Since {title}", rows, numbers=frozenset({1}))


def _properties(images: "pd.DataFrame") -> Block:
    rows = [
        cells(name, f"{of.min():,} to {of.max():,}, median {of.median():,.0f}")
        for name, of in (
            ("width", images.width),
            ("height", images.height),
            ("bytes", images.bytes),
        )
    ]
    endings = images.file.str.rsplit(".", n=1).str[-1].str.lower()
    for name, values in (("mode", images["mode"]), ("files", endings)):
        counts = values.value_counts()
        texts = [f"{value} ({count:,})" for value, count in counts.items()]
        rows.append(cells(name, ", ".join(texts)))
    return Table("The images", rows)


def _source(files: Files) -> RawDataset:
    config = files.manifest("validate")["plan"]["config"]
    columns = {name: config[f"data.{name}"] for name in ("image_column", "label_column")}
    form = files.manifest("pull")["facts"]["format"]
    return open_format(form, files.folders["pull"] / "data", **columns)


def _set_aside(folder: Path, source: RawDataset | None) -> Iterator[Block]:
    """The images that the checks have set aside, with the reasons."""
    import pandas as pd

    bad = pd.read_parquet(folder / image_table.SET_ASIDE)
    if bad.empty:
        return
    shown = bad.head(SHOWN)
    yield Heading("Set aside by the checks")
    yield Text(f"{len(shown)} of {len(bad):,} images.")
    if source is None:
        yield Table("Images", [cells(*row) for row in zip(shown.path, shown.reason, strict=True)])
        return
    encoded = thumbnails.read_encoded(source, zip(shown.file, shown.row, strict=True))
    described = zip(encoded, shown.path, shown.reason, strict=True)
    yield Gallery(
        [
            Picture([thumbnails.of_encoded(data, path)], [Text(reason, "bad"), Text(path, "path")])
            for data, path, reason in described
        ]
    )


def _near_duplicates(
    folder: Path, images: "pd.DataFrame", source: RawDataset | None
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
    encoded = dict(zip(paths, thumbnails.read_encoded(source, wanted), strict=True))
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
    yield Text(f"{len(shown)} of {len(listed):,} pairs.")
    yield Gallery(pictures)
