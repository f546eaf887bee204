"""Checks the folders of images that were pulled, by their names alone."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tasks.data.listing import ALIASES, has_split_folders, is_no_image, list_files

EXAMPLES = 5


def check_layout(root: Path) -> None:
    """Refuses class folders that a classifier cannot be trained on.

    Args:
        root: The folder of the data.

    Raises:
        ValueError: All images are in one class, a class folder has no image, or a name is not
            UTF-8.
    """
    depth = 2 if has_split_folders(root) else 1
    images: Counter[str] = Counter()
    for name, _ in list_files(root):
        _check_utf8(name)
        parts = name.split("/")
        if len(parts) > depth and not is_no_image(name):
            images["/".join(parts[:depth])] += 1
    empty = [name for name in _class_folders(root, depth) if not images[name]]
    if empty:
        more = len(empty) - EXAMPLES
        raise ValueError(
            f"Class folders without an image: {', '.join(empty[:EXAMPLES])}"
            f"{f', and {more} more' if more > 0 else ''}. Fill them or remove them."
        )
    labels = {name.split("/")[-1] for name in images}
    if len(labels) == 1:
        [label] = labels
        raise ValueError(
            f"All images are in one class, {label}, and a classifier needs at least two: data.path "
            "holds a folder of images per class (below train, val and test or not). If the classes "
            "lie deeper, name the folder that holds them."
        )


def _class_folders(root: Path, depth: int) -> Iterator[str]:
    """The folders of the classes, as `split/class` if there are folders of splits."""
    for folder in sorted(_folders_in(root)):
        if depth == 1:
            yield folder.name
        elif folder.name.lower() in ALIASES:
            yield from (f"{folder.name}/{below.name}" for below in sorted(_folders_in(folder)))


def _folders_in(folder: Path) -> list[Path]:
    return [
        path
        for path in folder.iterdir()
        if path.is_dir() and not path.is_symlink() and not path.name.startswith(".")
    ]


def _check_utf8(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"The data has a file whose name is not UTF-8: {name!r}. Rename it."
        ) from None
