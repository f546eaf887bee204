"""Checks, before a package is registered, that it gives the answers that were evaluated.

It is loaded in this process, because another one would need 5 s for its imports; but with its own
copy of `models`, from its own folder.
"""

import importlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.data import image_table
from tasks.data.accepted_images import AcceptedImage, read_images

if TYPE_CHECKING:
    from mlflow.pyfunc import PyFuncModel

    from tasks.data.raw_dataset import RawDataset

SPLIT = "test"
PREDICTIONS = "predictions.parquet"
SAMPLE = 64
# The most parts of the data that are read for the sample, however large they are.
PARTS = 8
# The largest difference of a probability. On CPUs, batches of another size changed one by up to
# 2.4e-7 in fp32 and by nothing in bf16. But on a GPU a convolution in fp32 may run in TF32,
# which changed one by 1.3e-4; and all of bf16 changed one by 3e-3.
TOLERANCE = {"fp32": 1e-3, "bf16": 2e-2}


def sample(source: "RawDataset", validated: Path) -> Iterator[AcceptedImage]:
    """Some test images, evenly spaced over the split, or over some parts of large data.

    Args:
        source: The data.
        validated: The output of `validate`.
    """
    parts, first = [], 0
    for group in image_table.row_groups(validated):
        if count := group.rows.get(SPLIT, 0):
            parts.append(range(first, first + count))
            first += count
    rows = [row for part in _spread(parts, PARTS) for row in part]
    yield from read_images(source, validated, SPLIT, _spread(rows, SAMPLE))


def check(package: Path, precision: str, images: Iterable[AcceptedImage], evaluated: Path) -> None:
    """Compares a package's answers with those that the evaluation wrote.

    A different label is accepted as a tie if the probabilities of both labels differ by no more
    than rounding.

    Args:
        package: A folder as `write_package` writes it.
        precision: The precision of its answers.
        images: Some of the test split.
        evaluated: The output of `evaluate`.

    Raises:
        ValueError: They differ; the message says where and by how much.
    """
    import pandas as pd

    asked = list(images)
    with _loaded(package) as model:
        answers = model.predict(pd.DataFrame({"image": [image.data for image in asked]}))
    tolerance = TOLERANCE[precision]
    expected = _evaluated(evaluated, {image.sha256 for image in asked})
    for image, answer in zip(asked, answers.to_dict("records"), strict=True):
        before, label = expected[image.sha256], answer["label"]
        found = difference(before, answer["probabilities"], label, tolerance)
        if found is not None:
            raise ValueError(
                f"The package answers {label!r} for {image.path}, where the evaluation says "
                f"{max(before, key=before.__getitem__)!r}; their probabilities differ by up to "
                f"{found:.2g} ({tolerance:g} is allowed). Nothing is registered."
            )


def difference(
    before: Mapping[str, float], now: Mapping[str, float], label: str, tolerance: float
) -> float | None:
    """By how much two answers differ; None if they are the same except for rounding.

    Args:
        before: The probability of each class.
        now: The same, of the answer that is checked.
        label: The class of that answer.
        tolerance: The largest difference of a probability.
    """
    largest = max(abs(before[name] - now[name]) for name in before)
    tied = max(before.values()) - before[label] <= tolerance
    return None if largest <= tolerance and tied else largest


def _spread(values: Any, count: int) -> list[Any]:
    """`count` values, evenly spaced; all if there are fewer."""
    total = len(values)
    return (
        [values[place * total // count] for place in range(count)] if total > count else [*values]
    )


def _evaluated(folder: Path, wanted: set[str]) -> Mapping[str, Mapping[str, float]]:
    """The probabilities that the evaluation wrote for some images (by SHA-256), by class."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import parquet

    found = {}
    with parquet.ParquetFile(folder / PREDICTIONS) as file:
        known = json.loads(file.schema_arrow.metadata[b"labels"])
        for batch in file.iter_batches(columns=["sha256", "probabilities"]):
            batch = batch.filter(pc.is_in(batch["sha256"], pa.array(sorted(wanted))))
            for sha256, values in zip(
                *(column.to_pylist() for column in batch.columns), strict=True
            ):
                found[sha256] = dict(zip(known, values, strict=True))
    return found


@contextmanager
def _loaded(package: Path) -> "Iterator[PyFuncModel]":
    """Loads a package with its own code, and removes that code from this process afterwards."""
    import mlflow

    path, bytecode = sys.path, sys.dont_write_bytecode
    replaced = {name: module for name, module in sys.modules.items() if _is_models(name)}
    for name in replaced:
        del sys.modules[name]
    sys.dont_write_bytecode = True  # bytecode would change the package
    importlib.invalidate_caches()
    try:
        yield mlflow.pyfunc.load_model(str(package))
    finally:
        sys.path, sys.dont_write_bytecode = path, bytecode
        inside = f"{package}{os.sep}"
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if _is_models(name) or (file and file.startswith(inside)):
                del sys.modules[name]
        sys.modules.update(replaced)


def _is_models(name: str) -> bool:
    return name.partition(".")[0] == "models"
