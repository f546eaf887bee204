"""The splits and the classes of the data, and what names of files and folders mean splits."""

import re
import unicodedata
from typing import Any

SPLITS = ("train", "val", "test")  # in the order in which they are shown

# The names that the Hugging Face hub accepts for a split.
ALIASES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "validation", "valid", "dev"), "val"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
_WORD = re.compile(rf"(?<![a-z])(?:{'|'.join(ALIASES)})(?![a-z])")


def split_of(name: str) -> str | None:
    """The split that a word in the name of a file means, else one in that of the nearest folder."""
    for part in reversed(name.lower().split("/")):
        if word := _WORD.search(part):
            return ALIASES[word[0]]
    return None


def label_of(value: Any) -> str | None:
    """A class as text, without space around it and in one form of Unicode; None for none."""
    if value is None or value != value:  # NaN
        return None
    return unicodedata.normalize("NFC", str(value).strip()) or None
