"""Assigns the images to splits."""

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from retrain.workload import Split


def assign_splits(images: "pa.Table", present: Collection[str], fractions: "Split") -> "pa.Table":
    """Gives the images a split where the data's names define none.

    A missing split is taken out of the training images, or out of all images if the data has no
    splits at all. An image's SHA-256, read as a fraction of the largest one, decides: so identical
    images stay together, new images do not move others, and any part of the images can be split
    without the rest.

    Args:
        images: With columns `sha256` and `split`, which may be missing.
        present: The splits that the data has.
        fractions: How much of these images `val` and `test` get.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    splits = images["split"].fill_null("train").to_numpy()
    undecided = splits == "train"
    digits = "".join(pc.utf8_slice_codeunits(images["sha256"], 0, 16).to_pylist())
    # 52 bits of them are a float64 without rounding.
    place = (np.frombuffer(bytes.fromhex(digits), ">u8") >> 12) / 2**52
    begin = 0.0
    for name, fraction in (("test", fractions.test), ("val", fractions.val)):
        if name not in present:
            end = begin + fraction
            splits = np.where(undecided & (place >= begin) & (place < end), name, splits)
            begin = end
    column = images.schema.get_field_index("split")
    return images.set_column(column, "split", pa.array(splits, pa.string()))
