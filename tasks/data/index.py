"""The index of the data: a table of its images, whatever the format.

`pull` writes the index; the steps after it read the images that it names (`reading.py`). A format
is class folders (`class_folders.py`), Parquet files as the Hugging Face hub has them
(`parquet_images.py`), or a list of the images (`image_lists.py`).
"""

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from retrain.runs import console
from retrain.store import Artifact
from retrain.workload import Data
from tasks.data import class_folders, corrections, image_lists, parquet_images
from tasks.data.image_lists import METADATA, SUFFIXES
from tasks.data.listing import list_files
from tasks.data.reading import ImageFiles, Place

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
    known = data.format in ("parquet", "folders", "table")
    form: str | None = data.format if known else None
    lists = [] if form in ("parquet", "folders") else _lists_that_count(root, files, data)
    form = form or ("table" if lists else _recognise(files, data))
    tables = list(filter(_is_table, files))
    column, images = None, None
    if form == "table":
        images = _listed(image_lists.join(root, [*files], lists), files)
    elif form == "folders":
        images = _in_folders(root, files, by_word=data.format != "folders")
    elif tables:
        columns = data.image_column, data.label_column
        column, images = parquet_images.list_images(root, tables, *columns)
    if images is None or not len(images):
        raise ValueError(f"There are no images in data.path, read as {form}.")
    if splits and any(splits.values()):
        of_files = pa.array([splits[name] for name in images["file"].to_pylist()])
        images = images.set_column(images.schema.get_field_index("split"), "split", of_files)
    _check_splits(images)
    return Index(form, ImageFiles(root, column), _without_unlabelled_splits(images))


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


def _recognise(files: Mapping[str, int], data: Data) -> str:
    """The format of data that no list describes.

    Raises:
        ValueError: It is none, or the names of folders may mean something else than classes.
    """
    images = [name for name in files if _is_image(name)]
    if table := next(filter(_is_table, files), None):
        if images:
            raise ValueError(
                f"data.path holds Parquet files, such as {table}, and images, such as {images[0]}: "
                "which count? Set data.format to parquet or folders."
            )
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


def _lists_that_count(
    root: Path, files: Mapping[str, int], data: Data
) -> list[image_lists.ImageList]:
    """The lists of images, if they and not the folders say the classes."""
    columns = data.image_column, data.label_column
    no_lists = (corrections.FILE, data.label_names)
    names = [name for name in files if name.lower().endswith(SUFFIXES) and name not in no_lists]
    if data.format == "table":
        return image_lists.find(root, names, *columns)
    images = [name for name in files if _is_image(name)]
    if not images or any(map(_is_table, files)):
        return []
    return image_lists.find_unasked(root, [*files], images, names, *columns)


def _listed(rows: Any, files: Mapping[str, int]) -> pa.Table:
    """The index of images that lists name; a file that is not listed is no image of the data."""
    rows = rows.sort_values("file")
    names = rows["file"].tolist()
    sizes = [files[name] for name in names]
    ours = {"file": names, "path": names, "row": [0] * len(names), "bytes": sizes}
    return _as_table(ours | image_lists.columns_of(rows.drop(columns="file")))


def _in_folders(root: Path, files: Mapping[str, int], by_word: bool) -> pa.Table:
    """The index of images in class folders, at any depth; and what metadata files say of them."""
    names = [name for name in files if not is_no_image(name) and ("/" in name or _is_image(name))]
    labels, splits = class_folders.list_images(names, by_word)
    sizes = [files[name] for name in names]
    ours = {"file": names, "path": names, "row": [0] * len(names), "bytes": sizes}
    metadata = [name for name in files if name.rpartition("/")[2] in METADATA]
    own = image_lists.read_metadata(root, metadata, names) if metadata else {}
    return _as_table(ours | {"label": labels, "split": splits} | own)


def _as_table(columns: Mapping[str, Any]) -> pa.Table:
    ours = pa.table({name: columns[name] for name in COLUMNS.names}, COLUMNS)
    for name in columns.keys() - {*COLUMNS.names}:
        ours = ours.append_column(name, pa.array(columns[name], from_pandas=True))
    return ours.select([*COLUMNS.names, *(n for n in columns if n not in COLUMNS.names)])


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
