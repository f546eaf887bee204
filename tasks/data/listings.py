"""Reads files that list images with their classes.

- `table`: a CSV, TSV or JSONL file with a row for each image: its path and its class
- `coco`: a JSON file of COCO, with `images`, `annotations` and `categories`
- `label_studio`: the JSON export of Label Studio, with `choices`
- `cvat`: the export "CVAT for images", an XML file with tags of images

Each becomes a row for each image and class. Everything else is the same for all: where the images
are, which split they are in, and that an image has one class. A file that is not listed is no image
of the data.
"""

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

from tasks.data.listing import ALIASES, split_of_folder, split_of_parquet

# The columns of a listing, whatever its format; the user's own have their own names.
PATH, LABEL, SPLIT = "file_name", "label", "split"
# Names of the columns of a table, in small letters, the usual one first.
USUAL = {
    PATH: ("path", "file_name", "filename", "filepath", "file", "image"),
    LABEL: ("label", "labels", "class", "category"),
    SPLIT: ("split",),
}
SUFFIXES = {
    "table": (".csv", ".tsv", ".jsonl"),
    "coco": (".json",),
    "label_studio": (".json",),
    "cvat": (".xml",),
}
ANY_SUFFIX = tuple({suffix for suffixes in SUFFIXES.values() for suffix in suffixes})
HOLDS = {
    "table": "CSV, TSV or JSONL file with a column for the path (`path`, `file_name`, …) and one "
    "for the class (`label`, `class`, …); data.image_column and data.label_column name others",
    "coco": "JSON file with `images`, `annotations` and `categories`",
    "label_studio": "JSON file with a list of tasks that have `data` and `annotations`",
    "cvat": "XML file with `annotations` of images",
}

MOST = 100  # files; more of a kind accompany an image each
Row = dict[str, Any]
# What is raised where a file has not the form that it seems to have.
FAULTS = (KeyError, TypeError, ValueError, AttributeError, ElementTree.ParseError)


def recognise(root: Path, names: Sequence[str], has_class_folders: bool = False) -> str | None:
    """The format in which a file of a folder lists images; None if there is none.

    A table that only repeats the names of the class folders tells nothing new, and is none.

    Args:
        root: The folder.
        names: Its files.
        has_class_folders: Whether the images may be those of class folders; then a file that is
            broken counts as another one.

    Raises:
        ValueError: A file is broken, or what it lists is.
    """
    try:
        some = [name for name in names if name.lower().endswith(ANY_SUFFIX)]
        found = [form for form in SUFFIXES if any(_tables(root, some, form, None, None))]
    except ValueError:
        if has_class_folders:
            return None
        raise
    if not found:
        return None
    try:
        rows = read(root, names, found[0], None, None)
    except ValueError as error:
        hint = " If the folders are the classes, set data.format to folders."
        raise ValueError(f"{error}{hint * has_class_folders}") from None
    repeats = all(row[LABEL] in name.split("/")[:-1] for name, row in rows.items())
    return None if repeats else found[0]


def read(
    root: Path,
    names: Sequence[str],
    form: str,
    image_column: str | None,
    label_column: str | None,
) -> Mapping[str, Row]:
    """Reads all files of a folder that list images in a format.

    Args:
        root: The folder. Of its files, the `candidates` have to be there.
        names: Its files.
        form: The format, a key of `SUFFIXES`.
        image_column: The column with the images' paths; None if it has a usual name.
        label_column: The column with their classes; None if it has a usual name.

    Returns:
        By the file of each image, relative to the folder: `file_name` (the same), `label`, `split`,
        and the user's own columns.

    Raises:
        ValueError: There is none, one is broken, an image is not there or outside the folder, or
            has two classes.
    """
    find = _Finder(root, names)
    rows: dict[str, Row] = {}
    tables = list(_tables(root, names, form, image_column, label_column))
    if not tables:
        raise ValueError(f"data.path holds no {HOLDS[form]}.")
    for listing, table in tables:
        for row in table:
            name = find(row[PATH], listing)
            label = None if row[LABEL] in (None, "") else str(row[LABEL])
            split = _split(row.get(SPLIT), listing, name)
            known = rows.setdefault(name, row | {PATH: name, LABEL: label, SPLIT: split})
            for value, column in ((label, LABEL), (split, SPLIT)):
                if known[column] != value:
                    raise ValueError(
                        f"{listing} lists {name} with two values of {column}, {known[column]} and "
                        f"{value}: an image has one."
                    )
    return rows


class _Finder:
    """Finds the listed images among the files of the data."""

    def __init__(self, root: Path, names: Sequence[str]) -> None:
        self._root, self._real = root, cache(os.path.realpath)
        self._names = {*names}
        self._by_last: dict[str, list[str]] = defaultdict(list)
        for name in names:
            self._by_last[name.rpartition("/")[2]].append(name)

    def __call__(self, path: Any, listing: str) -> str:
        """The file that a path means: from the listing's folder on, or the only one that ends so.

        Raises:
            ValueError: It leads out of the data, or no file or several end with it.
        """
        listed = os.path.normpath(str(path).replace("\\", "/"))
        if "://" in str(path) or listed.startswith(("../", "/")) or listed[1:2] == ":":
            raise ValueError(
                f"{listing} names {path!s:.200}, which is no file of data.path: write the path of "
                f"each image from the folder of {listing} on."
            )
        beside = os.path.normpath(f"{os.path.dirname(listing)}/{listed}".lstrip("/"))  # noqa: PTH120
        ends = [
            name
            for name in self._by_last[listed.rpartition("/")[2]]
            if f"/{name}".endswith(f"/{listed}")
        ]
        found = [beside] if beside in self._names else ends
        if len(found) > 1:
            raise ValueError(f"{listing} names {listed}, which may be {' or '.join(found[:2])}.")
        if not found:
            raise ValueError(f"{listing} names {listed}, which is not in data.path.")
        place = self._root / found[0]
        real = os.path.realpath(place) if place.is_symlink() else self._real(place.parent)
        if not f"{real}/".startswith(f"{self._real(self._root)}/"):
            raise ValueError(f"{listing} names {listed}, which is a link out of data.path.")
        return found[0]


def candidates(names: Iterable[str], form: str) -> Sequence[str]:
    """The files that may list images in a format, by their names."""
    found = [name for name in names if name.lower().endswith(SUFFIXES[form])]
    return found if len(found) <= MOST else ()


def _split(value: Any, listing: str, name: str) -> str | None:
    if value in (None, "", "default"):  # which CVAT writes where there are no subsets
        return split_of_parquet(listing.rpartition(".")[0]) or split_of_folder(name)
    if str(value).lower() not in ALIASES:
        raise ValueError(f"{listing}: {name} is in a split {value!r}: name train, val or test.")
    return ALIASES[str(value).lower()]


def _tables(
    root: Path,
    names: Iterable[str],
    form: str,
    image_column: str | None,
    label_column: str | None,
) -> Iterator[tuple[str, Sequence[Row]]]:
    """The files that list images in a format, and their rows."""
    for name in candidates(names, form):
        try:
            rows = READ[form](root / name, image_column, label_column)
        except FAULTS as error:
            reason = f"no {error}" if isinstance(error, KeyError) else error
            raise ValueError(f"{name} cannot be read as {form}: {reason}") from None
        if rows is not None:
            yield name, rows


def _table(path: Path, image_column: str | None, label_column: str | None) -> Sequence[Row] | None:
    """The rows of a CSV, TSV or JSONL file, if it has columns for the path and the class."""
    import pyarrow as pa
    from pyarrow import csv, json as json_lines

    if path.suffix.lower() == ".jsonl":
        table = json_lines.read_json(path)
    else:
        with path.open(encoding="utf-8-sig") as file:
            header = file.readline()
        delimiter = max(",;\t", key=header.count)
        usual = {name for names in USUAL.values() for name in names} | {image_column, label_column}
        names = [name.strip(' "\r\n') for name in header.split(delimiter)]
        as_text = {name: pa.string() for name in names if {name, name.lower()} & usual}
        table = csv.read_csv(
            path,
            parse_options=csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=csv.ConvertOptions(column_types=as_text),
        )
    columns = {name.lower(): name for name in reversed(table.column_names)}
    wanted = {PATH: image_column, LABEL: label_column, SPLIT: None}
    found = {
        key: name or next((columns[usual] for usual in USUAL[key] if usual in columns), None)
        for key, name in wanted.items()
    }
    if found[PATH] not in table.column_names or found[LABEL] not in table.column_names:
        return None
    return [
        row | {key: row[name] for key, name in found.items() if name} for row in table.to_pylist()
    ]


def _coco(path: Path, image_column: str | None, label_column: str | None) -> Sequence[Row] | None:
    """A row for each image and class of a JSON file of COCO; boxes and outlines do not count."""
    tree = json.loads(path.read_bytes())
    if not (isinstance(tree, dict) and {"images", "annotations", "categories"} <= tree.keys()):
        return None
    names = {category["id"]: category["name"] for category in tree["categories"]}
    labels: dict[Any, set[str | None]] = defaultdict(set)
    for annotation in tree["annotations"]:
        labels[annotation["image_id"]].add(names[annotation["category_id"]])
    return [
        image | {PATH: image[image_column or "file_name"], LABEL: label}
        for image in tree["images"]
        for label in sorted(labels[image["id"]], key=str) or [None]
    ]


def _label_studio(
    path: Path, image_column: str | None, label_column: str | None
) -> Sequence[Row] | None:
    """A row for each image and choice of a JSON export of Label Studio."""
    tree = json.loads(path.read_bytes())
    is_list = isinstance(tree, list) and tree and isinstance(tree[0], dict)
    if not (is_list and {"data", "annotations"} <= tree[0].keys()):
        return None
    rows = []
    for task in tree:
        place = str(task["data"][image_column or "image"])
        if place.startswith("/data/local-files/"):
            place = unquote(place.partition("?d=")[2])
        elif place.startswith("/data/upload/"):
            place = unquote(place.rpartition("/")[2])
        labels = {
            choice
            for annotation in task["annotations"]
            if not annotation.get("was_cancelled")
            for result in annotation["result"]
            if label_column in (None, result["from_name"])
            for choice in result["value"].get("choices", ())
        }
        rows += [task["data"] | {PATH: place, LABEL: label} for label in sorted(labels) or [None]]
    return rows


def _cvat(path: Path, image_column: str | None, label_column: str | None) -> Sequence[Row] | None:
    """A row for each image and tag of an XML export of CVAT; shapes do not count."""
    tree = ElementTree.parse(path).getroot()
    if tree.tag != "annotations":
        return None
    return [
        {PATH: image.attrib["name"], LABEL: label, SPLIT: image.get("subset")}
        for image in tree.iter("image")
        for label in sorted({tag.attrib["label"] for tag in image.iter("tag")}) or (None,)
    ]


READ = {"table": _table, "coco": _coco, "label_studio": _label_studio, "cvat": _cvat}
