"""Checks the data before a model is trained on it, and sets single bad images aside.

Every image is decoded once, spread over Ray; what is learnt about it becomes a row of a table, and
Great Expectations judges the tables.
"""

import hashlib
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from models.image import inspect
from retrain.errors import RejectedDataError
from retrain.step import Step
from tasks import expectations
from tasks.parallel import run_tasks
from tasks.source import SPLITS, Source, Unit, open_source
from tasks.splits import assign_splits, find_shared

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from retrain.artifact import Artifact
    from retrain.step import Facts, Workspace
    from retrain.workload import Checks, Data
    from tasks.expectations import Finding

EXAMPLES = 5


def validate(data: "Data", checks: "Checks", pulled: "Artifact", workspace: "Workspace") -> "Facts":
    """Checks every image, every class and every split.

    Writes `images.parquet`, the accepted images: split, path, label, file, row, width, height,
    mode, bytes, sha256, sorted by split, file and row; `quarantined.parquet`, the bad ones, with
    the reason; and `report/data_docs/`.

    Returns:
        `rows` of each split, and how many images were `quarantined`.

    Raises:
        RejectedDataError: More than `checks.max_bad_fraction` of the images are bad, or the others
            do not suffice. All that is wrong is kept in the project's state.
        ValueError: The data cannot be read.
    """
    import pandas as pd
    import pyarrow as pa

    source = open_source(data, pulled)
    units = source.units()
    seconds = sum(unit.seconds for unit in units)
    table = pa.concat_tables(run_tasks(partial(_inspect, source), units, seconds=seconds))
    sides = {pa.int32(): pd.Int32Dtype()}  # else, a missing one would make floats of them all
    images = assign_splits(table.to_pandas(types_mapper=sides.get), data.split)
    images = images.sort_values(["split", "file", "row"], ignore_index=True)

    examination = expectations.Examination(workspace.report / "data_docs")
    trained = images["label"][images["split"] == "train"].dropna().unique()
    bad = examination.check(
        "images",
        images.assign(
            shorter_side=images[["width", "height"]].min(axis="columns"),
            longer_side=images[["width", "height"]].max(axis="columns"),
            also_in=find_shared(images),
        ),
        expectations.image_rules(checks, sorted(trained)),
    )
    reasons = pd.concat([finding.reasons for finding in bad] or [pd.Series(dtype=str)])
    reasons = reasons.groupby(level=0).agg("; ".join)
    quarantined = images.loc[reasons.index].assign(reason=reasons)
    accepted = images.drop(reasons.index)
    lacking = examination.check(
        "classes",
        expectations.count_classes(accepted, checks.labels),
        expectations.class_rules(checks),
    ) + examination.check("splits", expectations.count_splits(accepted), expectations.split_rules())
    examination.write_docs()

    _write(accepted, workspace.folder / "images.parquet")
    _write(quarantined, workspace.folder / "quarantined.parquet")
    if len(quarantined) / len(images) > checks.max_bad_fraction or lacking:
        raise RejectedDataError(_reject(images, bad, lacking, checks, workspace))
    counts = accepted["split"].value_counts()
    return {
        "rows": {split: int(counts[split]) for split in SPLITS},
        "quarantined": len(quarantined),
    }


def _inspect(source: Source, unit: Unit) -> "pa.Table":
    """A row for each image of a unit, with `error` where it does not decode."""
    import pyarrow as pa

    rows = []
    for raw in source.read(unit):
        row = {
            "split": raw.split,
            "path": raw.path,
            "label": raw.label,
            "file": raw.file,
            "row": raw.row,
            "bytes": len(raw.data),
            "sha256": hashlib.sha256(raw.data).hexdigest(),
        }
        try:
            found = inspect(raw.data)
            row |= {"width": found.width, "height": found.height, "mode": found.mode}
        except ValueError as error:
            row["error"] = str(error)
        rows.append(row)
    return pa.Table.from_pylist(rows, schema=_schema().append(pa.field("error", pa.string())))


def _schema() -> "pa.Schema":
    """The columns that say what an image is."""
    import pyarrow as pa

    return pa.schema(
        {
            "split": pa.string(),
            "path": pa.string(),
            "label": pa.string(),
            "file": pa.string(),
            "row": pa.int64(),
            "width": pa.int32(),
            "height": pa.int32(),
            "mode": pa.string(),
            "bytes": pa.int64(),
            "sha256": pa.string(),
        }
    )


def _write(images: "pd.DataFrame", path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _schema()
    if "reason" in images:
        schema = schema.append(pa.field("reason", pa.string()))
    table = pa.Table.from_pandas(images, schema, preserve_index=False)
    pq.write_table(table.replace_schema_metadata(None), path)


def _reject(
    images: "pd.DataFrame",
    bad: "Sequence[Finding]",
    lacking: "Sequence[Finding]",
    checks: "Checks",
    workspace: "Workspace",
) -> str:
    """Keeps what shows why, and says it: a line for each expectation that failed."""
    kept = workspace.project.state / "rejected" / workspace.workload
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(workspace.report / "data_docs", kept / "data_docs")
    shutil.copy(workspace.folder / "quarantined.parquet", kept)

    lines = ["The data is rejected:"]
    for finding in bad:
        reasons = finding.reasons[:EXAMPLES]
        examples = [
            f"{image.split} {image.path} ({reason})"
            for image, reason in zip(images.loc[reasons.index].itertuples(), reasons, strict=True)
        ]
        lines.append(_line(finding, examples))
    lines += [_line(finding, list(finding.reasons[:EXAMPLES])) for finding in lacking]
    if bad:
        found = len(set().union(*(finding.reasons.index for finding in bad)))
        lines.append(
            f"In all {found:,} of {len(images):,} images are bad, {found / len(images):.3%}; "
            f"checks.max_bad_fraction lets {checks.max_bad_fraction:.3%} be set aside."
        )
    lines.append(f"All of them: {kept / 'quarantined.parquet'} and {kept / 'data_docs/index.html'}")
    return "\n".join(lines)


def _line(finding: "Finding", examples: Sequence[str]) -> str:
    more = len(finding.reasons) - len(examples)
    return (
        f"- {finding.fault}: {len(finding.reasons):,} of {finding.rows:,}: "
        f"{', '.join(examples)}{f', and {more:,} more' if more else ''}"
    )


STEP = Step(
    "validate",
    validate,
    reads=("data.image_column", "data.label_column", "data.split", "checks"),
    inputs=("pull",),
    libraries=("pillow", "pyarrow"),
)
