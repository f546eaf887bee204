"""The splits of the data, and what names of files and folders mean them."""

import re

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
