"""Writes the package of a model, which MLflow serves, and checks that it can be served.

Before a version becomes champion, it is taken from the registry as a server would take it, loaded
in a fresh process with its own code, and asked about some test images. Its answers have to be those
of the evaluation. The test images are kept with the run of the training, so that a rollback can
make the same check without the data. They are not in the package, because people who may see the
model may not be allowed to see the data.
"""

import io
import json
import shutil
from collections.abc import Iterable, Mapping
from importlib.metadata import version as installed
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from retrain.code import libraries_of, source_of
from retrain.file_io import sha256_of, write_json
from retrain.project import Project
from retrain.registry import packages, tracking
from retrain.registry.versions import ModelVersion
from tasks.compute.scoring_client import as_matrix, classify
from tasks.data import image_table, package, predictions
from tasks.data.raw_images import ImageFiles, places_of

SPLIT = "test"
# Of the images in an example; neighbours, because a part of a Parquet file is read as a whole.
RUNS, RUN, MAX_BYTES = 8, 8, 16_000_000
# The largest difference of a probability. On CPUs, batches of another size changed one by up to
# 2.4e-7 in fp32 and by nothing in bf16. But on a GPU a convolution in fp32 may run in TF32,
# which changed one by 1.3e-4; and all of bf16 changed one by 3e-3.
TOLERANCE = {"fp32": 1e-3, "bf16": 2e-2}


def write_package(
    model: Path,
    precision: str,
    images: Mapping[str, int],
    folder: Path,
) -> None:
    """Writes a model as MLflow serves it: weights, code, signature, an example, requirements.

    Args:
        model: A folder that `models.save` wrote.
        precision: The precision of the evaluation and of the answers: `fp32` or `bf16`.
        images: The number of images of each class, for information.
        folder: Must not exist yet; the folder above it takes temporary files.
    """
    import mlflow
    import pandas as pd
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, Schema
    from mlflow.types.schema import Map

    # MLflow checks a request against the signature, and what it then says repeats the request. So
    # the column is a string, of which MLflow demands nothing (bytes pass too), and may be missing:
    # `models/serving.py` decodes the base64 itself, in `instances` and `inputs` too, and says what
    # is wrong.
    inputs = [ColSpec(DataType.string, "image", required=False)]
    outputs = [ColSpec(DataType.string, "label"), ColSpec(Map(DataType.double), "probabilities")]
    with TemporaryDirectory(dir=folder.parent) as place:
        code, serving, classes = (
            Path(place) / Path(name).name
            for name in (package.CODE, package.SERVING, package.CLASSES)
        )
        modules = package.code_of(model)
        _copy_code(modules, code)
        write_json(serving, package.serving_of(model, precision))
        write_json(classes, dict(images))
        mlflow.pyfunc.save_model(
            folder,
            python_model=str(code / "models" / "serving.py"),
            artifacts={"model": str(model), "serving": str(serving), "classes": str(classes)},
            code_paths=sorted(map(str, code.iterdir())),
            signature=ModelSignature(inputs=Schema(inputs), outputs=Schema(outputs)),
            input_example=pd.DataFrame({"image": [_example()]}),
            # Without them, MLflow would load the model to find what it imports. The package index
            # has no versions with a local part (`+cpu`).
            pip_requirements=[
                f"{name}=={installed(name).partition('+')[0]}" for name in libraries_of(modules)
            ],
        )


def _copy_code(modules: Iterable[str], folder: Path) -> None:
    """Copies modules; serving needs no others."""
    for name in modules:
        source = source_of(name)
        assert source is not None, name
        place = Path(folder, *name.split("."))
        copy = place / source.name if source.name == "__init__.py" else place.with_suffix(".py")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)


def _example() -> bytes:
    """An example of an image (PNG): who may see the model may not be allowed to see the data."""
    from PIL import Image

    encoded = io.BytesIO()
    Image.new("L", (8, 8)).save(encoded, "PNG")
    return encoded.getvalue()


def sample(files: ImageFiles, validated: Path) -> pa.Table:
    """Some test images: runs of neighbours, evenly spaced over the split.

    Args:
        files: Reads the images of the data.
        validated: The output of `validate`.

    Returns:
        Their `path`, `sha256` (hex) and `image`, encoded.
    """
    listed = image_table.read_split(validated, SPLIT, ["path", "sha256", "file", "row"])
    last = len(listed) - 1
    starts = np.linspace(0, max(0, last + 1 - RUN), RUNS).astype(np.int64)
    rows = np.minimum(starts[:, None] + np.arange(RUN), last)
    images = listed.take(np.unique(rows))
    encoded, size = list[bytes](), 0
    for data in files.read(places_of(images)):
        size += len(data)
        if encoded and size > MAX_BYTES:
            break
        encoded.append(data)
    kept = images.slice(0, len(encoded)).select(["path", "sha256"])
    return kept.append_column("image", pa.array(encoded, pa.binary()))


def example_of(folder: Path, images: pa.Table, evaluated: Path) -> pa.Table:
    """The example of a package: images, and the answers that it has to give.

    Args:
        folder: The package, as `write_package` writes it.
        images: Some images of the test split, as `sample` gives them.
        evaluated: The output of `evaluate`.

    Returns:
        The images with the `probabilities` of the classes; the metadata has the `labels` of the
        classes, and of the `files` of the package the SHA-256 (hex).
    """
    columns, wanted = ["sha256", "probabilities"], images["sha256"].to_pylist()
    table = pq.read_table(
        evaluated / predictions.FILE, columns=columns, filters=[("sha256", "in", wanted)]
    )
    answers = table["probabilities"].take(pc.index_in(images["sha256"], table["sha256"]))
    files = {
        path.relative_to(folder).as_posix(): sha256_of(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    described = {b"labels": table.schema.metadata[b"labels"], b"files": json.dumps(files).encode()}
    example = images.append_column("probabilities", answers)
    return example.replace_schema_metadata(described)


def check_version(project: Project, version: ModelVersion, scratch: Path) -> None:
    """Checks that a version, as the registry holds it, can be served.

    Args:
        project: The clone that the registry belongs to.
        version: The version of the model.
        scratch: A folder for temporary files.

    Raises:
        ValueError: It cannot be served; the message says why.
    """
    with TemporaryDirectory(dir=scratch) as place:
        folder = packages.fetch(project, version, Path(place))
        try:
            example = example_for(project, version)
            check_files(folder, version, example)
            check_answers(folder, example, Path(place))
        except ValueError as error:
            raise ValueError(f"{version.title} cannot be served: {error}") from error


def example_for(project: Project, version: ModelVersion) -> pa.Table:
    """The example kept with a version's run.

    Raises:
        ValueError: It is gone.
    """
    path = f"{packages.EXAMPLES}/{version.package_digest}.parquet"
    content = tracking.read_artifact(project, version.run_id, path)
    if content is None:
        raise ValueError(f"{path} of MLflow run {version.run_id}, what it has to answer, is gone.")
    return pq.read_table(io.BytesIO(content))


def check_files(folder: Path, version: ModelVersion, example: pa.Table) -> None:
    """Checks that the files of a package are those that were registered.

    Raises:
        ValueError: A file is gone or has changed; the message names it.
    """
    for name, sha256 in json.loads(example.schema.metadata[b"files"]).items():
        if not (folder / name).is_file():
            raise ValueError(f"{name} in {folder} is gone.")
        if sha256_of(folder / name) != sha256:
            raise ValueError(f"{name} in {folder} has changed since it was registered.")
    if damage := package.fault(folder, version.package_digest):
        raise ValueError(f"the package {damage}.")


def check_answers(folder: Path, example: pa.Table, scratch: Path) -> None:
    """Loads a package in a fresh process, and compares its answers with those expected.

    A different label is accepted as a tie if the probabilities of both labels differ by no more
    than rounding.

    Args:
        folder: The package.
        example: What it has to answer, as `example_of` gives it.
        scratch: The folder in which the process runs.

    Raises:
        ValueError: The package does not load or answer; or its answers differ: the message says
            where and by how much.
    """
    serving = json.loads((folder / package.SERVING).read_text(encoding="utf-8"))
    with TemporaryDirectory(dir=scratch) as place:
        temporary = Path(place)
        pq.write_table(example, temporary / "example.parquet")
        places = [("example.parquet", row) for row in range(len(example))]
        answers = pa.concat_tables(
            classify(folder, ImageFiles(temporary, "image"), places, temporary, is_check=True)
        )
        probabilities = as_matrix(answers, "probabilities", example["path"].to_pylist())
        _compare(example, probabilities, TOLERANCE[serving["precision"]])


def _compare(example: pa.Table, answers: NDArray[np.float32], tolerance: float) -> None:
    """Compares the answers of a package with those that it has to give.

    Raises:
        ValueError: They differ.
    """
    apart, are_same = differences(example, answers, tolerance)
    labels = json.loads(example.schema.metadata[b"labels"])
    if not are_same.all():
        row = int(np.argmin(are_same))
        expected = example["probabilities"][row].as_py()
        raise ValueError(
            f"it answers {labels[answers[row].argmax()]!r} for {example['path'][row]}, where the "
            f"evaluation says {labels[np.argmax(expected)]!r}; their probabilities differ by up to "
            f"{apart[row]:.2g} ({tolerance:g} is allowed)."
        )


def differences(
    example: pa.Table, answers: NDArray[np.float32], tolerance: float
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """By how much answers differ from those of an example.

    Args:
        example: As `example_of` gives it.
        answers: float32 (images, classes), the probabilities in the order of its labels.
        tolerance: The largest difference of a probability.

    Returns:
        float64 (images,), the largest difference of a probability; and bool (images,), whether the
        answer is the same except for rounding: another label is, if the probabilities of both
        differ by no more than that.
    """
    expected = np.array(example["probabilities"].to_pylist())
    apart = np.abs(expected - answers).max(axis=1)
    rows = np.arange(len(expected))
    below = expected.max(axis=1) - expected[rows, answers.argmax(axis=1)]
    return apart, (apart <= tolerance) & (below <= tolerance)
