"""Lists and links the files of the data, and finds the splits in their names."""

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

# The names that the Hugging Face hub accepts for a split.
ALIASES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "validation", "valid", "dev"), "val"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
_SPLIT_WORD = re.compile(rf"(?<![a-z])(?:{'|'.join(ALIASES)})(?![a-z])")

# Enough to tell folders of images from other folders; whether a file is an image is seen when it is
# decoded.
IMAGE_SUFFIXES = frozenset(
    {".avif", ".bmp", ".gif", ".heic", ".heif", ".jp2", ".jpeg", ".jpg", ".pgm", ".png", ".ppm"}
    | {".tif", ".tiff", ".webp"}
)

# Files that often accompany images. Any other file is read as an image, so that an image in an
# unknown format (a .psd, a .raw) is reported and not silently missing.
_NO_IMAGES = frozenset(
    {".txt", ".md", ".csv", ".tsv", ".json", ".jsonl", ".yaml", ".yml", ".xml", ".html"}
    | {".db", ".ini", ".log", ".py", ".sh", ".zip", ".tar", ".gz"}
)

# Files beside images that tell more about them, as the Hugging Face hub names them.
METADATA = ("metadata.csv", "metadata.parquet")


def list_files(
    root: Path, above: str = "", hidden: bool = False, parents: Sequence[Path] = ()
) -> Iterator[tuple[str, int]]:
    """Every regular file below a folder, in order of the names.

    Links are followed, but for those to a folder above them, which would not end. Pipes, sockets
    and devices are left out: to open one would wait, perhaps for ever.

    Args:
        root: The folder.
        above: The prefix of its files' names.
        hidden: Whether hidden files and folders are listed too.
        parents: The real paths of the folders above it.

    Yields:
        Its name with `/`, and its size in bytes.

    Raises:
        ValueError: A link leads to nothing.
    """
    real = root.resolve()
    if real in parents:
        return
    with os.scandir(root) as entries:
        # A folder sorts where its files do: "a/1" comes after "a.b".
        named = {
            entry.name + "/" * _is_folder(entry): entry
            for entry in entries
            if hidden or not entry.name.startswith(".")
        }
    for name, entry in sorted(named.items()):
        if name.endswith("/"):
            yield from list_files(root / name, above + name, hidden, (*parents, real))
        elif _is_file(entry):
            yield above + name, entry.stat().st_size
        elif entry.is_symlink() and not Path(entry.path).exists():
            raise ValueError(
                f"{above}{name} is a link to {Path(entry.path).readlink()}, which is not there. "
                "Put the file there, or delete the link."
            )


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    return Path(entry.path).is_dir() if entry.is_symlink() else entry.is_dir()


def _is_file(entry: "os.DirEntry[str]") -> bool:
    return Path(entry.path).is_file() if entry.is_symlink() else entry.is_file()


def check_names(names: Iterable[str]) -> None:
    """Refuses files whose names are not UTF-8, and which no table can have therefore.

    Raises:
        ValueError: Such a name.
    """
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"The name {name!a} is not UTF-8. Rename the file or folder."
            ) from None


def has_split_folders(root: Path) -> bool:
    """Whether a file is in a class folder, and that in a folder that is named as a split."""
    return any(
        below.is_dir() and not is_hidden(below.name) and any(list_files(below))
        for folder in root.iterdir()
        if folder.name.lower() in ALIASES and folder.is_dir()
        for below in folder.iterdir()
    )


def is_hidden(name: str) -> bool:
    """Whether a file, or a folder above it, is hidden."""
    return name.startswith(".") or "/." in name


def is_no_image(name: str) -> bool:
    """Whether a file only accompanies images, by its name."""
    suffix = f".{name.rpartition('.')[2].lower()}"  # 10 times as fast as that of a `Path`
    return suffix in _NO_IMAGES or (suffix == ".parquet" and name.rpartition("/")[2] in METADATA)


def split_of_folder(name: str) -> str | None:
    """The split that the first folder of a file's name stands for."""
    return ALIASES.get(name.split("/")[0].lower())


def split_of_parquet(name: str) -> str | None:
    """The split in a Parquet file's name, else in the name of the nearest folder that has one."""
    for part in reversed(name.lower().removesuffix(".parquet").split("/")):
        word = _SPLIT_WORD.search(part)
        if word:
            return ALIASES[word[0]]
    return None


def link_file(source: Path | str, target: Path | str) -> None:
    """Puts a file at a second path too; it is copied where there are no hard links.

    Args:
        source: Must never be written to again, like the objects in DVC's cache.
        target: Must not be written to either; nothing is there yet. The folders above it are made.
    """
    try:
        _link(source, target)
    except FileNotFoundError:
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        _link(source, target)


def _link(source: Path | str, target: Path | str) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)
