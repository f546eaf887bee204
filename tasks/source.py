"""Reading the raw images of a pulled version of the data, in units of one Ray task each.

Two layouts are read. Parquet files as the Hugging Face hub has them: a row per image, with the
split in the name of the file or its folder (`train.parquet`, `data/test-00000-of-00002.parquet`,
`validation/part.parquet`). And a folder per class, with or without a folder per split above it.
"""

import json
import logging
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from retrain.artifact import Artifact
    from retrain.workload import Data

SPLITS = ("train", "val", "test")

# Fewer images than this are not worth a task. More units than this gain nothing either, and
# `preprocess` makes a file of each, which a reader holds open.
UNIT_ROWS = 1000
MAX_UNITS = 256

# The names by which the Hugging Face hub knows a split.
_ALIASES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "validation", "valid", "dev"), "val"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
_SPLIT_WORD = re.compile(rf"(?<![a-z])(?:{'|'.join(_ALIASES)})(?![a-z])")

# Files that lie beside images. Any other file is read as one, so that an image in a format that
# is not read (a .heic, a .psd) is reported and not silently missing.
_NO_IMAGES = frozenset(
    {".txt", ".md", ".csv", ".tsv", ".json", ".jsonl", ".yaml", ".yml", ".xml", ".html"}
    | {".db", ".ini", ".log", ".py", ".sh", ".zip", ".tar", ".gz"}
)


@dataclass(frozen=True, slots=True)
class Piece:
    """The smallest part that is read at once: a Parquet file's row group, or an image file.

    Attributes:
        file: Relative to the data, with `/`.
        row_group: Its number; 0 for an image file.
        first_row: The file's row that it begins with.
        rows: How many images it holds.
    """

    file: str
    row_group: int
    first_row: int
    rows: int


@dataclass(frozen=True)
class RawImage:
    """One image as the data has it.

    Attributes:
        file: The file that holds it, relative to the data, with `/`.
        row: The row in that file, from 0; 0 for an image file.
        path: What to call it: the path that its row gives, else `file` or `file:row`.
        label: The name of its class, or None.
        split: `train`, `val` or `test`; None when the data's names tell no splits.
        data: The encoded image; empty when there is none.
    """

    file: str
    row: int
    path: str
    label: str | None
    split: str | None
    data: bytes


@dataclass(frozen=True)
class Source:
    """The images of a pulled version of the data; cheap to send to a Ray task.

    Attributes:
        root: The folder that the files' names are relative to.
        format: `parquet` or `folders`.
        image_column: Of Parquet files.
        label_column: Of Parquet files.
        split_folders: Whether the class folders lie in folders named as splits.
    """

    root: Path
    format: str
    image_column: str
    label_column: str
    split_folders: bool

    def units(self) -> list[tuple[Piece, ...]]:
        """Cuts the data into units, in order of the files' names and of the rows in them.

        Raises:
            ValueError: There is nothing to read, a Parquet file has not the columns, or only some
                files belong to a split.
        """
        pieces = list(self._row_groups() if self.format == "parquet" else self._image_files())
        total = sum(piece.rows for piece in pieces)
        if not total:
            raise ValueError(f"There are no images in data.path, read as {self.format}.")
        enough = max(UNIT_ROWS, math.ceil(total / MAX_UNITS))
        units: list[list[Piece]] = [[]]
        rows = 0
        for piece in pieces:
            if rows >= enough:
                units.append([])
                rows = 0
            units[-1].append(piece)
            rows += piece.rows
        return [tuple(unit) for unit in units]

    def read(self, unit: Sequence[Piece]) -> Iterator[RawImage]:
        """The images of a unit, in order; a few are in memory at a time.

        Raises:
            ValueError: A Parquet file is broken.
        """
        for name, pieces in groupby(unit, key=lambda piece: piece.file):
            if self.format == "parquet":
                yield from self._read_parquet(name, list(pieces))
            else:
                yield self._read_file(name)

    def _row_groups(self) -> Iterator[Piece]:
        files = [name for name in _list_files(self.root) if name.endswith(".parquet")]
        _check_splits({name: _split_of_parquet(name) for name in files})
        for name in files:
            with self._open_parquet(name) as parquet:
                first_row = 0
                for row_group in range(parquet.num_row_groups):
                    rows = parquet.metadata.row_group(row_group).num_rows
                    yield Piece(name, row_group, first_row, rows)
                    first_row += rows

    def _image_files(self) -> Iterator[Piece]:
        files: list[str] = []
        others: list[str] = []
        for name in _list_files(self.root):
            suffix = PurePosixPath(name).suffix.lower()
            (others if suffix in _NO_IMAGES else files).append(name)
        if others:
            logging.getLogger(__name__).info(
                "%d files are not read as images: %s …", len(others), ", ".join(others[:5])
            )
        if self.split_folders:
            _check_splits({name: _ALIASES.get(name.split("/")[0].lower()) for name in files})
        for name in files:
            yield Piece(name, 0, 0, 1)

    def _read_file(self, name: str) -> RawImage:
        folders = name.split("/")[:-1]
        split = _ALIASES[folders.pop(0).lower()] if self.split_folders else None
        label = folders[0] if folders else None
        return RawImage(name, 0, name, label, split, (self.root / name).read_bytes())

    def _read_parquet(self, name: str, pieces: Sequence[Piece]) -> Iterator[RawImage]:
        import pyarrow as pa

        split = _split_of_parquet(name)
        row = pieces[0].first_row
        with self._open_parquet(name) as parquet:
            names = _class_names(parquet.schema_arrow, self.label_column)
            batches = parquet.iter_batches(
                batch_size=64,
                row_groups=[piece.row_group for piece in pieces],
                columns=[self.image_column, self.label_column],
                use_threads=False,
            )
            try:
                for batch in batches:
                    images = batch[self.image_column].to_pylist()
                    labels = batch[self.label_column].to_pylist()
                    for image, label in zip(images, labels, strict=True):
                        path, data = _path_and_bytes(image)
                        path = path or f"{name}:{row}"
                        yield RawImage(name, row, path, _label(label, names), split, data)
                        row += 1
            except (pa.ArrowInvalid, OSError) as error:
                raise ValueError(f"{name} is broken after row {row}: {error}") from None

    def _open_parquet(self, name: str) -> "pq.ParquetFile":
        """Opens a file that has the columns, with the right types."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            # Mapped, because a row group may be larger than the memory.
            parquet = pq.ParquetFile(self.root / name, memory_map=True)
        except pa.ArrowInvalid as error:
            raise ValueError(f"{name} is no Parquet file: {error}") from None
        schema = parquet.schema_arrow
        for key in ("image_column", "label_column"):
            column = getattr(self, key)
            if column not in schema.names:
                raise ValueError(
                    f"{name} has no column {column!r}, but {', '.join(schema.names)}: "
                    f"set data.{key} to one of them."
                )
        image, label = schema.field(self.image_column).type, schema.field(self.label_column).type
        if not _holds_images(image):
            raise ValueError(
                f"{name}: the column {self.image_column!r} is {image}; an image is its encoded "
                "bytes (binary), or a struct of `bytes` and `path`. See data.image_column."
            )
        if not _holds_labels(label):
            raise ValueError(
                f"{name}: the column {self.label_column!r} is {label}; a class is a name or a "
                "whole number. See data.label_column."
            )
        return parquet


def open_source(data: "Data", pulled: "Artifact") -> Source:
    """The images in the output of `pull`."""
    root = pulled.folder / "data"
    split_folders = any(
        folder.name.lower() in _ALIASES and any(below.is_dir() for below in folder.iterdir())
        for folder in root.iterdir()
        if folder.is_dir()
    )
    return Source(root, pulled.facts["format"], data.image_column, data.label_column, split_folders)


def _list_files(root: Path) -> list[str]:
    """Every file below a folder that is not hidden nor in a hidden folder, by name, with `/`."""
    files = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        above = Path(folder).relative_to(root).as_posix()
        prefix = "" if above == "." else f"{above}/"
        files += [prefix + name for name in names if not name.startswith(".")]
    return sorted(files)


def _split_of_parquet(name: str) -> str | None:
    """The split in a Parquet file's name, else in the name of the nearest folder that has one."""
    for part in reversed(name.lower().removesuffix(".parquet").split("/")):
        found = _SPLIT_WORD.search(part)
        if found:
            return _ALIASES[found[0]]
    return None


def _check_splits(splits: Mapping[str, str | None]) -> None:
    without = [name for name, split in splits.items() if split is None]
    if without and len(without) < len(splits):
        raise ValueError(
            f"{without[0]} belongs to no split, as {len(splits) - len(without)} other files do: "
            "name it for one (train, val, test), or none."
        )


def _class_names(schema: "pa.Schema", column: str) -> Sequence[str] | None:
    """The names of a column's numbers, where the Hugging Face `datasets` library wrote them."""
    written = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    feature = written.get("info", {}).get("features", {}).get(column, {})
    names: Sequence[str] | None = feature.get("names")
    return names


def _label(value: str | int | None, names: Sequence[str] | None) -> str | None:
    if names is None or not isinstance(value, int):
        return None if value is None else str(value)
    if value == -1:  # how `datasets` writes that there is none
        return None
    return names[value] if 0 <= value < len(names) else str(value)


def _path_and_bytes(image: Mapping[str, Any] | bytes | None) -> tuple[str | None, bytes]:
    if isinstance(image, Mapping):
        return image.get("path"), image["bytes"] or b""
    return None, image or b""


def _holds_images(kind: "pa.DataType") -> bool:
    import pyarrow.types as is_type

    if is_type.is_struct(kind):
        return kind.get_field_index("bytes") >= 0 and _holds_images(kind.field("bytes").type)
    return bool(
        is_type.is_binary(kind) or is_type.is_large_binary(kind) or is_type.is_binary_view(kind)
    )


def _holds_labels(kind: "pa.DataType") -> bool:
    import pyarrow.types as is_type

    if is_type.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        is_type.is_integer(kind)
        or is_type.is_string(kind)
        or is_type.is_large_string(kind)
        or is_type.is_string_view(kind)
    )
