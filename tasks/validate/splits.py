"""Assigns images to the splits that the data's names do not define.

A missing split is taken out of the training images, or out of all images if the data has no splits
at all. Images that have to stay together form a tie: those with the same pixels, and those of the
same group (`data.group`). Whole ties are assigned to a split.

Each tie has a place, a number from 0 to 1 that follows from the digest of its pixels, or from the
value of its group. Ties with places below `data.split.test` are test, and the next ones are val. If
a class then has too few ties in test or val, the ties with the next places are added. So no tie
moves from train to val or test when images are added; a tie that was held out only because its
class had too few may move back to train. (Exact shares in each class could not guarantee this: they
would move a few images both ways each time.) The exception is a class whose ties would all be held
out: the last of them are used for training.

With `data.time`, the newest images are test and those before them val, whatever their classes.
"""

import hashlib
import sqlite3

import numpy as np
from numpy.typing import NDArray

from retrain.workload import Checks, Split

# The images that are divided: the others of a class are set aside as bad ones.
_DIVIDED = (
    "split IS NULL AND tie IS NOT NULL AND label IS NOT NULL AND other_label IS NULL"
    " AND shorter_side >= :min_side AND longer_side <= :max_side"
)

# In a class, `tests` ties come first and are test; those before `held` are val. A tie with images
# of several classes is held out if it is for one of them.
_BY_PLACE = f"""
WITH each AS (
    SELECT DISTINCT label, tie, place(tie) AS place FROM images WHERE {_DIVIDED}
), ranked AS (
    SELECT tie, ROW_NUMBER() OVER (of_class ORDER BY place, tie) AS nth,
        COUNT(*) OVER of_class AS ties,
        SUM(place < :test) OVER of_class AS tests,
        SUM(place < :test + :val) OVER of_class AS held,
        min(:least, COUNT(*) OVER of_class / 3) AS least
    FROM each WINDOW of_class AS (PARTITION BY label)
), with_test AS (
    SELECT *, min(
        max(tests, least * (:test > 0)), ties - max(least, 1) - least * (:val > 0)
    ) AS last_test FROM ranked
), with_val AS (
    SELECT *, min(max(held, last_test + least * (:val > 0)), ties - max(least, 1)) AS last_val
    FROM with_test
)
UPDATE images SET split = iif(held_out = 2, 'test', 'val') FROM (
    SELECT tie AS one, MAX((nth <= last_test) + (nth <= last_val)) AS held_out
    FROM with_val GROUP BY tie
) WHERE split IS NULL AND tie = one AND held_out > 0
"""

# The images of one time stay together, and a tie is as old as its newest image.
_BY_TIME = f"""
WITH each AS (
    SELECT tie, MAX(time) AS time, COUNT(*) AS images FROM images
    WHERE {_DIVIDED} AND time IS NOT NULL GROUP BY tie
), sorted AS (
    SELECT tie, SUM(images) OVER () AS total,
        SUM(images) OVER (ORDER BY time DESC)
        - SUM(images) OVER (PARTITION BY time) AS newer
    FROM each
)
UPDATE images SET split = iif(is_test, 'test', 'val') FROM (
    SELECT tie AS one, newer < :test * total AS is_test,
        newer < :test * total + :val * total AS is_held
    FROM sorted
) WHERE split IS NULL AND tie = one AND is_held
"""


def assign_splits(
    database: sqlite3.Connection,
    fractions: Split,
    checks: Checks,
    by_time: bool,
) -> None:
    """Sets `split` of the images where the data's names define none.

    Args:
        database: A database with the table `images`.
        fractions: How much of these images `val` and `test` get.
        checks: How many images of a class a split should have, where there are three times as many.
        by_time: Whether their times decide.
    """
    database.create_function("place", 1, _place, deterministic=True)
    present = {split for (split,) in database.execute("SELECT DISTINCT split FROM images")}
    values = {
        "val": 0 if "val" in present else fractions.val,
        "test": 0 if "test" in present else fractions.test,
        "least": max(1, checks.min_images_per_class_and_split),
        "min_side": checks.min_side,
        "max_side": checks.max_side,
    }
    with database:
        # Of data with some splits, it is the training images that are divided.
        database.execute("UPDATE images SET split = NULL WHERE split = 'train'")
        if values["val"] or values["test"]:
            database.execute(_BY_TIME if by_time else _BY_PLACE, values)
        database.execute("UPDATE images SET split = 'train' WHERE split IS NULL")


def _place(tie: int) -> float:
    """A number from 0 to 1, with 52 bits, so that it is a float64 without rounding."""
    digest = hashlib.sha256(tie.to_bytes(8, "big", signed=True)).digest()
    return (int.from_bytes(digest[:8], "big") >> 12) / 2**52


def code(text: str) -> int:
    """A number of 64 bits for a text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)


def equal(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Pairs (2, P) of the indices of equal values, enough of them to connect all that are equal."""
    order = np.argsort(values, kind="stable")
    in_order = values[order]
    same = np.flatnonzero(in_order[1:] == in_order[:-1])
    return np.stack([order[same], order[same + 1]])


def connect(pairs: NDArray[np.int64], names: NDArray[np.int64]) -> NDArray[np.int64]:
    """The smallest name among all that each is connected with.

    Args:
        pairs: int64 (2, P), indices of those that are connected.
        names: int64 (N,).
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    links = coo_array((np.ones(pairs.shape[1], bool), tuple(pairs)), shape=(len(names),) * 2)
    parts, part = connected_components(links, directed=False)
    smallest = np.full(parts, np.iinfo(np.int64).max)
    np.minimum.at(smallest, part, names)
    connected: NDArray[np.int64] = smallest[part]
    return connected
