"""Names the classes, where the data calls them otherwise: `n01440764` is `tench`."""

import json
from collections import Counter
from pathlib import Path

import pandas as pd


def name_classes(images: pd.DataFrame, root: Path, file: str) -> "pd.Series[str]":
    """The names of the images' classes, as a file of the data has them.

    Args:
        images: The `label` and the `path` of each image.
        root: The folder of the data.
        file: The file in it: a JSON object, or lines of a class, white space and its name.

    Raises:
        ValueError: There is no such file, it is no list of names, two classes have one name, or a
            class has none.
    """
    path = root / file
    if not (path.is_file() and path.resolve().is_relative_to(root.resolve())):
        raise ValueError(f"data.label_names: the data has no file {file}.")
    try:
        text = path.read_text(encoding="utf-8-sig").strip()
        pairs = [line.split(None, 1) for line in text.splitlines()]
        names = {
            str(label): str(name).strip()
            for label, name in (json.loads(text).items() if text[:1] == "{" else pairs)
        }
    except ValueError as error:
        raise ValueError(f"data.label_names: {file} is no list of names: {error}") from None
    name, count = next(iter(Counter(names.values()).most_common(1)), ("", 0))
    if count > 1:
        raise ValueError(f"data.label_names: {file} names {count} classes {name!r}.")
    unnamed = images[images["label"].notna() & ~images["label"].isin(names)]
    for label, path_of_image in zip(unnamed["label"], unnamed["path"], strict=True):
        raise ValueError(
            f"data.label_names: {file} has no name for the class {label!r} of {path_of_image}."
        )
    return images["label"].map(names)
