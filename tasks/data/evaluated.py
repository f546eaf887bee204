"""Finds in the store what a registered version was evaluated on.

The predictions of the evaluation are those of the version's package.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrain.registry.versions import ModelVersion
from retrain.store import Store
from tasks.data import image_table
from tasks.data.raw_dataset import RawDataset, RawImage, Reader, Unit, open_format, unit_of

SPLIT = "test"


@dataclass(frozen=True)
class Evaluated:
    """What a version was evaluated on.

    Attributes:
        predictions: The output of `evaluate`.
        validated: The output of `validate`: which images are in the test split.
        source: The data.
    """

    predictions: Path
    validated: Path
    source: RawDataset


def find_evaluated(store: Store, version: ModelVersion) -> Evaluated | None:
    """What a version was evaluated on; None if the store has lost a part of it."""
    evaluated = _find(
        store, "evaluate", lambda each: each["facts"].get("package") == version.package_digest
    )
    embedded = _input_of(store, evaluated, "embed")
    prepared = _input_of(store, embedded or evaluated, "preprocess")
    pulled, validated = (_input_of(store, prepared, name) for name in ("pull", "validate"))
    if not (evaluated and prepared and pulled and validated):
        return None
    config = prepared[1]["plan"]["config"]
    names = {name: config[f"data.{name}"] for name in ("image_column", "label_column")}
    source = open_format(pulled[1]["facts"]["format"], pulled[0] / "data", **names)
    return Evaluated(evaluated[0], validated[0], source)


Found = tuple[Path, Mapping[str, Any]]  # the folder of an artifact, and its manifest


def _find(store: Store, step: str, matches: Callable[[Mapping[str, Any]], bool]) -> Found | None:
    """An artifact of a step whose manifest matches."""
    for name, key in store.entries():
        if name == step:
            manifest, damage = store.inspect(step, key)
            if not damage and matches(manifest):
                return store.folder(step, key), manifest
    return None


def _input_of(store: Store, found: Found | None, step: str) -> Found | None:
    """The output of a step that an artifact was made of."""
    digest = found and found[1]["plan"]["inputs"].get(step)
    return _find(store, step, lambda each: each["digest"] == digest) if digest else None


@dataclass(frozen=True)
class EvaluatedImages:
    """Reads the images of a test split, and no others; cheap to send to a worker of Ray.

    Attributes:
        data: Reads all of the data.
        validated: The output of `validate`.
    """

    data: Reader
    validated: Path

    def parts(self) -> Iterator[Unit]:
        """The images, in units of those of the data; see `tasks.data.raw_dataset.Reader`."""
        for table in image_table.read_split(self.validated, SPLIT, ["file", "row"]):
            yield unit_of(zip(*table.to_pydict().values(), strict=True))

    def read(self, unit: Unit) -> Iterator[RawImage]:
        """The images of a unit; see `tasks.data.raw_dataset.Reader`."""
        return self.data.read(unit)
