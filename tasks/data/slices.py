"""Reads the slices of the test split. A slice is the images that share a value, such as the camera.

A rule of the gate names the slice of a value, `accuracy[camera=Canon EOS R5]`, or all slices of a
column, `accuracy[camera]`. Two columns belong to no image alone: `new` has only the images that the
champion's data did not have, and `week` is when an image came.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from retrain.project import Project
from retrain.step import digest_of
from retrain.store import Artifact, Store

# A row per test image: `sha256`, and a text for each column; null where an image is in no slice.
FILE = "slices.parquet"
NEW, WEEK = "new", "week"

Slice = dict[str, Any]  # as the step `slice` gives it

_NAME = re.compile(r"accuracy\[([^=\]]+)(?:=(.*))?\]", re.DOTALL)


@dataclass(frozen=True)
class Divided:
    """The test split, divided by columns.

    Attributes:
        parts: The outputs of the steps that divide it, each with some of the columns in its `FILE`,
            and with the fact `limits`, as `tasks.slice.step.slice_` gives it.
    """

    step = "divided"  # its name as an input
    parts: tuple[Artifact, ...] = ()

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the outputs."""
        return digest_of([part.digest for part in self.parts])

    def fetch(self, project: Project) -> None:
        """Has the files here, if the store has a remote."""
        for part in self.parts:
            Store.of(project).fetch(part)

    def column(self, name: str) -> pa.ChunkedArray:
        """The texts of a column, in the order of the test images."""
        files = (part.folder / FILE for part in self.parts)
        [file] = [file for file in files if name in pq.read_schema(file).names]
        return pq.read_table(file, columns=[name])[name]


@dataclass(frozen=True)
class Slices:
    """The slices of the test split, with the challenger's accuracy in each.

    Attributes:
        divided: The test split; without parts if there are no slices.
        scores: The output of `score_slices`; None if there are no slices.
    """

    step = "slices"  # its name as an input
    divided: Divided = Divided()
    scores: Artifact | None = None

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the outputs; empty without slices."""
        return self.divided.digest + self.scores.digest if self.scores else ""

    @property
    def new(self) -> "Slices":
        """The slice of new images alone; no slices if it is not known what is new."""
        parts = tuple(part for part in self.divided.parts if part.step == f"slice_{NEW}")
        return Slices(Divided(parts), self.scores) if parts else NO_SLICES

    @property
    def all(self) -> Sequence[Slice]:
        """All slices, by column."""
        return self.scores.facts["slices"] if self.scores else ()

    def named(self, column: str, value: str | None) -> list[Slice]:
        """The slices of a column, or the one of a value; none of `NEW` if no test image is new.

        Raises:
            ValueError: No test image has the value.
        """
        of_column = [part for part in self.all if part["column"] == column]
        named = [part for part in of_column if value in (None, part["value"])]
        if not named and column != NEW:
            values = ", ".join(part["value"] for part in of_column)
            raise ValueError(
                f"gate: no test image has {column}={value}; there are the values {values}."
            )
        return named

    def contains(self, part: Slice) -> NDArray[np.bool_]:
        """Bool (images of the test split,): whether each is in a slice."""
        equal = pc.equal(self.divided.column(part["column"]), part["value"])
        mask: NDArray[np.bool_] = equal.fill_null(False).to_numpy()
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
