"""Lists images in a folder for each class, with or without a folder for each split above these."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain, groupby

from tasks.data.splits import ALIASES, label_of, split_of

Below = Mapping[str, set[str]]  # the folders with images in each of the uppermost folders
ASK = "set data.format to folders if these are the classes"


def list_images(
    names: Sequence[str], is_told: bool, asks: bool
) -> tuple[list[str | None], list[str | None]]:
    """The class and the split of each image, by the names of the folders above it.

    Args:
        names: The image files, relative to the data.
        is_told: Whether the user has said that folders are the classes. Then the whole name of a
            folder means a split; else a word in it does, as in `seg_train`.
        asks: Whether names are refused then that may mean something else than classes.

    Raises:
        ValueError: The user has to say what the folders are; or two are one class.
    """
    # A folder in one of its own name, as archives have it, is one.
    folders = [[part for part, _ in groupby(name.split("/")[:-1])] for name in names]
    below = defaultdict[str, set[str]](set)
    for parts in filter(None, folders):
        below[parts[0]].update(parts[1:2])
    by_top = _split_folders(below, is_told)
    if asks and not (is_told or by_top):
        _check_names(below)
    depth = bool(by_top)
    labels = [label_of(parts[depth]) if len(parts) > depth else None for parts in folders]
    _check_spelling({(*parts[: depth + 1],) for parts in folders if len(parts) > depth})
    return labels, [by_top.get(parts[0]) if parts else None for parts in folders]


def _split_folders(below: Below, is_told: bool) -> dict[str, str | None]:
    """The split that each of the uppermost folders stands for; empty if these are the classes."""
    exact = {top: ALIASES.get(top.lower()) for top in below}
    splits = exact if is_told else {top: split_of(top) for top in below}
    named = [top for top, split in splits.items() if split]
    deep = [below[top] for top in named if below[top]]
    # One class among others may be called as a split is.
    several = sum(map(bool, exact.values())) > 1 or (len(deep) > 1 and set.intersection(*deep))
    return splits if deep and (several or len(named) == len(below)) else {}


def _check_names(below: Below) -> None:
    """Asks where the names of folders may mean something else than classes.

    Raises:
        ValueError: The user has to say what they are.
    """
    named = [top for top in below if split_of(top)]
    others = [top for top in below if top not in named]
    count = Counter(chain(*below.values()))
    shared = sorted(name for name in count if 2 * count[name] > len(below) > 1)
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
