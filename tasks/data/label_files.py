"""Reads lists of images: CSV, TSV or JSONL files with a row for each image and its class."""

import csv
import posixpath
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from rich.markup import escape

from retrain.runs import console
from retrain.workload import Data
from tasks.data import corrections
from tasks.data.listing import ALIASES, label_of, some, split_of

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".csv", ".tsv", ".jsonl")
# Files beside images that tell more about them, as the Hugging Face hub names them.
METADATA = tuple(f"metadata{suffix}" for suffix in (*SUFFIXES, ".parquet"))
ASK = "Set data.format to folders if the folders are the classes"
# The columns of a list as it is read, and their usual names in small letters and digits.
USUAL = {
    "file": (
        "path",
        "filepath",
        "imagepath",
        "filename",
        "imagename",
        "file",
        "image",
        "img",
        "imageid",
        "id",
    ),
    "label": ("label", "labels", "class", "classname", "category"),
    "split": ("split",),
}
# One of these is the class if there is no other.
KINDS = {"breed", "choice", "diagnosis", "species", "target", "variety"}
# What a model has answered has such a column, and is no list beside another.
ANSWERS = {"confidence", "prediction", "predicted", "probability", "score"}


def read(
    root: Path, name: str, image_column: str | None = None, label_column: str | None = None
) -> "pd.DataFrame":
    """Reads a file that may be a list.

    Args:
        root: The folder of the data.
        name: The file in it; a `.parquet` is read too.
        image_column: The column with the images' paths; None if it has a usual name.
        label_column: The column with their classes; None if it has a usual name.

    Returns:
        A row for each image: `file` as it is written there, `label` and `split` as far as the file
        has them, and the user's own columns. The names of all are in `attrs["columns"]`.

    Raises:
        ValueError: The file is no table.
    """
    wanted = {"file": image_column, "label": label_column}
    try:
        rows = _read_table(root / name, {*wanted.values()})
    except (ValueError, OSError) as error:  # those of pandas and pyarrow are such
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{name} cannot be read as a table ({reason}): mend or remove it. {ASK}."
        ) from None
    columns = rows.columns = [str(column).strip() for column in rows.columns]
    usual = {_simple(column): column for column in reversed(columns)}
    kinds = KINDS & usual.keys()
    known = USUAL | {"label": (*USUAL["label"], *(kinds if len(kinds) == 1 else ()))}
    found = {
        key: wanted.get(key) or next((usual[each] for each in names if each in usual), None)
        for key, names in known.items()
    }
    given = {column: key for key, column in found.items() if column in columns}
    # A column of the user's own that has one of our names means nothing.
    others = rows.columns.difference([*USUAL, *given], sort=False)
    rows = rows[[*given, *others]].rename(columns=given)
    rows.attrs["columns"] = columns
    return rows


def _simple(column: str) -> str:
    """The name of a column in small letters and digits: `File Name` and `file_name` are alike."""
    return re.sub("[^a-z0-9]", "", column.lower())


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
        # A column has one type: read in parts, patient 007 would be 7 in some of them.
        "low_memory": False,
    }
    texts = KINDS.union(columns, *USUAL.values())
    names = pd.read_csv(path, nrows=0, **options).columns
    _refuse_long_rows(path, options["sep"])
    as_text = {name: str for name in names if {name.strip(), _simple(name)} & texts}
    rows: pd.DataFrame = pd.read_csv(path, dtype=as_text, **options)
    return rows


def _refuse_long_rows(path: Path, separator: str) -> None:
    """Refuses a list with a row that has more cells than the header.

    Pandas would leave the last ones out: of `1.png,dog, large` the class would be `dog`.

    Raises:
        ValueError: There is such a row.
    """
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file, delimiter=separator, skipinitialspace=True)
        columns = len(next(rows, []))
        for row in rows:
            if any(row[columns:]):
                raise ValueError(
                    f"line {rows.line_num} has {len(row)} cells, and the header {columns}: put a "
                    f"text with {separator!r} in it into quotes"
                )


def _refuse_images_as_columns(tables: "Mapping[str, pd.DataFrame]", images: Sequence[str]) -> None:
    """Refuses lists without a header: the name of a column is that of an image.

    Raises:
        ValueError: There is such a list.
    """
    names = {*images, *map(posixpath.basename, images)}
    for name, table in tables.items():
        if found := names.intersection(table.columns):
            raise ValueError(
                f"{name} has no header: its first line names {min(found)}. Write the names of the "
                "columns into a line above, such as path,label."
            )


def list_images(
    root: Path, files: Sequence[str], images: Sequence[str], data: Data
) -> "pd.DataFrame | None":
    """The images that the lists in the data name.

    Which of two descriptions counts is never guessed: unless `data.format` is `table`, the user is
    asked if lists and folders contradict each other, or a file may be a list and is not understood.

    Args:
        root: The folder of the data.
        files: All of its files.
        images: Those that are images.
        data: `format`; `image_column` and `label_column`, as `read` has them; and `label_names`,
            a file that is no list.

    Returns:
        A row for each image in order of the files: `file`, `label` and `split` (None where there is
        none), and the user's own columns. None if there is no list.

    Raises:
        ValueError: A file cannot be read, an image is not there, or has two classes or splits; or
            the user has to say what counts.
    """
    no_lists = (corrections.FILE, data.label_names)
    tables = {
        name: read(root, name, data.image_column, data.label_column)
        for name in files
        if name.lower().endswith(SUFFIXES) and name not in no_lists
    }
    _refuse_images_as_columns(tables, images)
    understood = {name for name in tables if {"file", "label"} <= {*tables[name].columns}}
    answers = {name for name in understood if ANSWERS & {*map(_simple, tables[name].columns)}}
    lists = {name: tables[name] for name in tables if name in (understood - answers or answers)}
    unknown = [name for name in tables if name not in understood and not is_metadata(name)]
    listed = _list(lists, files, images) if lists else None
    count = 0 if listed is None else len(listed)
    if unknown and count < len(images) and (data.format != "table" or not lists):
        alone = f", set data.format to table if {some([*lists])} alone counts" if lists else ""
        raise ValueError(
            f"{unknown[0]} may list the images, but which of its columns "
            f"({', '.join(tables[unknown[0]].attrs['columns'])}) are the path and the class is not "
            f"known: name them with data.image_column and data.label_column{alone}. {ASK}."
        )
    if listed is None or (data.format != "table" and _tell_more(lists, listed, images)):
        return None
    if left_out := [name for name in (*answers, *unknown) if name not in lists]:
        console.say(f"Left out: {some(left_out)}, since {some([*lists])} lists the images")
    return listed


def is_metadata(name: str) -> bool:
    """Whether a file tells more about the images beside it, by its name."""
    return posixpath.basename(name) in METADATA


def _list(
    lists: Mapping[str, "pd.DataFrame"], files: Sequence[str], images: Sequence[str]
) -> "pd.DataFrame":
    """The images in lists, each once, in order of the files."""
    import pandas as pd

    known = _by_last_part(files, images)
    for name, rows in lists.items():
        rows["file"] = [_file_of(path, name, known) for path in rows["file"]]
        rows["label"] = _labels_of(rows["label"], name)
        given = rows.get("split", [None] * len(rows))
        rows["split"] = [
            _split_of(split, name, file) for split, file in zip(given, rows["file"], strict=True)
        ]
    listed = pd.concat(lists).sort_values("file", kind="stable")
    described = listed[["file", "label", "split"]].drop_duplicates()
    twice = described[described["file"].duplicated(keep=False)].iloc[:2]
    if len(twice):
        column = "label" if twice["label"].nunique(dropna=False) > 1 else "split"
        first, other = twice[column]
        where = " and ".join(dict.fromkeys(name for name, _ in twice.index))
        raise ValueError(
            f"{twice['file'].iloc[0]} is listed with two values of {column}, {first} and {other}, "
            f"in {where}: an image has one."
        )
    return listed.drop_duplicates("file")


def _labels_of(values: Iterable[Any], name: str) -> list[str | None]:
    """The classes in a list; whole numbers that a program wrote as floats are whole numbers."""
    labels = [label_of(value) for value in values]
    given = [label for label in labels if label is not None]
    if given and all(re.fullmatch(r"-?\d+\.0+", label) for label in given):
        labels = [label and label.partition(".")[0] for label in labels]
        console.say(escape(f"{name}: its classes are whole numbers, {given[0]} is one of them"))
    return labels


def _tell_more(lists: Iterable[str], listed: "pd.DataFrame", images: Sequence[str]) -> bool:
    """Whether lists only tell more about images in class folders.

    Raises:
        ValueError: There are class folders, and the lists say otherwise: the user is asked.
    """
    above = {name: {label_of(part) for part in name.split("/")[:-1]} for name in images}
    folders = set[str | None]().union(*above.values()) - ALIASES.keys()
    pairs = zip(listed["file"], listed["label"], strict=True)
    differing = [f"{name} {label}" for name, label in pairs if label not in above.get(name, ())]
    is_other = differing and not folders.isdisjoint(listed["label"])
    if len(folders) < 2 or not (is_other or len(listed) < len(images)):
        return False
    if not differing and all(map(is_metadata, lists)):
        return True
    fault = f"lists {len(listed):,} of {len(images):,} images"
    if is_other:
        fault = f"calls {differing[0]}, and its folder says otherwise"
    raise ValueError(
        f"{some([*lists])} {fault}: which counts? Set data.format to table if the list does. {ASK}."
    )


def _split_of(value: Any, name: str, file: str) -> str | None:
    """The split of an image: what its list says, or else the name of the list, or its folder."""
    if value is None or value != value or value == "":
        return split_of(name.rpartition(".")[0]) or ALIASES.get(file.split("/")[0].lower())
    if (split := ALIASES.get(str(value).strip().lower())) is None:
        raise ValueError(f"{name}: {file} is in a split {value!r}: name train, val or test.")
    return split


def _by_last_part(files: Sequence[str], images: Sequence[str]) -> dict[str, list[tuple[str, str]]]:
    """The files, each with how it may be written, by the last part of that.

    An image may be written without its suffix. A name may be written in two forms of Unicode: macOS
    takes apart what others join.
    """
    known = defaultdict[str, list[tuple[str, str]]](list)
    stems = [(posixpath.splitext(file)[0], file) for file in images]
    for written, file in chain(zip(files, files, strict=True), stems):
        name = unicodedata.normalize("NFC", written)
        known[posixpath.basename(name)].append((name, file))
    return known


def _file_of(path: Any, name: str, known: Mapping[str, Sequence[tuple[str, str]]]) -> str:
    """The file that a path in a list means.

    Args:
        path: It, as the list has it.
        name: The list.
        known: The files of the data, as `_by_last_part` gives them.

    Raises:
        ValueError: No file or several end with it.
    """
    text, found = _files_of(path, name, known)
    if len(found) > 1:
        raise ValueError(f"{name} names {text}, which may be {' or '.join(found[:2])}. {ASK}.")
    if not found:
        raise ValueError(
            f"{name} names {' '.join(text.split()):.200}, which is no file of data.path: write the "
            f"path of each image from the folder of {name} on, or name its column with "
            f"data.image_column. {ASK}."
        )
    return found[0]


def _files_of(
    path: Any, name: str, known: Mapping[str, Sequence[tuple[str, str]]]
) -> tuple[str, list[str]]:
    """A path as it is understood; and the files that it may mean, as `_file_of` takes it.

    It is from the list's folder on, or the end of a name. Of a URL, or a path on another machine,
    the longest end counts with which a file ends.
    """
    text = unicodedata.normalize("NFC", str(path).strip()).replace("\\", "/")
    is_elsewhere = re.match(r"/|\.\./|[a-zA-Z][\w+.-]*:/", text)
    if is_elsewhere:  # a URL quotes names
        text = unquote(text)
    listed = posixpath.normpath(text)
    above = unicodedata.normalize("NFC", posixpath.dirname(name))
    beside = posixpath.normpath(posixpath.join(above, text))
    files = known.get(posixpath.basename(listed), ())
    found = [file for written, file in files if written == beside]
    parts = listed.split("/")
    for first in range(len(parts) if is_elsewhere else 1):
        end = "/".join(["", *parts[first:]])
        found = found or [file for written, file in files if f"/{written}".endswith(end)]
    return text, found


def add_metadata(
    rows: "pd.DataFrame", root: Path, names: Sequence[str], images: Sequence[str]
) -> "pd.DataFrame":
    """Adds the user's own columns in metadata files to the rows of images.

    The images are named as in lists, and are those in the folder of their metadata file and below.

    Args:
        rows: A row for each image, with its `file`.
        root: The folder of the data.
        names: The metadata files.
        images: The images.

    Raises:
        ValueError: A file is no table, or does not name the images.
    """
    import pandas as pd

    if not names:
        return rows
    known, parts, lost = _by_last_part(images, images), [], []
    for name in names:
        own = read(root, name).drop(columns=["label", "split"], errors="ignore")
        if "file" not in own.columns:
            raise ValueError(f"{name} has no column file_name, but {', '.join(own.columns)}.")
        above, written = name.removesuffix(posixpath.basename(name)), own["file"].astype(str)
        meant = [_files_of(path, name, known)[1] for path in written]
        below = [[file for file in files if file.startswith(above)] for files in meant]
        own["file"] = [files[0] if len(files) == 1 else None for files in below]
        is_lost = own["file"].isna() | own["file"].duplicated()
        lost += written[is_lost].tolist()
        parts.append(own[~is_lost])
    described = pd.concat(parts).drop_duplicates("file").set_index("file")
    if lost:
        as_matrix = f"rows of {some(names)} that name no image, several, or one again"
        console.say(f"Left out ({len(lost):,}): {as_matrix}: {some(lost)}")
    if without := [file for file in rows["file"] if file not in described.index]:
        console.say(f"Images without a row in {some(names)} ({len(without):,}): {some(without)}")
    return rows.join(described, on="file")
