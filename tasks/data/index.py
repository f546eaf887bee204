"""The index of the data: a table of its images, whatever the format.

A format is a function that gives the rows of the index: class folders with or without a folder for
each split above them, Parquet files as the Hugging Face hub has them, and lists (CSV, TSV, JSONL).
`pull` writes the index; the steps after it read the images that it names (`reading.py`).
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as is_type

from retrain.runs import console
from retrain.store import Artifact
from retrain.workload import Data
from tasks.data.corrections import FILE as CORRECTIONS
from tasks.data.image_lists import SUFFIXES, ImageList, join_lists, label_of, read_list
from tasks.data.listing import list_files
from tasks.data.reading import ImageFiles, Place
from tasks.data.splits import ALIASES, split_of

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
# Files beside images that tell more about them, as the Hugging Face hub names them.
METADATA = tuple(f"metadata{suffix}" for suffix in (*SUFFIXES, ".parquet"))
TEXTS = ("license", "licence", "readme", "notice", "copying", "authors", "makefile")  # no suffix

# The usual names of the columns in data sets of the hub, and what they hold.
USUAL = {"image_column": ("image", "img"), "label_column": ("label", "labels")}
FORMS = {
    "image_column": (
        "an image is its encoded bytes (binary), or a struct of `bytes` (binary) and `path` "
        "(string)"
    ),
    "label_column": "a class is a name or a whole number",
}

Files = Mapping[str, int]  # the size in bytes of each file of the data, by its name, in order


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


@dataclass(frozen=True)
class Images:
    """Images without classes, in order of the files' names and of the rows in them.

    Attributes:
        files: Reads them.
        places: Where they are.
        paths: Their names in reports.
        sizes: Their sizes in bytes, roughly.
    """

    files: ImageFiles
    places: Sequence[Place]
    paths: Sequence[str]
    sizes: Sequence[int]


def build(root: Path, data: Data, splits: Mapping[str, str] | None = None) -> Index:
    """Lists the images of a folder, with their classes.

    Args:
        root: The folder.
        data: `format`, `image_column`, `label_column`, `label_names`, and `group`, which says that
            there are folders below those of the classes.
        splits: The split of each file, where the source of the data says so; other files do not
            belong to the data then.

    Raises:
        ValueError: The format is not recognised, or two descriptions of the images contradict each
            other; a file is broken; or there is no image.
    """
    files = dict(list_files(root))
    if splits:
        files = {name: size for name, size in files.items() if name in splits}
    form: str = data.format
    lists: list[ImageList] = []
    if form in ("auto", "hub"):
        form, lists = _recognise(root, files, data)
    elif form == "table":
        lists = _lists_in(root, files, data)
    rows = FORMATS[form](root, files, data, lists)
    if splits:
        rows["split"] = [splits[name] for name in rows["file"]]
    _check_splits(rows["file"], rows["split"])
    images = _as_table(rows)
    if not len(images):
        raise ValueError(f"There are no images in data.path, read as {form}.")
    column = None
    if form == "parquet":
        first = next(name for name in files if _is_data(name))
        column = _column(first, pq.read_schema(root / first), "image_column", data.image_column)
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


def list_unlabelled(root: Path, image_column: str | None = None) -> Images:
    """Lists the images of a folder at any depth, or of its Parquet files, whatever they are called.

    Args:
        root: The folder.
        image_column: The Parquet column with the images; None if it has a usual name.

    Raises:
        ValueError: A file is broken or lacks the column; or there are images and Parquet files.
    """
    files = dict(list_files(root))
    names = [name for name in files if not is_no_image(name)]
    tables = [name for name in names if name.endswith(".parquet")]
    if not tables:
        places = [(name, 0) for name in names]
        return Images(ImageFiles(root), places, names, [files[name] for name in names])
    if any(map(_is_image, names)):
        raise ValueError("holds Parquet files and images: name one of them.")
    parts, column = [], None
    for name in tables:
        with _open(root, name) as parquet:
            column = _column(name, parquet.schema_arrow, "--image-column", image_column)
            parts.append(_rows_of(name, parquet, column, ()))
    rows = _joined(parts)
    places = list(zip(rows["file"], rows["row"], strict=True))
    return Images(ImageFiles(root, column), places, rows["path"], rows["bytes"])


def is_no_image(name: str) -> bool:
    """Whether a file only accompanies images, by its name."""
    last = name.rpartition("/")[2].lower()
    suffix = f".{last.rpartition('.')[2]}"  # 10 times as fast as that of a `Path`
    return suffix in NO_IMAGES or last in METADATA or last in TEXTS


def _is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES  # noqa: PTH122  5 times as fast


def _is_data(name: str) -> bool:
    """Whether a file holds the rows of images."""
    return name.endswith(".parquet") and name.rpartition("/")[2] not in METADATA


def _recognise(root: Path, files: Files, data: Data) -> tuple[str, list[ImageList]]:
    """The format of the data, and the lists if it is `table`.

    Raises:
        ValueError: It is none, or two descriptions of the images contradict each other.
    """
    folders = {name.rpartition("/")[0] for name in files if _is_image(name)}
    if any(map(_is_data, files)):
        return "parquet", []
    if folders and (lists := _lists_that_count(root, files, data)):
        return "table", lists
    if folders - {""}:
        if data.group is None:
            _check_folders(files)
        return "folders", []
    suffixes = [os.path.splitext(name)[1].lower() for name in files]  # noqa: PTH122
    kinds = sorted({*suffixes}, key=lambda kind: (-suffixes.count(kind), kind))[:5]
    found = ", ".join(f"{suffixes.count(kind)} files with {kind or 'no suffix'}" for kind in kinds)
    where = "" if any("/" in name for name in files) else " in no folder"
    raise ValueError(
        f"The folder of the data holds {found or 'no files'}{where}. It should hold Parquet files, "
        "a folder of images per class (below train, val and test or not), a list of the images and "
        "their classes (CSV, TSV or JSONL), or be one archive of these."
    )


# ------------------------------------------------------------------------------------------ lists


def _lists_in(root: Path, files: Files, data: Data) -> list[ImageList]:
    """The files of the data that list its images with their classes.

    Raises:
        ValueError: There is none, or one cannot be read.
    """
    lists = [
        read_list(root, name, data.image_column, data.label_column)
        for name in _may_be_lists(files, data)
    ]
    if found := [each for each in lists if each.has_classes]:
        return found
    raise ValueError(
        "data.path holds no CSV, TSV or JSONL file with a column for the path (`path`, "
        "`file_name`, …) and one for the class (`label`, `class`, …); data.image_column and "
        "data.label_column name others."
    )


def _may_be_lists(files: Files, data: Data) -> Sequence[str]:
    return [
        name
        for name in files
        if name.lower().endswith(SUFFIXES) and name not in (CORRECTIONS, data.label_names)
    ]


def _lists_that_count(root: Path, files: Files, data: Data) -> list[ImageList]:
    """The lists, if they and not the folders say the classes.

    Which of two descriptions counts is never guessed: if lists and folders contradict each other,
    or a file may be a list and is not understood, the user is asked.

    Raises:
        ValueError: The user has to say which counts.
    """
    ask = "Set data.format to folders if the folders are the classes"
    lists = []
    for name in _may_be_lists(files, data):
        try:
            found = read_list(root, name, data.image_column, data.label_column)
        except ValueError as error:
            raise ValueError(f"{error}. {ask}, or remove the file.") from None
        if found.has_classes:
            lists.append(found)
        elif name.rpartition("/")[2] not in METADATA:
            columns = ", ".join(map(str, found.rows.columns))
            raise ValueError(
                f"{name} may list the images, but which of its columns ({columns}) are the path "
                f"and the class is not known: name them with data.image_column and "
                f"data.label_column. {ask}."
            )
    if not lists:
        return []
    images = [name for name in files if _is_image(name)]
    tops = {name.rpartition("/")[0] for name in images}
    try:
        listed = join_lists(root, list(files), lists)
    except ValueError as error:
        raise ValueError(f"{error} {ask}." if len(tops) > 1 else str(error)) from None
    folders = {part for name in images for part in name.split("/")[:-1]} - ALIASES.keys()
    if len(folders) < 2:  # there are no folders of classes
        return lists
    names = ", ".join(each.name for each in lists[:3])
    if len(listed) < len(images):
        fault = f"{names} lists {len(listed):,} of {len(images):,} images"
    else:
        labels = [label for label in listed["label"] if label is not None]
        differing = [
            (name, label)
            for name, label in zip(listed["file"], listed["label"], strict=True)
            if label not in name.split("/")[:-1]
        ]
        if not differing or not folders & {*labels}:
            return lists
        (name, label), *_ = differing
        fault = f"{names} calls {name} {label}, and its folder says otherwise"
    raise ValueError(f"{fault}: which counts? Set data.format to table if the list does. {ask}.")


def _table(root: Path, files: Files, data: Data, lists: Sequence[ImageList]) -> dict[str, Any]:
    """The rows of images that lists name; a file that is not listed is no image of the data."""
    listed = join_lists(root, list(files), lists).sort_values("file")
    listed["path"] = listed["file"]
    listed["bytes"] = [files[name] for name in listed["file"]]
    return _columns_of(listed)


def _columns_of(rows: "pd.DataFrame") -> dict[str, Any]:
    """The columns of a data frame; those with values of several types as text."""
    columns: dict[str, Any] = {}
    for name in rows.columns:
        values = [None if value != value else value for value in rows[name].tolist()]  # NaN
        kinds = {type(value) for value in values} - {type(None)}
        if kinds & {dict, list}:
            continue
        if len(kinds) > 1 and not kinds <= {int, float}:
            values = [None if value is None else str(value) for value in values]
        columns[str(name)] = values
    return columns


# ---------------------------------------------------------------------------------- class folders


def _folders(root: Path, files: Files, data: Data, _: Sequence[ImageList]) -> dict[str, Any]:
    """The rows of images in a folder for each class, at any depth below it."""
    names = [name for name in files if not is_no_image(name) and ("/" in name or _is_image(name))]
    # A word in a name means a split where nobody has said that the folders are the classes.
    by_top = _split_folders(names, by_word=data.format != "folders")
    folders = [name.split("/")[:-1] for name in names]
    splits = [by_top.get(parts[0]) if parts else None for parts in folders]
    below = [parts[bool(by_top) :] for parts in folders]
    rows: dict[str, Any] = {
        "file": names,
        "path": names,
        "label": [label_of(parts[0]) if parts else None for parts in below],
        "split": splits,
        "bytes": [files[name] for name in names],
    }
    return rows | _beside(root, files, names)


def _below(names: Iterable[str]) -> dict[str, set[str]]:
    """The folders with images in each of the uppermost folders."""
    below: dict[str, set[str]] = {}
    for name in names:
        parts = name.split("/")
        if len(parts) > 1:
            below.setdefault(parts[0], set()).update(parts[1:2] if len(parts) > 2 else ())
    return below


def _split_folders(names: Iterable[str], by_word: bool) -> dict[str, str | None]:
    """The split that each of the uppermost folders stands for; empty if these are the classes."""
    below = _below(names)
    exact = {top: ALIASES.get(top.lower()) for top in below}
    worded = {top: split_of(top) for top in below}
    if not any(below[top] for top in below if worded[top]):  # nothing is in a class folder there
        return {}
    if by_word and all(worded.values()):
        return worded
    named = [top for top in below if exact[top]]
    # One class may be called as a split is.
    is_class = len(named) == 1 and len(below) > 1
    return {} if is_class or not any(below[top] for top in named) else exact


def _check_folders(files: Files) -> None:
    """Asks where the names of folders may mean something else than classes.

    Raises:
        ValueError: The user has to say what they are.
    """
    below = _below(name for name in files if not is_no_image(name))
    ask = "set data.format to folders if these are the classes"
    tops = ", ".join(list(below)[:4])
    if len(below) < 2 or all(map(split_of, below)):
        if len(below) > 1 and not any(below.values()):
            raise ValueError(
                f"The folders {tops} are named as splits and hold images that have no class: put a "
                f"list of the images beside them, or a folder for each class into them; or {ask}."
            )
        return
    same = [names for names in below.values() if len(names) > 1]
    if len(same) == len(below) and all(names == same[0] for names in same):
        raise ValueError(
            f"The folders {tops} hold folders of the same names, "
            f"{', '.join(sorted(same[0])[:4])}: {ask}, or name them for splits (train, val, test)."
        )


def _beside(root: Path, files: Files, names: Sequence[str]) -> dict[str, Any]:
    """The user's own columns in metadata files beside the images."""
    import pandas as pd

    found = [name for name in files if name.rpartition("/")[2] in METADATA]
    if not found:
        return {}
    lists = [read_list(root, name) for name in found]
    parts = []
    for each in lists:
        if "file" not in each.rows.columns:
            columns = ", ".join(map(str, each.rows.columns))
            raise ValueError(f"{each.name} has no column file_name, but {columns}.")
        above = each.name.removesuffix(each.name.rpartition("/")[2])
        rows = each.rows.drop(columns=["label", "split"], errors="ignore")
        parts.append(rows.assign(file=above + rows["file"].astype(str)))
    joined = pd.concat(parts, ignore_index=True).drop_duplicates("file").set_index("file")
    return _columns_of(joined.reindex([*names]))


def _check_splits(files: Sequence[str], splits: Sequence[str | None]) -> None:
    """Refuses data of which only a part belongs to splits."""
    without = next((file for file, split in zip(files, splits, strict=True) if not split), None)
    if without is not None and any(splits):
        others = len({file for file, split in zip(files, splits, strict=True) if split})
        raise ValueError(
            f"{without} belongs to no split, as {others} other files do: "
            "name it for one (train, val, test), or none."
        )


# ---------------------------------------------------------------------------------------- Parquet


def _parquet(root: Path, files: Files, data: Data, _: Sequence[ImageList]) -> dict[str, Any]:
    """The rows of Parquet files; the split is in the name of the file or its folder."""
    parts = []
    for name in filter(_is_data, files):
        with _open(root, name) as parquet:
            schema = parquet.schema_arrow
            image = _column(name, schema, "image_column", data.image_column)
            label = _column(name, schema, "label_column", data.label_column)
            others = [
                field.name
                for field in schema
                if field.name not in (image, label, *COLUMNS.names) and _is_plain(field.type)
            ]
            part = _rows_of(name, parquet, image, [label, *others])
            classes = _class_names(schema, label)
            part["label"] = [_class(value, classes) for value in part.pop(label)]
            parts.append(part)
    return _joined(parts)


def _rows_of(
    name: str, parquet: pq.ParquetFile, image: str, columns: Sequence[str]
) -> dict[str, list[Any]]:
    """The rows of a Parquet file, with some of its columns.

    Raises:
        ValueError: The file is broken.
    """
    count = parquet.metadata.num_rows
    has_paths = any(path == f"{image}.path" for path in _leaves(parquet))
    wanted = [*columns, *([f"{image}.path"] if has_paths else [])]
    try:
        table = parquet.read(columns=wanted)
        paths = table[image].to_pylist() if has_paths else []
        rows = {column: table[column].to_pylist() for column in columns}
    except (pa.ArrowInvalid, OSError, UnicodeDecodeError) as error:
        raise _fault(f"{name} is broken", error) from None
    sizes = [
        parquet.metadata.row_group(number).total_byte_size
        for number in range(parquet.num_row_groups)
    ]
    named = [path["path"] if path else None for path in paths] or [None] * count
    return {
        "file": [name] * count,
        "row": [*range(count)],
        "path": [path or f"{name}:{row}" for row, path in enumerate(named)],
        "split": [split_of(name.removesuffix(".parquet"))] * count,
        "bytes": [sum(sizes) // max(count, 1)] * count,
        **rows,
    }


def _leaves(parquet: pq.ParquetFile) -> list[str]:
    schema = parquet.schema
    return [schema.column(number).path for number in range(len(schema))]


def _joined(parts: Sequence[Mapping[str, list[Any]]]) -> dict[str, Any]:
    """The rows of all parts; a column that one of them lacks is empty there."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {
        name: [value for part in parts for value in part.get(name, [None] * len(part["file"]))]
        for name in names
    }


def _open(root: Path, name: str) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(root / name, memory_map=True)
    except (pa.ArrowInvalid, OSError) as error:
        raise _fault(f"{name} is no Parquet file", error) from None


def _fault(problem: str, error: Exception) -> ValueError:
    """The error about a file that pyarrow cannot read, in one line."""
    return ValueError(f"{problem}: {' '.join(str(error).split())}")


def _column(name: str, schema: pa.Schema, setting: str, configured: str | None) -> str:
    """A column of a Parquet file.

    Args:
        name: The file.
        schema: Its columns.
        setting: `image_column`, `label_column`, or the option of the command line.
        configured: The name of the column; None for a usual one.

    Raises:
        ValueError: There is none of the right type.
    """
    key = "label_column" if setting == "label_column" else "image_column"
    named = setting if setting.startswith("--") else f"data.{setting}"
    names = (configured,) if configured else USUAL[key]
    column = next((column for column in names if column in schema.names), None)
    if column is None:
        raise ValueError(
            f"{name} has no column {' or '.join(map(repr, names))}, but "
            f"{', '.join(schema.names)}: set {named} to one of them."
        )
    kind = schema.field(column).type
    if not (_holds_images(kind) if key == "image_column" else _holds_labels(kind)):
        raise ValueError(f"{name}: the column {column!r} is {kind}; {FORMS[key]}. See {named}.")
    return column


def _holds_images(kind: pa.DataType) -> bool:
    if is_type.is_struct(kind):
        return any(field.name == "bytes" and _is_binary(field.type) for field in kind)
    return _is_binary(kind)


def _is_binary(kind: pa.DataType) -> bool:
    return str(kind) in ("binary", "large_binary", "binary_view")


def _holds_labels(kind: pa.DataType) -> bool:
    if is_type.is_dictionary(kind):
        kind = kind.value_type
    return str(kind) in ("string", "large_string", "string_view") or is_type.is_integer(kind)


def _is_plain(kind: pa.DataType) -> bool:
    """Whether the values of a column are single ones: numbers, texts, dates."""
    return not (is_type.is_nested(kind) or _is_binary(kind) or is_type.is_fixed_size_binary(kind))


def _class_names(schema: pa.Schema, column: str) -> Sequence[str] | None:
    """The names of a column's numbers, where the Hugging Face `datasets` library wrote them."""
    description = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    names: Sequence[str] | None
    names = description.get("info", {}).get("features", {}).get(column, {}).get("names")
    return names


def _class(value: str | int | None, names: Sequence[str] | None) -> str | None:
    if names is None or not isinstance(value, int):
        return label_of(value)
    if value == -1:  # `datasets` writes a missing label so
        return None
    return label_of(names[value] if 0 <= value < len(names) else value)


# -------------------------------------------------------------------------------------- the table


def _as_table(rows: Mapping[str, Any]) -> pa.Table:
    """The index of rows; what they lack of `COLUMNS` is empty, and `row` is 0.

    Raises:
        ValueError: The name of a file is no text, or a column has values of several types.
    """
    count = len(rows["file"])
    columns = {"row": [0] * count} | {
        field.name: rows.get(field.name, [None] * count)
        for field in COLUMNS
        if field.name in rows or field.name != "row"
    }
    try:
        table = pa.table({name: columns[name] for name in COLUMNS.names}, COLUMNS)
        for name in rows:
            if name not in COLUMNS.names:
                table = table.append_column(name, pa.array(rows[name], from_pandas=True))
    except (pa.ArrowException, UnicodeEncodeError) as error:
        raise ValueError(f"The list of the images: {error}") from None
    return table


def _without_unlabelled_splits(images: pa.Table) -> pa.Table:
    """Leaves out the splits of which no image has a class, as tests of competitions are given."""
    import pyarrow.compute as pc

    labelled = images.filter(pc.is_valid(images["label"]))
    gone = [
        split
        for split in images["split"].unique().to_pylist()
        if split is not None and not pc.any(pc.equal(labelled["split"], split)).as_py()
    ]
    if not gone or not len(labelled):
        return images
    console.say(f"No image of {', '.join(gone)} has a class, so it is left out.")
    return images.filter(pc.invert(pc.is_in(images["split"], pa.array(gone))))


Format = Callable[[Path, Files, Data, Sequence[ImageList]], dict[str, Any]]
FORMATS: Mapping[str, Format] = {"folders": _folders, "parquet": _parquet, "table": _table}
