"""The lineage of a version: what it was made of, how, where, and by which code.

It is a part of the version's record, which is written once, when the version is registered, as an
artifact of the MLflow run of the training. The version has the record's SHA-256 as a tag, which is
also the record's name, so it cannot be edited unseen. The lineage decides nothing and is no input
of a step: it may hold times and paths. What it has, by name:

- `model`; `package` and `weights`, the SHA-256 (hex) of what is served and of its weights; `time`,
  when it was registered (ISO 8601, UTC); `mlflow_run`, the run of the training
- `commit`, whose code registered it, and by whose code all its steps have the keys that they have,
  None outside git; `uncommitted`, what differed from it, as `Project.uncommitted` gives it;
  `requirements`, SHA-256 (hex) of `requirements.lock`, None without that file
- `data`: `version`, whether it is `tracked` by DVC, the git `revision` that was asked for, the
  `pin` (DVC's hash of all of `data/`), and the `path`
- `entry`, that of the workload in `params.yaml`; `overrides`, what replaced its parameters in that
  run, by dotted name; `parameters`, all of them, with what was `auto` decided; None if not known
- `validation`, what the checks of the data found; `images`: the `step` that listed them, the `key`
  of its output, the `file` in it (Parquet, with `COLUMNS` among its columns), and of each of the
  `splits` how many `rows` it has and `sha256` (hex) over the sorted SHA-256s of its images, each
  (hex) with a line feed
- `training`, what that said of itself: its numerics, the best epoch; `metrics` of the evaluation
- `steps`, the outputs from the data to the evaluation, in order: the `step`, the `digest` of the
  output, the `key` of its `plan`, None like the plan if the store had lost it, and its `provenance`
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retrain.errors import UsageError
from retrain.project import Project
from retrain.registry import versions
from retrain.registry.versions import ModelVersion
from retrain.store import Store

COLUMNS = ("path", "split", "label", "sha256")  # of a list of images
BATCH = 1 << 16  # images, of which the digests are hashed at once


def read(project: Project, version: ModelVersion) -> dict[str, Any]:
    """The lineage of a version.

    Raises:
        ValueError: The record is gone, or was changed.
    """
    record = versions.read_record(project, version)
    record.pop("version", None)  # what is in the registry, too
    return record


def output_of(record: Mapping[str, Any], step: str) -> dict[str, Any]:
    """The output of a step, on the way to a version."""
    return next(output for output in record["steps"] if output["step"] == step)


def libraries(record: Mapping[str, Any]) -> dict[str, str]:
    """The version of each library that changed one of the outputs."""
    plans = [output["plan"] or {"libraries": {}} for output in record["steps"]]
    return {name: value for plan in plans for name, value in plan["libraries"].items()}


def digests_of_images(file: Path) -> dict[str, dict[str, Any]]:
    """The `splits` of `Images`, from a list of images (Parquet)."""
    from pyarrow import compute, parquet

    table = parquet.read_table(file, columns=["split", "sha256"]).sort_by("sha256")
    digests = {}
    for split in table["split"].unique().to_pylist():
        rows = table.filter(compute.equal(table["split"], split))
        digest = hashlib.sha256()
        for batch in rows.to_batches(max_chunksize=BATCH):
            digest.update("".join(f"{line}\n" for line in batch["sha256"].to_pylist()).encode())
        digests[split] = {"rows": len(rows), "sha256": digest.hexdigest()}
    return digests


def write_images(project: Project, record: Mapping[str, Any], file: Path) -> int:
    """Writes the list of a version's images to a file, Parquet or CSV; returns how many they are.

    Raises:
        UsageError: The file's name has another suffix, or it cannot be written.
        ValueError: The store has lost the list, or it has changed.
    """
    from pyarrow import csv, parquet

    write = {".parquet": parquet.write_table, ".csv": csv.write_csv}.get(file.suffix)
    if write is None:
        raise UsageError(f"--images {file}: name a file that ends in .parquet or .csv.")
    images, store = record["images"], Store.of(project)
    step, key = images["step"], images["key"]
    digest = output_of(record, step)["digest"]
    artifact = store.find(step, key) or store.find_digest(step, digest)
    if artifact is None:
        revision = f" --data-rev {record['commit']}" if record["data"]["tracked"] else ""
        raise ValueError(
            f"The store has lost the list of the images ({step} {key[:12]}), so only "
            "their digest per split is known. With the code and the checks of then, this makes it "
            f"again: retrain {step} {record['entry'] or record['model']}{revision}"
        )
    listed = artifact.folder / images["file"]
    if digests_of_images(listed) != images["splits"]:
        raise ValueError(f"{listed} has changed since the version was registered.")
    table = parquet.read_table(listed, columns=list(COLUMNS)).select(list(COLUMNS))
    try:
        with file.open("wb") as sink:
            write(table, sink)
    except OSError as error:
        raise UsageError(f"--images {file} cannot be written: {error.strerror}.") from error
    return len(table)
