"""Which image belongs to which split, and which is in more than one."""

from typing import TYPE_CHECKING

from tasks.source import SPLITS

if TYPE_CHECKING:
    import pandas as pd

    from retrain.workload import Split


def assign_splits(images: "pd.DataFrame", fractions: "Split") -> "pd.DataFrame":
    """Gives the images a split where the data's names tell none.

    A split that the data lacks is taken out of its training images, or of all of them when it has
    no splits at all. An image's SHA-256, read as a fraction of the largest one, decides: so
    identical images stay together, and an image stays where it is when others come.

    Args:
        images: With columns `sha256` and `split`, which may be missing.
        fractions: How much of these images `val` and `test` get.
    """
    undecided = images["split"].isna() | (images["split"] == "train")
    place = images["sha256"].str[:13].map(lambda digits: int(digits, 16) / 16**13)
    splits = images["split"].fillna("train")
    begin = 0.0
    for name, fraction in (("test", fractions.test), ("val", fractions.val)):
        if not (images["split"] == name).any():
            end = begin + fraction
            splits = splits.mask(undecided & (place >= begin) & (place < end), name)
            begin = end
    return images.assign(split=splits)


def find_shared(images: "pd.DataFrame") -> "pd.Series[str]":
    """Finds the images whose content is in a split that is held out from theirs.

    The copy to set aside is the one that is held out the least. Training loses one example of
    many that way, where `test` would lose a row that this model and the one in production are
    compared on.

    Args:
        images: With columns `split`, `sha256`, and `error` if it does not decode.

    Returns:
        The split that holds the copy to keep, by the index of `images`; missing for all others.
    """
    decodable = images[images["error"].isna()]
    rank = decodable["split"].map({split: rank for rank, split in enumerate(SPLITS)})
    highest = rank.groupby(decodable["sha256"]).transform("max")
    shared = highest[highest > rank].map(dict(enumerate(SPLITS)))
    return shared.reindex(images.index).astype("str")
