"""Reads columns of the user's own: what is known of images beside their classes.

They are in the Parquet files that hold the images, or in a `metadata.csv` or `metadata.parquet` in
a folder of images, with the names of the files in its column `file_name`, as the Hugging Face hub
has them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

from tasks.data.listing import METADATA, list_files

NAME = "file_name"  # the column of a metadata file


@dataclass(frozen=True)
class OwnColumns:
    """Columns of the user's own in a pulled version of the data.

    Attributes:
        kind: The format of the data: `parquet`, `folders` or `webdataset`.
        root: Its folder.
        names: The columns that are wanted.
        setting: The parameter that asks for them, for errors.
        otherwise: What the columns are not, for the error about data without metadata files.
    """

    kind: str
    root: Path
    names: Sequence[str]
    setting: str
    otherwise: str

    def read(self, images: pa.Table) -> dict[str, list[Any]]:
        """The values of images, by column; None where an image has none.

        Args:
            images: With columns `file`, `row` and `path`, in the order of the files.

        Raises:
            ValueError: There is no such column, or a file with it cannot be read.
        """
        return self._from_rows(images) if self.kind == "parquet" else self._from_metadata(images)

    def _from_rows(self, images: pa.Table) -> dict[str, list[Any]]:

        values_of: dict[str, list[Any]] = {name: [] for name in self.names}
        for file in images["file"].unique().to_pylist():
            rows = images.filter(pc.equal(images["file"], file))["row"]
            values = self._of_file(file).take(rows)
            for name in self.names:
                values_of[name] += values[name].to_pylist()
        return values_of

    @cached_property
    def _of_file(self) -> Callable[[str], pa.Table]:
        """The columns of a Parquet file with images; of the last one they are kept."""

        def read(file: str) -> pa.Table:

            self._check(self.names, pq.read_schema(self.root / file).names, file)
            return pq.read_table(self.root / file, columns=self.names)

        return lru_cache(maxsize=1)(read)

    def _from_metadata(self, images: pa.Table) -> dict[str, list[Any]]:

        listed = self._metadata
        places = pc.index_in(images["path"], value_set=listed[NAME].combine_chunks())
        return {name: listed[name].take(places).to_pylist() for name in self.names}

    @cached_property
    def _metadata(self) -> pa.Table:
        """The rows of all metadata files, with the files' names from the root of the data."""
        files = [name for name, _ in list_files(self.root) if name.rpartition("/")[2] in METADATA]
        if not files:
            raise ValueError(
                f"{self.setting}: {', '.join(self.names)} is {self.otherwise}, and data.path "
                f"holds no {' or '.join(METADATA)} with columns of your own."
            )
        return pa.concat_tables(map(self._rows, files), promote_options="permissive")

    def _rows(self, file: str) -> pa.Table:
        """The rows of a metadata file.

        Raises:
            ValueError: It lacks a column, or it cannot be read.
        """
        path = self.root / file
        read: Callable[[Path], pa.Table]
        read = csv.read_csv if path.suffix == ".csv" else pq.read_table
        try:
            table = read(path)
        except (pa.ArrowInvalid, OSError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"{file} cannot be read: {reason}") from None
        self._check([NAME, *self.names], table.column_names, file)
        table = table.select([NAME, *self.names])
        above = file.removesuffix(path.name)
        named = pc.binary_join_element_wise(above, table[NAME].cast(pa.string()), "")
        return table.set_column(0, NAME, named)

    def _check(self, wanted: Sequence[str], known: Sequence[str], file: str) -> None:
        missing = [name for name in wanted if name not in known]
        if missing:
            raise ValueError(
                f"{self.setting}: {file} has no column {', '.join(missing)}, but "
                f"{', '.join(known)}."
            )
