"""Writes predictions as people want them: as CSV, or as JSON lines."""

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from retrain import disk

PARQUET = ".parquet"  # the form in which they are made
SUFFIXES = (PARQUET, ".csv", ".jsonl")


def write_as(predictions: Path, output: Path) -> None:
    """Writes the rows of a Parquet file in the form that the suffix of another file says.

    A probability is named by its class: in CSV it has a column of its own, `probability[cat]`.

    Args:
        predictions: What `predict` has written.
        output: The file to write; it appears at the end, as a whole.
    """
    with (
        pq.ParquetFile(predictions) as file,
        disk.replacing(output) as aside,
        aside.open("w", encoding="utf-8", newline="") as opened,
    ):
        classes = json.loads(file.schema_arrow.metadata[b"labels"])
        others = [name for name in file.schema_arrow.names if name != "probabilities"]
        table = csv.DictWriter(opened, [*others, *(f"probability[{name}]" for name in classes)])
        if output.suffix.lower() == ".csv":
            table.writeheader()
        for batch in file.iter_batches():
            for row in batch.to_pylist():
                values: list[Any] = row.pop("probabilities") or [None] * len(classes)
                if output.suffix.lower() == ".csv":
                    named = zip(classes, values, strict=True)
                    table.writerow(row | {f"probability[{name}]": value for name, value in named})
                else:
                    row["probabilities"] = dict(zip(classes, values, strict=True))
                    opened.write(json.dumps(row, ensure_ascii=False) + "\n")
