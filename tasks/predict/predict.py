"""Classifies an input with a registered version, and writes one file in the input's order.

The answers are in the scratch folder until the file is written. A run that was killed goes on with
the missing ones if the input lists the same images, and the file that it writes at its end is the
same, byte by byte. It is made as Parquet; who wants CSV or JSON lines gets a copy in that form.
"""

import csv
import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from retrain import file_io
from retrain.code import code_digests
from retrain.errors import UsageError
from retrain.runs import console
from retrain.step import json_digest
from retrain.store import Store
from tasks.compute.scoring_client import ANSWERS, as_matrix, classify
from tasks.data import image_facts, package, predictions
from tasks.data.champion import RegisteredVersion
from tasks.data.index import list_unlabelled
from tasks.data.raw_images import ImageFiles, Place

NAME = "predict"
PARQUET = ".parquet"  # the form in which the predictions are made
SUFFIXES = (PARQUET, ".csv", ".jsonl")
LIBRARIES = (
    "mlflow", "numpy", "pandas", "pillow", "pyarrow", "torch", "transformers",
)  # fmt: skip
# The columns of the answers; a row is an image. The probabilities are in the order of the package's
# classes. An image that cannot be read, or that the package refuses, has an error in their place
# and in that of the label.
SCHEMA = pa.schema(
    {
        "path": pa.string(),
        "label": pa.string(),
        "probabilities": pa.list_(pa.float32()),
        "sha256": pa.string(),
        "error": pa.string(),
    }
)


@dataclass(frozen=True)
class Source:
    """The images that are classified.

    Attributes:
        files: Reads the images.
        places: Where they are.
        paths: Of each the file's name relative to the input; of a row of a Parquet file the path in
            it, else `file#row`.
    """

    files: ImageFiles
    places: Sequence[Place]
    paths: Sequence[str]

    def state(self) -> str:
        """Another text after a file of the input has changed."""
        root = self.files.root
        paths = sorted(path for path in root.rglob("*") if path.is_file())
        stats = [(str(path.relative_to(root)), path.stat()) for path in paths]
        return json_digest([(path, st.st_ino, st.st_size, st.st_mtime_ns) for path, st in stats])


def open_source(root: Path, place: str, image_column: str | None) -> Source:
    """Finds out what a folder holds.

    Args:
        root: The folder.
        place: The name of the folder, as the user gave it.
        image_column: The Parquet column with the images; None if it has a usual name.

    Raises:
        UsageError: There are no images, or it is not clear which are meant.
    """
    try:
        files, places, names = list_unlabelled(root, image_column)
    except ValueError as error:
        raise UsageError(f"--input {place}: {error}") from None
    if not places and files.image_column is None:
        raise UsageError(
            f"--input {place}: holds no images: name a folder with images or Parquet files, or one "
            "such file."
        )
    paths = [
        path if path != f"{file}:{row}" else f"{file}#{row}"
        for (file, row), path in zip(places, names, strict=True)
    ]
    # The name of a file may be no UTF-8, which cannot be stored.
    return Source(files, places, [os.fsencode(path).decode("utf-8", "replace") for path in paths])


def predict(
    registered: RegisteredVersion, source: Source, output: Path, store: Store
) -> tuple[dict[str, Any], pa.Table]:
    """Classifies all images of an input.

    Args:
        registered: The version that classifies.
        source: The input.
        output: The Parquet file that is written, at the end and as a whole.
        store: The scratch folder in it keeps the answers of a run that is killed.

    Returns:
        What was written, JSON-able: `rows`, how many images; `errors`, how many of them have no
        label; `labels`, how many have each label that any has; and `reused`, how many files of
        answers an earlier run, which was killed, had written. And a sample, as
        `tasks.data.predictions.SAMPLE_SCHEMA` has it.

    Raises:
        ValueError: A file of the input is broken, or the package is.
    """
    metadata = {
        "labels": json.dumps(list(package.classes_of(registered.package))),
        "retrain.model": registered.version.name,
        "retrain.version": str(registered.version.version),
        "retrain.package": registered.version.package_digest,
    }
    images = range(len(source.places))
    labels, samples = Counter[str](), []
    key = _key(registered, source)
    with store.lock(NAME, key):
        scratch = store.scratch(NAME, key)
        reused = len([*scratch.glob(f"{ANSWERS}/*.parquet")])
        with (
            file_io.replacing(output) as aside,
            pq.ParquetWriter(aside, SCHEMA.with_metadata(metadata)) as writer,
        ):
            for some, answers in _answered(registered, source, images, scratch):
                paths = pa.array([source.paths[image] for image in some], pa.string())
                table = answers.append_column("path", paths).select(SCHEMA.names)
                writer.write_table(table.cast(writer.schema))
                labels.update(table["label"].drop_null().to_pylist())
                samples.append(_sample(source, some, answers))
        shutil.rmtree(scratch)
    written = {
        "rows": len(images),
        "errors": len(images) - labels.total(),
        "labels": dict(sorted(labels.items())),
        "reused": reused,
    }
    return written, pa.concat_tables([predictions.SAMPLE_SCHEMA.empty_table(), *samples])


def sample(registered: RegisteredVersion, source: Source, scratch: Path) -> pa.Table:
    """Classifies a sample of an input.

    Args:
        registered: The version that classifies.
        source: The input.
        scratch: An empty folder.

    Returns:
        The sample, as `tasks.data.predictions.SAMPLE_SCHEMA` has it.

    Raises:
        ValueError: A file of the input is broken, or the package is.
    """
    images = [image for image in range(len(source.places)) if _is_sampled(source, image)]
    answered = _answered(registered, source, images, scratch)
    samples = [_sample(source, some, answers) for some, answers in answered]
    return pa.concat_tables([predictions.SAMPLE_SCHEMA.empty_table(), *samples])


def _answered(
    registered: RegisteredVersion, source: Source, images: Sequence[int], scratch: Path
) -> Iterator[tuple[Sequence[int], pa.Table]]:
    """Images, by their numbers in the input, with the answers for them, some at a time."""
    places = [source.places[image] for image in images]
    features = [_is_sampled(source, image, predictions.WITH_FEATURES) for image in images]
    first = 0
    with console.counted(NAME, len(images)) as show:
        try:
            for answers in classify(
                registered.package, source.files, places, scratch, show, features
            ):
                yield images[first : first + len(answers)], answers
                first += len(answers)
        except ValueError as error:
            raise ValueError(f"{registered.version.title}: {error}") from error


def _key(registered: RegisteredVersion, source: Source) -> str:
    """The key of the answers, which cannot be used after a file of the input has changed."""
    made_by = {
        "package": registered.version.package_digest,
        "code": code_digests([__name__]),
        "libraries": {name: installed(name) for name in LIBRARIES},
        "state": source.state(),
        "images": source.places,
    }
    return json_digest(made_by)


def _is_sampled(source: Source, image: int, size: int = predictions.SAMPLE) -> bool:
    """Whether an image belongs to the sample; copies at other paths are images like others."""
    digest = hashlib.sha256(source.paths[image].encode()).hexdigest()
    return predictions.is_sampled(digest, len(source.places), size)


def _sample(source: Source, images: Sequence[int], answers: pa.Table) -> pa.Table:
    """The rows of the sample among some images that have a label and facts."""
    rows = [
        row
        for row, label in enumerate(answers["label"].to_pylist())
        if label is not None and _is_sampled(source, images[row])
    ]
    if not rows:
        return predictions.SAMPLE_SCHEMA.empty_table()
    answers = answers.take(pa.array(rows))
    confidence = as_matrix(answers, "probabilities").max(axis=1)
    answers = answers.append_column("confidence", pa.array(confidence))
    encoded = source.files.read([source.places[images[row]] for row in rows])
    sampled = zip(answers.to_pylist(), map(image_facts.measure, encoded), strict=True)
    return pa.Table.from_pylist(
        [answer | facts for answer, facts in sampled if facts], predictions.SAMPLE_SCHEMA
    )


def write_as(predictions: Path, output: Path) -> None:
    """Writes the rows of a Parquet file in the form that the suffix of another file says.

    A probability is named by its class: in CSV it has a column of its own, `probability[cat]`.

    Args:
        predictions: What `predict` has written.
        output: The file to write; it appears at the end, as a whole.
    """
    with (
        pq.ParquetFile(predictions) as file,
        file_io.replacing(output) as aside,
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
