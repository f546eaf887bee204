"""The lineage of a version: what it was made of, how, where, and by which code.

It is a part of the version's record, which is written once, when the version is registered, as an
artifact of the MLflow run of the training. The version has the record's SHA-256 as a tag, which is
also the record's name, so it cannot be edited unseen. The lineage decides nothing and is no input
of a step: it may hold times and paths.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retrain.errors import UsageError
from retrain.project import Project
from retrain.registry import versions
from retrain.registry.versions import ModelVersion
from retrain.store import Store

COLUMNS = ("path", "split", "label", "sha256")  # of a list of images
BATCH = 1 << 16  # images, of which the digests are hashed at once


@dataclass(frozen=True)
class Made:
    """The output of a step, on the way to a version.

    Attributes:
        step: The name of the step.
        digest: SHA-256 (hex) of the output.
        key: The key of its plan; None if the store did not have it any more.
        plan: What it depended on, as `retrain.outputs.Plan` has it; None if
            the store did not have it any more.
        provenance: How it was made, as `retrain.outputs.Artifact` has it; empty if the store did
            not have it any more.
    """

    step: str
    digest: str
    key: str | None = None
    plan: Mapping[str, Any] | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Images:
    """The images that a version was trained and evaluated on.

    Attributes:
        step: The step that listed them.
        key: The key of that step's output in the store.
        file: The list in that output: Parquet, with `COLUMNS` among its columns.
        splits: Of each split, how many `rows` it has, and `sha256` (hex) over the sorted SHA-256s
            of its images, each (hex) with a line feed.
    """

    step: str
    key: str
    file: str
    splits: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Lineage:
    """How a version came about.

    Attributes:
        model: The name of the model.
        package: SHA-256 (hex) of what is served.
        weights: SHA-256 (hex) of the weights.
        time: When it was registered (ISO 8601, UTC).
        commit: The git commit whose code registered it, and by whose code all its steps have the
            keys that they have; None outside git.
        uncommitted: What differed from that commit, as `Project.uncommitted` gives it.
        data: `version`, whether it is `tracked` by DVC, the git `revision` that was asked for, the
            `pin` (DVC's hash of all of `data/`), and the `path`.
        entry: The workload's entry in `params.yaml`; None if that is not known.
        overrides: What replaced the entry's parameters in that run, by dotted name.
        parameters: All parameters of the workload, with what was `auto` decided; None if
            they are not known.
        requirements: SHA-256 (hex) of `requirements.lock`; None without that file.
        validation: What the checks of the data found.
        images: Which images were used.
        training: What the training said of itself: its numerics, the best epoch.
        metrics: The metrics of the evaluation, by name.
        steps: The outputs from the data to the evaluation, in order.
        mlflow_run: The run of the training.
    """

    model: str
    package: str
    weights: str
    time: str
    commit: str | None
    uncommitted: Mapping[str, Any] | None
    data: Mapping[str, Any]
    entry: str | None
    overrides: Mapping[str, Any]
    parameters: Mapping[str, Any] | None
    requirements: str | None
    validation: Mapping[str, Any]
    images: Images
    training: Mapping[str, Any]
    metrics: Mapping[str, float]
    steps: tuple[Made, ...]
    mlflow_run: str

    @property
    def trained(self) -> Made:
        """The output of the training."""
        return next(output for output in self.steps if output.step == "train")

    @property
    def libraries(self) -> dict[str, str]:
        """The version of each library that changed one of the outputs."""
        plans = [output.plan or {"libraries": {}} for output in self.steps]
        return {name: value for plan in plans for name, value in plan["libraries"].items()}


def read(project: Project, version: ModelVersion) -> Lineage:
    """The lineage of a version.

    Raises:
        ValueError: The record is gone, or was changed.
    """
    values = versions.read_record(project, version)
    values.pop("version", None)  # what is in the registry, too
    images = Images(**values.pop("images"))
    steps = tuple(Made(**output) for output in values.pop("steps"))
    return Lineage(images=images, steps=steps, **values)


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


def write_images(project: Project, lineage: Lineage, file: Path) -> int:
    """Writes the list of a version's images to a file, Parquet or CSV; returns how many they are.

    Raises:
        UsageError: The file's name has another suffix, or it cannot be written.
        ValueError: The store has lost the list, or it has changed.
    """
    from pyarrow import csv, parquet

    write = {".parquet": parquet.write_table, ".csv": csv.write_csv}.get(file.suffix)
    if write is None:
        raise UsageError(f"--images {file}: name a file that ends in .parquet or .csv.")
    images = lineage.images
    [digest] = [output.digest for output in lineage.steps if output.step == images.step]
    store = Store.of(project)
    artifact = store.find(images.step, images.key) or store.find_digest(images.step, digest)
    if artifact is None:
        revision = f" --data-rev {lineage.commit}" if lineage.data["tracked"] else ""
        raise ValueError(
            f"The store has lost the list of the images ({images.step} {images.key[:12]}), so only "
            "their digest per split is known. With the code and the checks of then, this makes it "
            f"again: retrain {images.step} {lineage.entry or lineage.model}{revision}"
        )
    listed = artifact.folder / images.file
    if digests_of_images(listed) != images.splits:
        raise ValueError(f"{listed} has changed since the version was registered.")
    table = parquet.read_table(listed, columns=list(COLUMNS)).select(list(COLUMNS))
    try:
        with file.open("wb") as sink:
            write(table, sink)
    except OSError as error:
        raise UsageError(f"--images {file} cannot be written: {error.strerror}.") from error
    return len(table)
