"""Reads lists of images: CSV, TSV or JSONL files with a row for each image and its class."""

import posixpath
import unicodedata
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrain.workload import Data
from tasks.data import corrections
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
        has them, and the user's own columns.

    Raises:
        ValueError: The file is no table.
    """
    wanted = {"file": image_column, "label": label_column, "split": None}
    try:
        rows = _read_table(root / name, {*wanted.values()})
    except (ValueError, OSError) as error:  # those of pandas and pyarrow are such
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{name} cannot be read as a table ({reason}): mend or remove it. {ASK}."
        ) from None
    rows.columns = [str(column).strip() for column in rows.columns]
    usual = {column.lower(): column for column in reversed(rows.columns)}
    found = {
        key: column or next((usual[name] for name in USUAL[key] if name in usual), None)
        for key, column in wanted.items()
    }
    given = {column: key for key, column in found.items() if column in rows.columns}
    # A column of the user's own that has one of our names means nothing.
    others = rows.columns.difference([*USUAL, *given], sort=False)
    return rows[[*given, *others]].rename(columns=given)


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
    import pandas as pd

    lists, known = _read_lists(root, files, data), _by_last_part(files)
    if not lists:
        return None
    for name, rows in lists.items():
        rows["file"] = [_file_of(path, name, known) for path in rows["file"]]
        rows["label"] = [label_of(label) for label in rows["label"]]
        given = rows.get("split", [None] * len(rows))
        pairs = zip(given, rows["file"], strict=True)
        rows["split"] = [_split_of(split, name, file) for split, file in pairs]
    listed = pd.concat(lists.values(), ignore_index=True)
    told = listed[["file", "label", "split"]].drop_duplicates()
    for file, twice in told[told["file"].duplicated(keep=False)].groupby("file"):
        column = "label" if twice["label"].nunique(dropna=False) > 1 else "split"
        first, other, *_ = twice[column]
        raise ValueError(
            f"{file} is listed with two values of {column}, {first} and {other}: an image has one."
        )
    listed = listed.drop_duplicates("file").sort_values("file")
    if data.format != "table":
        _check_folders(", ".join([*lists][:3]), listed, images)
    return listed


def _read_lists(root: Path, files: Sequence[str], data: Data) -> dict[str, "pd.DataFrame"]:
    """The lists, by their names; each has the columns `file` and `label`."""
    lists, unknown = {}, []
    no_lists = (corrections.FILE, data.label_names)
    for name in files:
        if name.lower().endswith(SUFFIXES) and name not in no_lists:
            rows = read(root, name, data.image_column, data.label_column)
            if {"file", "label"} <= {*rows.columns}:
                lists[name] = rows
            elif posixpath.basename(name) not in METADATA:
                unknown.append(f"{name} may list the images, but which of its columns "
                               f"({', '.join(rows.columns)})")  # fmt: skip
    if unknown and (data.format != "table" or not lists):
        raise ValueError(
            f"{unknown[0]} are the path and the class is not known: name them with "
            f"data.image_column and data.label_column. {ASK}."
        )
    return lists


def _check_folders(lists: str, listed: "pd.DataFrame", images: Sequence[str]) -> None:
    """Asks what counts if there are folders of classes, and lists say otherwise."""
    above = {name: {label_of(part) for part in name.split("/")[:-1]} for name in images}
    folders = set[str | None]().union(*above.values()) - ALIASES.keys()
    pairs = zip(listed["file"], listed["label"], strict=True)
    differing = [f"{name} {label}" for name, label in pairs if label not in above.get(name, ())]
    fault = None
    if len(listed) < len(images):
        fault = f"lists {len(listed):,} of {len(images):,} images"
    elif differing and not folders.isdisjoint(listed["label"]):
        fault = f"calls {differing[0]}, and its folder says otherwise"
    if fault and len(folders) > 1:
        raise ValueError(
            f"{lists} {fault}: which counts? Set data.format to table if the list does. {ASK}."
        )


def _split_of(value: Any, name: str, file: str) -> str | None:
    """The split of an image: what its list says, or else the name of the list, or its folder."""
    if value is None or value != value or value == "":
        return split_of(name.rpartition(".")[0]) or ALIASES.get(file.split("/")[0].lower())
    if (split := ALIASES.get(str(value).strip().lower())) is None:
        raise ValueError(f"{name}: {file} is in a split {value!r}: name train, val or test.")
    return split


def _by_last_part(files: Sequence[str]) -> dict[str, dict[str, str]]:
    """The files by the last part of their names, and by their names.

    A name may be written in two forms of Unicode: macOS takes apart what others join.
    """
    known = defaultdict[str, dict[str, str]](dict)
    for file in files:
        name = unicodedata.normalize("NFC", file)
        known[posixpath.basename(name)][name] = file
    return known


def _file_of(path: Any, name: str, known: Mapping[str, Mapping[str, str]]) -> str:
    """The file that a path means: from the list's folder on, or the only one that ends so.

    Args:
        path: It, as the list has it.
        name: The list.
        known: The files of the data, as `_by_last_part` gives them.

    Raises:
        ValueError: No file or several end with it.
    """
    text = unicodedata.normalize("NFC", str(path).strip()).replace("\\", "/")
    listed = posixpath.normpath(text)
    above = unicodedata.normalize("NFC", posixpath.dirname(name))
    beside = posixpath.normpath(posixpath.join(above, text))
    files = known.get(posixpath.basename(listed), {})
    found = [beside]
    if beside not in files:
        found = [each for each in files if f"/{each}".endswith(f"/{listed}")]
    if len(found) > 1:
        raise ValueError(f"{name} names {listed}, which may be {' or '.join(found[:2])}. {ASK}.")
    if not found:
        raise ValueError(
            f"{name} names {text:.200}, which is no file of data.path: write the path of each "
            f"image from the folder of {name} on. {ASK}."
        )
    return files[found[0]]


def read_metadata(root: Path, names: Sequence[str]) -> "pd.DataFrame | None":
    """The user's own columns in metadata files beside images, by the names of the images.

    Args:
        root: The folder of the data.
        names: The metadata files.

    Raises:
        ValueError: A file is no table, or does not name the images.
    """
    import pandas as pd

    parts = []
    for name in names:
        rows = read(root, name).drop(columns=["label", "split"], errors="ignore")
        if "file" not in rows.columns:
            raise ValueError(f"{name} has no column file_name, but {', '.join(rows.columns)}.")
        above = name.removesuffix(posixpath.basename(name))
        parts.append(rows.assign(file=above + rows["file"].astype(str)))
    if not parts:
        return None
    return pd.concat(parts).drop_duplicates("file").set_index("file")
