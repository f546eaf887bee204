"""Lists images in a folder for each class, with or without a folder for each split above these."""

from collections.abc import Iterable, Sequence

from tasks.data.splits import ALIASES, label_of, split_of


def list_images(names: Sequence[str], by_word: bool) -> tuple[list[str | None], list[str | None]]:
    """The class and the split of each image, by the names of the folders above it.

    Args:
        names: The image files, relative to the data.
        by_word: Whether a word in the name of a folder means a split, as in `seg_train`; else its
            whole name does.
    """
    by_top = _split_folders(names, by_word)
    folders = [name.split("/")[:-1] for name in names]
    below = [parts[bool(by_top) :] for parts in folders]
    labels = [label_of(parts[0]) if parts else None for parts in below]
    return labels, [by_top.get(parts[0]) if parts else None for parts in folders]


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
    if by_word and all(worded.values()) and any(below.values()):
        return worded
    named = [top for top in below if exact[top]]
    # One class may be called as a split is.
    is_class = len(named) == 1 and len(below) > 1
    return {} if is_class or not any(below[top] for top in named) else exact


def check_names(names: Iterable[str]) -> None:
    """Asks where the names of folders may mean something else than classes.

    Args:
        names: The image files, relative to the data.

    Raises:
        ValueError: The user has to say what they are.
    """
    below = _below(names)
    ask = "set data.format to folders if these are the classes"
    tops, first = ", ".join([*below][:4]), next(iter(below.values()), set())
    if len(below) < 2:
        return
    if all(map(split_of, below)):
        if not any(below.values()):
            raise ValueError(
                f"The folders {tops} are named as splits and hold images that have no class: put a "
                f"list of the images beside them, or a folder for each class into them; or {ask}."
            )
    elif len(first) > 1 and all(folders == first for folders in below.values()):
        raise ValueError(
            f"The folders {tops} hold folders of the same names, "
            f"{', '.join(sorted(first)[:4])}: {ask}, or name them for splits (train, val, test)."
        )
