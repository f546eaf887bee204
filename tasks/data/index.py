"""Makes the index of the data: a table of its images, whatever the format.

A format is a folder of images for each class, with or without a folder for each split above these;
Parquet files as the Hugging Face hub has them (`parquet_images.py`); or a list of the images
(`label_files.py`). `raw_images.py` says what the table has.
"""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from retrain.runs import console
from retrain.workload import Data
from tasks.data import corrections, label_files, parquet_images
from tasks.data.listing import ALIASES, is_data, label_of, list_files, some, split_of
from tasks.data.raw_images import COLUMNS, ImageFiles, Place, places_of

if TYPE_CHECKING:
    import pandas as pd

# Whether a file with such a suffix is an image is seen when it is decoded. Formats of the last line
# are not read, so that these files are reported.
IMAGE_SUFFIXES = frozenset(
    {".avif", ".bmp", ".gif", ".heic", ".heif", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg", ".pbm"}
    | {".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp"}
    | {".jxl", ".psd", ".svg", ".tga"}
)
# A camera's raw files: most are TIFF, with a thumbnail of the picture that a JPEG beside them has.
RAW_SUFFIXES = frozenset(
    {".3fr", ".arw", ".cr2", ".cr3", ".crw", ".dcr", ".dng", ".erf", ".iiq", ".kdc", ".mef", ".mos"}
    | {".mrw", ".nef", ".nrw", ".orf", ".pef", ".raf", ".raw", ".rw2", ".rwl", ".sr2", ".srf"}
    | {".srw", ".x3f"}
)
# How a file with another suffix begins if it is an image.
BEGINNING = re.compile(
    rb"\xff\xd8\xff|\x89PNG|GIF8|RIFF....WEBP|II\*\0|MM\0\*"
    rb"|\0...ftyp(?:avi[fs]|hei[cmsx]|hev[cs]|mif1|msf1)",
    re.DOTALL,
)

Below = Mapping[str, set[str]]  # the folders with images in each of the uppermost folders
ASK = "set data.format to folders if these are the classes"


@dataclass(frozen=True)
class Index:
    """The images of a folder.

    Attributes:
        format: `parquet`, `folders` or `table`.
        files: Reads the images.
        images: A row for each, in order of the files' names and of the rows in them; `COLUMNS`, and
            the user's own.
    """

    format: str
    files: ImageFiles
    images: pa.Table


def build(root: Path, data: Data, splits: Mapping[str, str | None] | None = None) -> Index:
    """Lists the images of a folder, with their classes.

    Args:
        root: The folder.
        data: `format`, `image_column`, `label_column`, `label_names`, and `group`, which says that
            there are folders below those of the classes.
        splits: The split of each file, None for each if the source does not say; other files do not
            belong to the data then.

    Raises:
        ValueError: The format is not recognised, or two descriptions of the images contradict each
            other; a file is broken; or there is no image.
    """
    files = {name: size for name, size in list_files(root) if not splits or name in splits}
    for name in files:  # none that no table can have, or that would be in two lines of a report
        if re.search("[\x00-\x1f\x7f\ud800-\udfff]", name):
            raise ValueError(
                f"The name {name!a} is not UTF-8, or has a line break or the like in it. Rename "
                "the file or folder."
            )
    images = [name for name in files if _is_image(root, name)]
    tables = [name for name in files if _is_table(name)]
    form: str | None = data.format if data.format in ("parquet", "folders", "table") else None
    column, rows = None, None
    if form == "table" or (form is None and images and not tables):
        rows = label_files.list_images(root, [*files], images, data)
    form = form or ("table" if rows is not None else _recognise(files, images, tables))
    if form == "folders":
        rows = _in_folders(root, files, images, data)
    listed = None if rows is None else _as_table(rows, files)
    if form == "parquet" and tables:
        column, listed = parquet_images.list_images(root, tables, data.image_column, data)
    if listed is None or not len(listed):
        raise ValueError(f"There are no images in data.path, read as {form}.")
    if data.format == "auto" and form != "parquet":
        _check_case(listed["label"], form)
    if splits and any(splits.values()):
        of_files = pa.array([splits[name] for name in listed["file"].to_pylist()])
        listed = listed.set_column(listed.schema.get_field_index("split"), "split", of_files)
    return Index(form, ImageFiles(root, column), _checked_splits(listed))


def check_classes(place: Path, images: pa.Table) -> None:
    """Refuses an empty folder beside those of classes: its images have been forgotten, or moved.

    Args:
        place: Where the user has the data.
        images: The index of it.

    Raises:
        ValueError: There is such a folder.
    """
    tops = {name.partition("/")[0] for name in images["file"].to_pylist()}
    for level in (place / top for top in tops) if images["split"][0].is_valid else (place,):
        for folder in level.iterdir() if level.is_dir() else ():
            if folder.is_dir() and is_data(folder.name) and not any(list_files(folder)):
                raise ValueError(
                    f"data.path: the folder {folder} is empty. Put the images of the class there, "
                    "or remove it."
                )


def list_unlabelled(
    root: Path, image_column: str | None = None
) -> tuple[ImageFiles, list[Place], list[str]]:
    """Lists the images of a folder at any depth, or of its Parquet files, whatever they are called.

    Args:
        root: The folder.
        image_column: The Parquet column with the images; None if it has a usual name.

    Returns:
        What reads the images; and where each is, and its name in reports, in order of the files'
        names and of the rows in them.

    Raises:
        ValueError: A file is broken or lacks the column; or there are images and Parquet files.
    """
    files = [name for name, _ in list_files(root)]
    names = [name for name in files if _is_image(root, name)]
    tables = [name for name in files if _is_table(name)]
    if not tables:
        _say_left_out(sorted({*files}.difference(names)))
        return ImageFiles(root), [(name, 0) for name in names], names
    if names:
        raise ValueError("holds Parquet files and images: name one of them.")
    column, rows = parquet_images.list_images(root, tables, image_column)
    return ImageFiles(root, column), places_of(rows), rows["path"].to_pylist()


def _is_image(root: Path, name: str) -> bool:
    """Whether a file may be an image, by its suffix, or else by its first bytes."""
    suffix = _suffix(name)
    if suffix in IMAGE_SUFFIXES or suffix in RAW_SUFFIXES:
        return suffix in IMAGE_SUFFIXES
    with (root / name).open("rb") as file:
        return BEGINNING.match(file.read(16)) is not None


def _say_left_out(names: Sequence[str]) -> None:
    if names:
        console.say(f"Left out as no images ({len(names):,}): {some(names)}")


def _is_table(name: str) -> bool:
    """Whether a file holds the rows of images."""
    return name.endswith(".parquet") and not label_files.is_metadata(name)


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1].lower()  # noqa: PTH122  5 times as fast


def _recognise(files: Iterable[str], images: Sequence[str], tables: Sequence[str]) -> str:
    """The format of data that no list describes.

    Raises:
        ValueError: It is none.
    """
    if tables and images:
        raise ValueError(
            f"data.path holds Parquet files, such as {tables[0]}, and images, such as "
            f"{images[0]}: which count? Set data.format to parquet or folders."
        )
    if tables:
        return "parquet"
    if any("/" in name for name in images):
        return "folders"
    kinds = Counter(map(_suffix, files)).most_common(5)
    found = ", ".join(f"{count} files with {kind or 'no suffix'}" for kind, count in kinds)
    where = "" if any("/" in name for name in files) else " in no folder"
    raise ValueError(
        f"The folder of the data holds {found or 'no files'}{where}. It should hold Parquet files, "
        "a folder of images per class (below train, val and test or not), a list of the images and "
        "their classes (CSV, TSV or JSONL), or be one archive of these."
    )


def _in_folders(
    root: Path, files: Iterable[str], images: Sequence[str], data: Data
) -> "pd.DataFrame":
    """The images in class folders, at any depth; and what metadata files say of them.

    If the user has said that folders are the classes, the whole name of a folder means a split;
    else a word in it does, as in `seg_train`.

    Raises:
        ValueError: The user has to say what the folders are; or two are one class.
    """
    import pandas as pd

    # A folder in one of its own name, as archives have it, is one.
    folders = [[part for part, _ in groupby(name.split("/")[:-1])] for name in images]
    below = defaultdict[str, set[str]](set)
    for parts in filter(None, folders):
        below[parts[0]].update(parts[1:2])
    is_told = data.format == "folders"
    by_top = _split_folders(below, is_told)
    if data.group is None and not (is_told or by_top):
        _check_folder_names(below)
    depth = bool(by_top)
    _check_spelling({(*parts[: depth + 1],) for parts in folders if len(parts) > depth})
    columns = {
        "file": images,
        "label": [label_of(parts[depth]) if len(parts) > depth else None for parts in folders],
        "split": [by_top.get(parts[0]) if parts else None for parts in folders],
    }
    rows = pd.DataFrame(columns, dtype=object)
    metadata = [name for name in files if label_files.is_metadata(name)]
    named = {*images, *metadata, corrections.FILE, data.label_names}
    _say_left_out([name for name in files if name not in named])
    return label_files.add_metadata(rows, root, metadata, images)


def _split_folders(below: Below, is_told: bool) -> dict[str, str | None]:
    """The split that each of the uppermost folders stands for; empty if these are the classes."""
    exact = {top: ALIASES.get(top.lower()) for top in below}
    splits = exact if is_told else {top: split_of(top) for top in below}
    named = [top for top, split in splits.items() if split]
    deep = [below[top] for top in named if below[top]]
    # One class among others may be called as a split is.
    several = sum(map(bool, exact.values())) > 1 or (len(deep) > 1 and set.intersection(*deep))
    return splits if deep and (several or len(named) == len(below)) else {}


def _check_folder_names(below: Below) -> None:
    """Asks where the names of folders may mean something else than classes.

    Raises:
        ValueError: The user has to say what they are.
    """
    named = [top for top in below if split_of(top)]
    others = [top for top in below if top not in named]
    count = Counter(chain(*below.values()))
    shared = sorted(name for name in count if 2 * count[name] > len(below) > 1)
    _check_folders_below(below)
    if 2 * len(named) > len(below) > 1:
        raise ValueError(
            f"The folders {', '.join(named)} are named as splits and hold images that have no "
            "class: put a list of the images beside them, or a folder for each class into them; "
            f"or {ASK}."
        )
    if len(named) == 1 and len(below[named[0]]) > 1 and not any(below[top] for top in others):
        raise ValueError(
            f"The folder {named[0]} is named as a split and holds folders, and "
            f"{', '.join(others[:3])} hold none: take these elsewhere, or {ASK}."
        )
    if len(shared) > 1:
        raise ValueError(
            f"The folders {', '.join([*below][:4])} hold folders of the same names, "
            f"{', '.join(shared[:4])}: set data.path to one of them, name them for splits (train, "
            f"val, test), or {ASK}."
        )


def _check_folders_below(below: Below) -> None:
    """Asks where splits are below classes, or classes below times of collection.

    Raises:
        ValueError: The user has to say what the folders are.
    """
    names, inner = sorted(set[str]().union(*below.values())), Counter[str]()
    splits = {name: ALIASES[name.lower()] for name in names if name.lower() in ALIASES}
    for held in below.values():
        inner.update({splits[name] for name in held if name in splits})
    if len(inner) > 1 or max(inner.values(), default=0) > 1:
        raise ValueError(
            f"The folders below {', '.join([*below][:4])} are named as splits, "
            f"{', '.join(splits)}: put the splits above the classes, as in train/cat; or set "
            "data.format to folders if the images are to be divided anew."
        )
    numbered, classes = ({re.sub(r"\d+", "", name) for name in each} for each in (below, names))
    if all(below.values()) and len(below) > len(numbered) == 1 < len(classes):
        raise ValueError(
            f"The folders {', '.join([*below][:4])} differ in numbers only, and hold "
            f"{', '.join(names[:4])}: put the images of a class into one folder, as in cat/week1; "
            f"or {ASK}."
        )


def _check_case(labels: pa.ChunkedArray, form: str) -> None:
    """Asks where the names of two classes differ in case only.

    Raises:
        ValueError: The user has to say whether they are one.
    """
    spelled = dict[str, str]()
    for label in sorted(filter(None, pc.unique(labels).to_pylist())):
        other = spelled.setdefault(label.casefold(), label)
        if other != label:
            raise ValueError(
                f"The classes {other!r} and {label!r} differ in case only: make one of them, or "
                f"set data.format to {form} if they are two."
            )


def _check_spelling(folders: set[tuple[str, ...]]) -> None:
    """Refuses two folders of one class, which look alike and are easily confused."""
    spelled = dict[tuple[str | None, ...], str]()
    for *above, name in sorted(folders):
        other = spelled.setdefault((*above, label_of(name)), name)
        if other != name:
            raise ValueError(
                f"The folders {other!a} and {name!a} are one class: they differ only in space or "
                "in the form of Unicode. Put the images into one of them."
            )


def _as_table(rows: "pd.DataFrame", files: Mapping[str, int]) -> pa.Table:
    """The index of image files, each of which has a row with `file`, `label` and `split`."""
    ours = rows.assign(path=rows["file"], row=0, bytes=rows["file"].map(files))
    table = pa.table({name: ours[name] for name in COLUMNS.names}, COLUMNS)
    for name in rows.columns.difference(COLUMNS.names, sort=False):
        try:
            column = pa.array(rows[name], from_pandas=True)
        except pa.ArrowException:  # values of several types
            column = pa.array(rows[name].astype("string"), from_pandas=True)
        if not pa.types.is_nested(column.type):
            table = table.append_column(name, column)
    return table


def _checked_splits(images: pa.Table) -> pa.Table:
    """Leaves out the splits of which no image has a class, as tests of competitions are given.

    Where others belong to splits, so are images that belong to none and have no class.

    Raises:
        ValueError: Only a part of the images that have a class belongs to splits.
    """
    labelled = {*images.filter(pc.is_valid(images["label"]))["split"].to_pylist()}
    if labelled <= {None}:
        return images
    is_kept = pa.array([split in labelled for split in images["split"].to_pylist()])
    out, kept = images.filter(pc.invert(is_kept)), images.filter(is_kept)
    if len(out):
        paths = out["path"].to_pylist()
        console.say(f"Left out without a class ({len(out):,}): {some(paths)}")
    if None in labelled:
        first = kept.filter(pc.is_null(kept["split"]))["file"][0]
        raise ValueError(
            f"{first} belongs to no split, as other files do: name it for one (train, val, test), "
            "or none."
        )
    return kept
