"""Checks that a registered version can be served: with its files, in a process of its own.

Before a version becomes champion, it is taken from the registry as a server would take it, loaded
in a fresh process with its own code, and asked about some test images. Its answers have to be those
of the evaluation. Then the time for one image is measured. The test images are kept with the run of
the training, so that a rollback can make the same check without the data. They are not in the
package, because people who may see the model may not be allowed to see the data.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from retrain import tracking
from retrain.digests import sha256_of
from retrain.project import Project
from retrain.registry import packages, versions
from retrain.registry.versions import Latency, ModelVersion
from tasks.compute.asked import TIMES, ask
from tasks.data import image_table, package, predictions
from tasks.data.image_table import AcceptedImage, read_images
from tasks.data.reading import ImageFiles, places_of
from tasks.data.units import cut
from tasks.promote.latency import calls, summarise
from tasks.promote.package import gradient

SPLIT = "test"
SAMPLE, MAX_BYTES = 64, 16_000_000  # of the images in an example
# The most parts of the data that are read for the sample, however large they are.
PARTS = 8
# The largest difference of a probability. On CPUs, batches of another size changed one by up to
# 2.4e-7 in fp32 and by nothing in bf16. But on a GPU a convolution in fp32 may run in TF32,
# which changed one by 1.3e-4; and all of bf16 changed one by 3e-3.
TOLERANCE = {"fp32": 1e-3, "bf16": 2e-2}
MLMODEL = "MLmodel"  # MLflow's description, the one file that changes when a package is registered


@dataclass(frozen=True)
class Example:
    """Test images with the answers that a package has to give, and the files of the package.

    Attributes:
        images: Some test images.
        probabilities: For each image, the probability of each class.
        files: SHA-256 (hex) of each file of the package, except MLflow's description.
    """

    images: tuple[AcceptedImage, ...]
    probabilities: tuple[Mapping[str, float], ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)

    def write(self, file: Path) -> None:
        """Writes it as a Parquet file."""
        import pyarrow as pa
        from pyarrow import parquet

        labels = list(self.probabilities[0])
        columns = {
            "path": [image.path for image in self.images],
            "label": [image.label for image in self.images],
            "sha256": [image.sha256 for image in self.images],
            "image": [image.data for image in self.images],
            "probabilities": [[answer[name] for name in labels] for answer in self.probabilities],
        }
        described = {"labels": json.dumps(labels), "files": json.dumps(dict(self.files))}
        parquet.write_table(pa.table(columns).replace_schema_metadata(described), file)

    @classmethod
    def read(cls, file: Path | BytesIO) -> "Example":
        """Reads what `write` has written."""
        from pyarrow import parquet

        table = parquet.read_table(file)
        labels = json.loads(table.schema.metadata[b"labels"])
        rows = table.to_pylist()
        return cls(
            tuple(
                AcceptedImage(row["path"], row["label"], row["sha256"], row["image"])
                for row in rows
            ),
            tuple(dict(zip(labels, row["probabilities"], strict=True)) for row in rows),
            json.loads(table.schema.metadata[b"files"]),
        )


def sample(files: ImageFiles, validated: Path) -> Iterator[AcceptedImage]:
    """Some test images, evenly spaced over the split, or over some parts of large data.

    Args:
        files: Reads the images of the data.
        validated: The output of `validate`.
    """
    images = image_table.read_split(validated, SPLIT)
    units = cut(files, places_of(images), images["bytes"].to_pylist())
    rows = [row for unit in _spread(units, PARTS) for row in range(unit.start, unit.stop)]
    size = 0
    for image in read_images(files, images.take([*_spread(rows, SAMPLE)])):
        if size and size + len(image.data) > MAX_BYTES:
            return
        size += len(image.data)
        yield image


def example_of(folder: Path, images: Iterable[AcceptedImage], evaluated: Path) -> Example:
    """Makes the example of a package, from its files and the answers of the evaluation.

    Args:
        folder: The package, as `write_package` writes it.
        images: Some images of the test split.
        evaluated: The output of `evaluate`.
    """
    from pyarrow import parquet

    sampled = tuple(images)
    columns, within = ["sha256", "probabilities"], [("sha256", "in", [i.sha256 for i in sampled])]
    table = parquet.read_table(evaluated / predictions.FILE, columns=columns, filters=within)
    labels = json.loads(table.schema.metadata[b"labels"])
    expected = {
        row["sha256"]: dict(zip(labels, row["probabilities"], strict=True))
        for row in table.to_pylist()
    }
    files = {
        path.relative_to(folder).as_posix(): sha256_of(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MLMODEL
    }
    return Example(sampled, tuple(expected[image.sha256] for image in sampled), files)


def keep(project: Project, run_id: str, package_digest: str, example: Example) -> None:
    """Keeps an example with the MLflow run of the training."""
    with TemporaryDirectory() as folder:
        example.write(Path(folder, f"{package_digest}.parquet"))
        tracking.log_artifacts(project, run_id, Path(folder), packages.EXAMPLES)


def check_version(
    project: Project, version: ModelVersion, scratch: Path, bound: float | None = None
) -> Latency:
    """Checks that a version, as the registry holds it, can be served, and measures how fast it is.

    A version whose example is gone, because the run of its training was deleted, only has to answer
    at all.

    Args:
        project: The clone that the registry belongs to.
        version: The version of the model.
        scratch: A folder for temporary files.
        bound: The bound of the latency in milliseconds; above it, it is measured once more, and
            the better one counts, because a busy neighbour must not reject a good model. A
            slower version is no error.

    Raises:
        ValueError: It cannot be served; the message says why.
    """
    with TemporaryDirectory(dir=scratch) as place:
        folder = packages.fetch(project, version, Path(place))
        example = example_for(project, version)
        try:
            check_files(folder, version, example)
            return check_answers(folder, example, Path(place), bound)
        except ValueError as error:
            raise ValueError(f"{version.title} cannot be served: {error}") from error


def check_before_promotion(
    project: Project, version: ModelVersion, scratch: Path, bound: float | None
) -> Latency:
    """Checks, before a version becomes champion, that it can be served, and measures how fast.

    Args:
        project: The clone that the registry belongs to.
        version: The version of the model.
        scratch: A folder for temporary files.
        bound: The bound for `check_version`.

    Raises:
        ValueError: It cannot be served; that is noted in the registry.
    """
    how = "it is never promoted, unless the tag retrain.broken of the version is deleted in MLflow"
    if version.broken:
        raise ValueError(f"{version.broken} ({how})")
    try:
        return check_version(project, version, scratch, bound)
    except ValueError as error:
        versions.mark_broken(project, version, str(error))
        raise ValueError(f"{error} ({how})") from error


def example_for(project: Project, version: ModelVersion) -> Example | None:
    """The example kept with a version's run; None for a run of an older version of this project."""
    _, path = packages.places(version)
    content = tracking.read_artifact(project, version.run_id, path)
    return Example.read(BytesIO(content)) if content else None


def check_files(folder: Path, version: ModelVersion, example: Example | None) -> None:
    """Checks that the files of a package are those that were registered.

    Raises:
        ValueError: A file is gone or has changed; the message names it.
    """
    # Of a version without an example only the weights are known.
    weights = {f"{packages.MODEL}/{packages.WEIGHTS}": version.weights}
    for name, sha256 in (weights | dict(example.files if example else {})).items():
        if not (folder / name).is_file():
            raise ValueError(f"{name} in {folder} is gone.")
        if sha256_of(folder / name) != sha256:
            raise ValueError(f"{name} in {folder} has changed since it was registered.")
    if damage := package.fault(folder, version.package_digest):
        raise ValueError(f"the package {damage}.")


def check_answers(
    folder: Path, example: Example | None, scratch: Path, bound: float | None = None
) -> Latency:
    """Loads a package in a fresh process, compares its answers with those expected, and times it.

    A different label is accepted as a tie if the probabilities of both labels differ by no more
    than rounding.

    Args:
        folder: The package.
        example: What it has to answer; if None, it has to answer at all.
        scratch: The folder in which the process runs.
        bound: The bound of the latency in milliseconds; above it, it is measured once more, and
            the better one counts, because a busy neighbour must not reject a good model.

    Raises:
        ValueError: The package does not load or answer; or its answers differ: the message says
            where and by how much.
    """
    latency = _asked(folder, example, scratch)
    if bound is not None and latency.p95 > bound:
        latency = min(latency, _asked(folder, example, scratch), key=lambda timing: timing.p95)
    return latency


def _asked(folder: Path, example: Example | None, scratch: Path) -> Latency:
    """Checks the answers of a package, and times it, in one process."""
    serving = json.loads((folder / package.SERVING).read_text(encoding="utf-8"))
    tolerance = TOLERANCE[serving["precision"]]
    known = list(package.classes_of(folder))
    with TemporaryDirectory(dir=scratch) as place:
        asked = Path(place)
        if example is None:
            (asked / "image").write_bytes(gradient(folder / package.MODEL))
            places = [("image", 0)]
        else:
            example.write(asked / "example.parquet")
            places = [("example.parquet", row) for row in range(len(example.images))]
        answers = ask(folder, ImageFiles(asked, "image"), places, asked, calls=calls())
        rows = [row for table in answers for row in table.to_pylist()]
        for number, row in enumerate(rows):
            path = example.images[number].path if example else "an image"
            if row["error"] is not None:
                raise ValueError(f"{path}: {row['error']}")
            if example is None:
                continue
            expected = example.probabilities[number]
            answer = dict(zip(known, row["probabilities"], strict=True))
            apart = difference(expected, answer, row["label"], tolerance)
            if apart is not None:
                raise ValueError(
                    f"it answers {row['label']!r} for {path}, where the evaluation says "
                    f"{max(expected, key=expected.__getitem__)!r}; their probabilities differ by "
                    f"up to {apart:.2g} ({tolerance:g} is allowed)."
                )
        return summarise(json.loads((asked / TIMES).read_text(encoding="utf-8")))


def difference(
    expected: Mapping[str, float], answer: Mapping[str, float], label: str, tolerance: float
) -> float | None:
    """By how much two answers differ; None if they are the same except for rounding.

    Args:
        expected: The probability of each class in the first answer.
        answer: The probability of each class in the answer that is checked.
        label: The class of that answer.
        tolerance: The largest difference of a probability.
    """
    largest = max(abs(expected[name] - answer[name]) for name in expected)
    tied = max(expected.values()) - expected[label] <= tolerance
    return None if largest <= tolerance and tied else largest


def _spread(values: list[Any], count: int) -> list[Any]:
    """`count` values, evenly spaced; all if there are fewer."""
    count = min(count, len(values))
    return [values[place * len(values) // count] for place in range(count)]
