"""Reads lists of images: CSV, TSV or JSONL files with a row for each image and its class."""

import os
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.data.splits import ALIASES, label_of, split_of

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".csv", ".tsv", ".jsonl")
# Files beside images that tell more about them, as the Hugging Face hub names them.
METADATA = tuple(f"metadata{suffix}" for suffix in (*SUFFIXES, ".parquet"))
ASK = "Set data.format to folders if the folders are the classes"
# The columns of a list as it is read, and their usual names in small letters.
USUAL = {
    "file": ("path", "file_name", "filename", "filepath", "file", "image"),
    "label": ("label", "labels", "class", "category"),
    "split": ("split",),
}


@dataclass(frozen=True)
class ImageList:
    """A file that lists images.

    Attributes:
        name: Relative to the data.
        rows: A row for each image: `file` as it is written there, `label` and `split` as far as the
            file has them, and the user's own columns.
    """

    name: str
    rows: "pd.DataFrame"

    @property
    def has_classes(self) -> bool:
        """Whether it has the path and the class of each image."""
        return {"file", "label"} <= {*self.rows.columns}


def read(
    root: Path, name: str, image_column: str | None = None, label_column: str | None = None
) -> ImageList:
    """Reads a file that may be a list; without a `file` in its columns it is none.

    Args:
        root: The folder of the data.
        name: The file in it; a `.parquet` is read too.
        image_column: The column with the images' paths; None if it has a usual name.
        label_column: The column with their classes; None if it has a usual name.

    Raises:
        ValueError: The file is no table.
    """
    try:
        rows = _read_table(root / name, {image_column, label_column})
    except (ValueError, OSError) as error:  # those of pandas and pyarrow are such
        reason = " ".join(str(error).split())
        raise ValueError(f"{name} cannot be read as a table: {reason}") from None
    rows.columns = [str(column).strip() for column in rows.columns]
    usual = {column.lower(): column for column in reversed(rows.columns)}
    wanted = {"file": image_column, "label": label_column, "split": None}
    found = {
        key: column if column else next((usual[n] for n in USUAL[key] if n in usual), None)
        for key, column in wanted.items()
    }
    given = {column: key for key, column in found.items() if column in rows.columns}
    # A column of the user's own that has one of our names means nothing.
    others = rows.columns.difference([*USUAL, *given], sort=False)
    return ImageList(name, rows[[*given, *others]].rename(columns=given))


def _read_table(path: Path, columns: set[str | None]) -> "pd.DataFrame":
    import pandas as pd

    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return pd.read_parquet(path)
    if suffix == ".jsonl":
        return pd.read_json(path, lines=True, dtype=False, convert_dates=False)
    with path.open(encoding="utf-8-sig") as file:
        header = file.readline()
    options: dict[str, Any] = {
        "sep": max(",;\t", key=header.count),
        "encoding": "utf-8-sig",
        "skipinitialspace": True,
        "index_col": False,
        # Names of classes may be numbers, `null` or `NA`.
        "keep_default_na": False,
        "na_values": [""],
    }
    texts = {name for usual in USUAL.values() for name in usual} | columns
    names = pd.read_csv(path, nrows=0, **options).columns
    as_text = {name: str for name in names if {name.strip(), name.strip().lower()} & texts}
    rows: pd.DataFrame = pd.read_csv(path, dtype=as_text, **options)
    return rows


def join(root: Path, names: Sequence[str], lists: Sequence[ImageList]) -> "pd.DataFrame":
    """The rows of all lists of the data, with the files that their paths mean.

    Args:
        root: The folder of the data.
        names: Its files.
        lists: Some of these, each with the column `file`.

    Returns:
        A row for each image that is listed: `file`, `label` and `split` (None where there is none),
        and the user's own columns.

    Raises:
        ValueError: An image is not there or outside the folder, or has two classes or splits.
    """
    import pandas as pd

    find, parts = Finder(root, names), []
    for each in lists:
        rows = each.rows.copy()
        rows["file"] = [find(path, each.name) for path in rows["file"]]
        rows["label"] = [label_of(value) for value in rows.get("label", [None] * len(rows))]
        in_list = rows.get("split", [None] * len(rows))
        stem = each.name.rpartition(".")[0]
        rows["split"] = [
            _split(value, each.name, stem, file)
            for value, file in zip(in_list, rows["file"], strict=True)
        ]
        parts.append(rows)
    listed = pd.concat(parts, ignore_index=True)
    for column in ("label", "split"):
        pairs = listed[["file", column]].drop_duplicates()
        for file, values in pairs[pairs["file"].duplicated(keep=False)].groupby("file"):
            first, other = values[column][:2]
            where = next(each.name for each, part in zip(lists, parts, strict=True)
                         if (part["file"] == file).any())  # fmt: skip
            raise ValueError(
                f"{where} lists {file} with two values of {column}, {first} and {other}: an image "
                "has one."
            )
    return listed.drop_duplicates("file")


def _split(value: Any, name: str, stem: str, file: str) -> str | None:
    if value is None or value != value or value == "":
        return split_of(stem) or ALIASES.get(file.split("/")[0].lower())
    if (split := ALIASES.get(str(value).strip().lower())) is None:
        raise ValueError(f"{name}: {file} is in a split {value!r}: name train, val or test.")
    return split


def find(
    root: Path, names: Sequence[str], image_column: str | None, label_column: str | None
) -> list[ImageList]:
    """The files that list the images with their classes.

    Args:
        root: The folder of the data.
        names: The files that may be lists.
        image_column: The column with the images' paths; None if it has a usual name.
        label_column: The column with their classes; None if it has a usual name.

    Raises:
        ValueError: There is none, or one cannot be read.
    """
    lists = [read(root, name, image_column, label_column) for name in names]
    if found := [each for each in lists if each.has_classes]:
        return found
    raise ValueError(
        "data.path holds no CSV, TSV or JSONL file with a column for the path (`path`, "
        "`file_name`, …) and one for the class (`label`, `class`, …); data.image_column and "
        "data.label_column name others."
    )


def find_unasked(
    root: Path,
    files: Sequence[str],
    images: Sequence[str],
    names: Sequence[str],
    image_column: str | None,
    label_column: str | None,
) -> list[ImageList]:
    """The lists, if they and not the folders say the classes.

    Which of two descriptions counts is never guessed: if lists and folders contradict each other,
    or a file may be a list and is not understood, the user is asked.

    Args:
        root: The folder of the data.
        files: All of its files.
        images: Those that are images.
        names: Those that may be lists.
        image_column: The column with the images' paths; None if it has a usual name.
        label_column: The column with their classes; None if it has a usual name.

    Raises:
        ValueError: The user has to say which counts.
    """
    read_all = [_read_asking(root, name, image_column, label_column) for name in names]
    lists = [each for each in read_all if each.has_classes]
    if not lists:
        return []
    above = {name: {label_of(part) for part in name.split("/")[:-1]} for name in images}
    folders = set().union(*above.values()) - ALIASES.keys()
    try:
        listed = join(root, files, lists)
    except ValueError as error:
        raise ValueError(f"{error} {ASK}." if len(folders) > 1 else str(error)) from None
    if len(folders) < 2:  # there are no folders of classes
        return lists
    fault, named = None, ", ".join(each.name for each in lists[:3])
    pairs = list(zip(listed["file"], listed["label"], strict=True))
    differing = [(name, label) for name, label in pairs if label not in above.get(name, ())]
    if len(listed) < len(images):
        fault = f"{named} lists {len(listed):,} of {len(images):,} images"
    elif differing and folders & {label for _, label in pairs}:
        name, label = differing[0]
        fault = f"{named} calls {name} {label}, and its folder says otherwise"
    if fault:
        table = "Set data.format to table if the list does"
        raise ValueError(f"{fault}: which counts? {table}. {ASK}.")
    return lists


def _read_asking(
    root: Path, name: str, image_column: str | None, label_column: str | None
) -> ImageList:
    """Reads a list, or a metadata file; asks about another file."""
    try:
        found = read(root, name, image_column, label_column)
    except ValueError as error:
        raise ValueError(f"{error}. {ASK}, or remove the file.") from None
    if not found.has_classes and name.rpartition("/")[2] not in METADATA:
        columns = ", ".join(map(str, found.rows.columns))
        raise ValueError(
            f"{name} may list the images, but which of its columns ({columns}) are the path "
            "and the class is not known: name them with data.image_column and "
            f"data.label_column. {ASK}."
        )
    return found


def read_metadata(root: Path, names: Sequence[str], images: Sequence[str]) -> dict[str, Any]:
    """The user's own columns in metadata files beside images, of each image.

    Args:
        root: The folder of the data.
        names: The metadata files.
        images: The image files.

    Raises:
        ValueError: A file is no table, or does not name the images.
    """
    import pandas as pd

    parts = []
    for each in (read(root, name) for name in names):
        if "file" not in each.rows.columns:
            columns = ", ".join(map(str, each.rows.columns))
            raise ValueError(f"{each.name} has no column file_name, but {columns}.")
        above = each.name.removesuffix(each.name.rpartition("/")[2])
        rows = each.rows.drop(columns=["label", "split"], errors="ignore")
        parts.append(rows.assign(file=above + rows["file"].astype(str)))
    joined = pd.concat(parts, ignore_index=True).drop_duplicates("file").set_index("file")
    return columns_of(joined.reindex([*images]))


def columns_of(rows: "pd.DataFrame") -> dict[str, Any]:
    """The columns of a data frame; those with values of several types as text."""
    columns: dict[str, Any] = {}
    for name in rows.columns:
        values = [None if value != value else value for value in rows[name].tolist()]  # NaN
        kinds = {type(value) for value in values} - {type(None)}
        if len(kinds) > 1 and not kinds <= {int, float}:
            values = [None if value is None else str(value) for value in values]
        if not kinds & {dict, list}:
            columns[str(name)] = values
    return columns


class Finder:
    """Finds the listed images among the files of the data."""

    def __init__(self, root: Path, names: Sequence[str]) -> None:
        """Reads nothing yet.

        Args:
            root: The folder of the data.
            names: Its files.
        """
        self._root, self._real = root, cache(os.path.realpath)
        # A name may be written in two forms of Unicode: macOS takes apart what others join.
        self._names = {unicodedata.normalize("NFC", name): name for name in names}
        self._by_last: dict[str, list[str]] = defaultdict(list)
        for name in self._names:
            self._by_last[name.rpartition("/")[2]].append(name)

    def __call__(self, path: Any, name: str) -> str:
        """The file that a path means: from the list's folder on, or the only one that ends so.

        Raises:
            ValueError: It leads out of the data, or no file or several end with it.
        """
        text = unicodedata.normalize("NFC", str(path).strip())
        listed = os.path.normpath(text.replace("\\", "/"))
        if "://" in text or listed.startswith(("../", "/")) or listed[1:2] == ":":
            raise ValueError(
                f"{name} names {text:.200}, which is no file of data.path: write the path of each "
                f"image from the folder of {name} on."
            )
        beside = os.path.normpath(f"{os.path.dirname(name)}/{listed}".lstrip("/"))  # noqa: PTH120
        ends = [
            each
            for each in self._by_last[listed.rpartition("/")[2]]
            if f"/{each}".endswith(f"/{listed}")
        ]
        found = [beside] if beside in self._names else ends
        if len(found) > 1:
            raise ValueError(f"{name} names {listed}, which may be {' or '.join(found[:2])}.")
        if not found:
            raise ValueError(f"{name} names {listed}, which is not in data.path.")
        file = self._names[found[0]]
        place = self._root / file
        real = os.path.realpath(place) if place.is_symlink() else self._real(place.parent)
        if not f"{real}/".startswith(f"{self._real(self._root)}/"):
            raise ValueError(f"{name} names {listed}, which is a link out of data.path.")
        return file
