"""Reads tables that list images with their classes: CSV, TSV or JSONL files, a row for each image.

A file that is not listed is no image of the data.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tasks.data.listing import ALIASES, split_of_folder, split_of_parquet

# The columns of a table as it is read; the user's own have their own names.
PATH, LABEL, SPLIT = "file_name", "label", "split"
# Names of the columns, in small letters, the usual one first.
USUAL = {
    PATH: ("path", "file_name", "filename", "filepath", "file", "image"),
    LABEL: ("label", "labels", "class", "category"),
    SPLIT: ("split",),
}
SUFFIXES = (".csv", ".tsv", ".jsonl")
MOST = 100  # files; more of them accompany an image each
Row = dict[str, Any]


def are_there(root: Path, names: Sequence[str], has_class_folders: bool = False) -> bool:
    """Whether a table in a folder lists images.

    A table that only repeats the names of the class folders tells nothing new, and is none.

    Args:
        root: The folder.
        names: Its files.
        has_class_folders: Whether the images may be those of class folders; then a table that is
            broken counts as another file.

    Raises:
        ValueError: A table is broken, or what it lists is.
    """
    try:
        if not any(_tables(root, names, None, None)):
            return False
    except ValueError:
        if has_class_folders:
            return False
        raise
    try:
        rows = read(root, names, None, None)
    except ValueError as error:
        hint = " If the folders are the classes, set data.format to folders."
        raise ValueError(f"{error}{hint * has_class_folders}") from None
    return not all(row[LABEL] in name.split("/")[:-1] for name, row in rows.items())


def read(
    root: Path, names: Sequence[str], image_column: str | None, label_column: str | None
) -> Mapping[str, Row]:
    """Reads all tables of a folder that list images.

    Args:
        root: The folder.
        names: Its files.
        image_column: The column with the images' paths; None if it has a usual name.
        label_column: The column with their classes; None if it has a usual name.

    Returns:
        By the file of each image, relative to the folder: `file_name` (the same), `label`, `split`,
        and the user's own columns.

    Raises:
        ValueError: There is none, one is broken, an image is not there or outside the folder, or
            has two classes.
    """
    find = Finder(root, names)
    rows: dict[str, Row] = {}
    tables = list(_tables(root, names, image_column, label_column))
    if not tables:
        raise ValueError(
            "data.path holds no CSV, TSV or JSONL file with a column for the path (`path`, "
            "`file_name`, …) and one for the class (`label`, `class`, …); data.image_column and "
            "data.label_column name others."
        )
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


class Finder:
    """Finds the listed images among the files of the data."""

    def __init__(self, root: Path, names: Sequence[str]) -> None:
        """Reads nothing yet.

        Args:
            root: The folder of the data.
            names: Its files.
        """
        self._root, self._real = root, cache(os.path.realpath)
        self._names = {*names}
        self._by_last: dict[str, list[str]] = defaultdict(list)
        for name in names:
            self._by_last[name.rpartition("/")[2]].append(name)

    def __call__(self, path: Any, listing: str) -> str:
        """The file that a path means: from the table's folder on, or the only one that ends so.

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


def candidates(names: Iterable[str]) -> Sequence[str]:
    """The files that may list images, by their names."""
    found = [name for name in names if name.lower().endswith(SUFFIXES)]
    return found if len(found) <= MOST else ()


def columns_of(
    names: Iterable[str], image_column: str | None, label_column: str | None
) -> dict[str, str] | None:
    """The columns of a table with the path, the class and perhaps the split, by what they hold.

    Returns:
        None if the table has no column for the path, or none for the class.
    """
    by_name = {name: name for name in names}
    usual = {name.lower(): name for name in reversed(by_name)}
    wanted = {PATH: image_column, LABEL: label_column, SPLIT: None}
    found = {
        key: by_name.get(name)
        if name
        else next((usual[other] for other in USUAL[key] if other in usual), None)
        for key, name in wanted.items()
    }
    if found[PATH] is None or found[LABEL] is None:
        return None
    return {key: name for key, name in found.items() if name is not None}


def _split(value: Any, listing: str, name: str) -> str | None:
    if value in (None, ""):
        return split_of_parquet(listing.rpartition(".")[0]) or split_of_folder(name)
    if str(value).lower() not in ALIASES:
        raise ValueError(f"{listing}: {name} is in a split {value!r}: name train, val or test.")
    return ALIASES[str(value).lower()]


def _tables(
    root: Path, names: Iterable[str], image_column: str | None, label_column: str | None
) -> Iterator[tuple[str, Sequence[Row]]]:
    """The files that list images, and their rows."""
    for name in candidates(names):
        try:
            rows = _rows(root / name, image_column, label_column)
        except ValueError as error:
            raise ValueError(f"{name} cannot be read as a table: {error}") from None
        if rows is not None:
            yield name, rows


def _rows(path: Path, image_column: str | None, label_column: str | None) -> Sequence[Row] | None:
    """The rows of a table, if it has columns for the path and the class."""
    import pyarrow as pa
    from pyarrow import csv, json

    if path.suffix.lower() == ".jsonl":
        table = json.read_json(path)
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
    columns = columns_of(table.column_names, image_column, label_column)
    if columns is None:
        return None
    return [row | {key: row[name] for key, name in columns.items()} for row in table.to_pylist()]
