"""The index of the data: a table of its images, whatever the format.

`pull` writes the index; the steps after it read the images that it names (`reading.py`). A format
is class folders (`class_folders.py`), Parquet files as the Hugging Face hub has them
(`parquet_images.py`), or a list of the images (`image_lists.py`).
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from retrain.runs import console
from retrain.store import Artifact
from retrain.workload import Data
from tasks.data import class_folders, image_lists, parquet_images
from tasks.data.image_lists import METADATA
from tasks.data.listing import list_files
from tasks.data.reading import ImageFiles, Place

if TYPE_CHECKING:
    import pandas as pd

FILE = "index.parquet"
# A row for each image: the file, relative to the data; the row in it, 0 in an image file; its name
# in reports; the class and the split, null where there is none; the size of the encoded image in
# bytes, roughly. The user's own columns follow.
COLUMNS = pa.schema(
    {
        **dict.fromkeys(("file", "path", "label", "split"), pa.string()),
        **dict.fromkeys(("row", "bytes"), pa.int64()),
    }
)

# Enough to tell folders of images from other folders; whether a file is an image is seen when it is
# decoded.
IMAGE_SUFFIXES = frozenset(
    {".avif", ".bmp", ".gif", ".heic", ".heif", ".jp2", ".jpeg", ".jpg", ".pgm", ".png", ".ppm"}
    | {".tif", ".tiff", ".webp"}
)
# Files that often accompany images. Any other file in a folder is read as an image, so that an
# image in an unknown format (a .psd, a .raw) is reported and not silently missing.
NO_IMAGES = frozenset(
    {".txt", ".md", ".csv", ".tsv", ".json", ".jsonl", ".yaml", ".yml", ".xml", ".html"}
    | {".db", ".ini", ".log", ".py", ".sh", ".zip", ".tar", ".gz"}
)
TEXTS = ("license", "licence", "readme", "notice", "copying", "authors", "makefile")  # no suffix


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
    _check_names(files)
    images = [name for name in files if _is_image(name)]
    tables = [name for name in files if _is_table(name)]
    known = data.format in ("parquet", "folders", "table")
    form: str | None = data.format if known else None
    column, rows, listed = None, None, None
    if form == "table" or (form is None and images and not tables):
        rows = image_lists.list_images(root, [*files], images, data)
        form = "table" if rows is not None else form
    form = form or _recognise(files, images, tables, data)
    if form == "folders":
        rows = _in_folders(root, [*files], by_word=data.format != "folders")
    if form == "parquet" and tables:
        columns = data.image_column, data.label_column
        column, listed = parquet_images.list_images(root, tables, *columns)
    elif rows is not None:
        listed = _as_table(rows, files)
    if listed is None or not len(listed):
        raise ValueError(f"There are no images in data.path, read as {form}.")
    if splits and any(splits.values()):
        of_files = pa.array([splits[name] for name in listed["file"].to_pylist()])
        listed = listed.set_column(listed.schema.get_field_index("split"), "split", of_files)
    _check_splits(listed)
    return Index(form, ImageFiles(root, column), _without_unlabelled_splits(listed))


def read(pulled: Artifact) -> pa.Table:
    """The index in the output of `pull`."""
    return pq.read_table(pulled.folder / FILE)


def own_columns(images: pa.Table, ours: Iterable[str] = ()) -> pa.Table:
    """The user's own columns in an index.

    Args:
        images: The index.
        ours: Names that mean something else; columns with these are left out.
    """
    left_out = {*COLUMNS.names, *ours}
    return images.select([name for name in images.column_names if name not in left_out])


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
    names = [name for name, _ in list_files(root) if not is_no_image(name)]
    tables, column = [name for name in names if name.endswith(".parquet")], None
    if not tables:
        return ImageFiles(root), [(name, 0) for name in names], names
    if any(map(_is_image, names)):
        raise ValueError("holds Parquet files and images: name one of them.")
    parts = []
    for name in tables:
        with parquet_images.open_file(root, name) as parquet:
            schema = parquet.schema_arrow
            column = parquet_images.find_column(name, schema, "--image-column", image_column)
            parts.append(parquet_images.rows_of(name, parquet, column, ()))
    rows = pa.concat_tables(parts).to_pydict()
    places = list(zip(rows["file"], rows["row"], strict=True))
    return ImageFiles(root, column), places, rows["path"]


def is_no_image(name: str) -> bool:
    """Whether a file only accompanies images, by its name."""
    last = name.rpartition("/")[2].lower()
    suffix = f".{last.rpartition('.')[2]}"  # 10 times as fast as that of a `Path`
    return suffix in NO_IMAGES or last in METADATA or last in TEXTS


def _is_image(name: str) -> bool:
    return _suffix(name) in IMAGE_SUFFIXES


def _is_table(name: str) -> bool:
    """Whether a file holds the rows of images."""
    return name.endswith(".parquet") and name.rpartition("/")[2] not in METADATA


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1].lower()  # noqa: PTH122  5 times as fast


def _check_names(names: Iterable[str]) -> None:
    """Refuses files whose names are not UTF-8, and which no table can have therefore."""
    no_utf8 = [name for name in names if re.search("[\ud800-\udfff]", name)]
    if no_utf8:
        raise ValueError(f"The name {no_utf8[0]!a} is not UTF-8. Rename the file or folder.")


def _recognise(
    files: Iterable[str], images: Sequence[str], tables: Sequence[str], data: Data
) -> str:
    """The format of data that no list describes.

    Raises:
        ValueError: It is none, or the names of folders may mean something else than classes.
    """
    if tables and images:
        raise ValueError(
            f"data.path holds Parquet files, such as {tables[0]}, and images, such as "
            f"{images[0]}: which count? Set data.format to parquet or folders."
        )
    if tables:
        return "parquet"
    if any("/" in name for name in images):
        if data.group is None:
            class_folders.check_names(images)
        return "folders"
    kinds = Counter(map(_suffix, files)).most_common(5)
    found = ", ".join(f"{count} files with {kind or 'no suffix'}" for kind, count in kinds)
    where = "" if any("/" in name for name in files) else " in no folder"
    raise ValueError(
        f"The folder of the data holds {found or 'no files'}{where}. It should hold Parquet files, "
        "a folder of images per class (below train, val and test or not), a list of the images and "
        "their classes (CSV, TSV or JSONL), or be one archive of these."
    )


def _in_folders(root: Path, files: Sequence[str], by_word: bool) -> "pd.DataFrame":
    """The images in class folders, at any depth; and what metadata files say of them."""
    import pandas as pd

    names = [name for name in files if not is_no_image(name) and ("/" in name or _is_image(name))]
    labels, splits = class_folders.list_images(names, by_word)
    rows = pd.DataFrame({"file": names, "label": labels, "split": splits}, dtype=object)
    metadata = [name for name in files if name.rpartition("/")[2] in METADATA]
    own = image_lists.read_metadata(root, metadata)
    return rows if own is None else rows.join(own, on="file")


def _as_table(rows: "pd.DataFrame", files: Mapping[str, int]) -> pa.Table:
    """The index of image files, each of which has a row with `file`, `label` and `split`."""
    names = rows["file"]
    ours = {"path": names, "row": [0] * len(rows), "bytes": [files[name] for name in names]}
    ours |= {name: rows[name] for name in ("file", "label", "split")}
    table = pa.table({name: ours[name] for name in COLUMNS.names}, COLUMNS)
    for name in rows.columns.difference(COLUMNS.names, sort=False):
        try:
            column = pa.array(rows[name], from_pandas=True)
        except pa.ArrowException:  # values of several types
            column = pa.array(rows[name].astype("string"), from_pandas=True)
        if not pa.types.is_nested(column.type):
            table = table.append_column(name, column)
    return table


def _check_splits(images: pa.Table) -> None:
    """Refuses data of which only a part belongs to splits."""
    has_split = pc.is_valid(images["split"])
    without, others = images.filter(pc.invert(has_split)), images.filter(has_split)
    if len(without) and len(others):
        count = len(others["file"].unique())
        raise ValueError(
            f"{without['file'][0]} belongs to no split, as {count} other files do: "
            "name it for one (train, val, test), or none."
        )


def _without_unlabelled_splits(images: pa.Table) -> pa.Table:
    """Leaves out the splits of which no image has a class, as tests of competitions are given."""
    labelled = images.filter(pc.is_valid(images["label"]))["split"].unique()
    gone = {*images["split"].unique().to_pylist()} - {*labelled.to_pylist(), None}
    if not gone or not len(labelled):
        return images
    console.say(f"No image of {', '.join(sorted(gone))} has a class, so it is left out.")
    return images.filter(pc.invert(pc.is_in(images["split"], pa.array([*gone]))))
