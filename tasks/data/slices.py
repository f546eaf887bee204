"""Reads the slices of the test split. A slice is the images that share a value, such as the camera.

A rule of the gate names the slice of a value, `accuracy[camera=Canon EOS R5]`, or all slices of a
column, `accuracy[camera]`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from retrain.store import Artifact

FILE = "slices.parquet"  # a row per test image: `sha256`, and a text for each column

Slice = dict[str, Any]  # as the step `slice` gives it

_NAME = re.compile(r"accuracy\[([^=\]]+)(?:=(.*))?\]", re.DOTALL)


@dataclass(frozen=True)
class Slices:
    """The slices of the test split, with the challenger's accuracy in each.

    Attributes:
        divided: The output of `slice`.
        scores: The output of `score_slices`. Both are None if there are no slices.
    """

    step = "slices"  # its name as an input
    divided: Artifact | None = None
    scores: Artifact | None = None

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the outputs; empty without slices."""
        return self.divided.digest + self.scores.digest if self.divided and self.scores else ""

    @property
    def all(self) -> Sequence[Slice]:
        """All slices, by column."""
        return self.scores.facts["slices"] if self.scores else ()

    def named(self, column: str, value: str | None) -> list[Slice]:
        """The slices of a column, or the one of a value.

        Raises:
            ValueError: No test image has the value.
        """
        of_column = [part for part in self.all if part["column"] == column]
        named = [part for part in of_column if value in (None, part["value"])]
        if not named:
            values = ", ".join(part["value"] for part in of_column)
            raise ValueError(
                f"gate: no test image has {column}={value}; there are the values {values}."
            )
        return named

    def contains(self, part: Slice) -> NDArray[np.bool_]:
        """Bool (images of the test split,): whether each is in a slice."""
        assert self.divided
        column = pq.read_table(self.divided.folder / FILE, columns=[part["column"]]).column(0)
        mask: NDArray[np.bool_] = pc.equal(column, part["value"]).to_numpy()
        return mask


NO_SLICES = Slices()


def parse(metric: str) -> tuple[str, str | None] | None:
    """The column, and the value or None, in the name of a metric of slices.

    Returns:
        None for the name of another metric.
    """
    match = _NAME.fullmatch(metric)
    return (match[1], match[2]) if match else None


def metric_of(part: Slice) -> str:
    """The name of the accuracy in a slice."""
    return f"accuracy[{part['column']}={part['value']}]"
