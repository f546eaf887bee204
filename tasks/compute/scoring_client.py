"""Asks a package about images, in a process of its own.

The package brings its own code, which may be an older `models` than this clone has: one process
cannot load both. So a program answers, `scoring_worker.py`, with a thread for each GPU, or for each
core. In a cluster, Ray runs programs if the images are many.
"""

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from retrain.servers import ray_cluster
from tasks.compute import ray_data
from tasks.compute.scoring_worker import PART, file_of
from tasks.data.package import classes_of
from tasks.data.raw_images import ImageFiles, Place

logger = logging.getLogger(__name__)

PROGRAM = Path(__file__).with_name("scoring_worker.py")
ANSWERS = "answers"
ENVIRONMENT = {
    "RETRAIN_LOG_PREDICTIONS": "",  # what is asked here is no request to a server
    # PyTorch divides some sums by threads, so that results would depend on the machine's cores.
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
}


def classify(
    package: Path,
    files: ImageFiles,
    places: Sequence[Place],
    folder: Path,
    done: Callable[[int], object] = lambda images: None,
    features: Sequence[bool] = (),
    is_check: bool = False,
) -> Iterator[pa.Table]:
    """Has a package classify images.

    The answers do not depend on the machines, or on how many programs there are.

    Args:
        package: A folder as `mlflow.pyfunc.save_model` writes it.
        files: Reads the images.
        places: Where the images are.
        folder: Gets files; answers that are there already, from a call with the same arguments that
            was ended, are not asked for again.
        done: Called with the number of images that have been answered since it was called last.
        features: Whether the features of each image are wanted; empty if of none.
        is_check: Whether the package is checked before it is served: it can import only what its
            requirements bring.

    Yields:
        The answers for some images at a time, in order, as soon as they are there: `label`,
        `probabilities` (float32, a list in the order of the package's classes), `error`, `features`
        (float32, a list), and `sha256` (hex), of the encoded image. A row has a label and
        probabilities, or an error. The features, which the last layer of the network takes, are
        null if they are not wanted, or the package cannot tell them.

    Raises:
        ValueError: The package cannot be loaded, or does not answer; or a Parquet file is broken.
    """
    from joblib import cpu_count

    package, folder = package.absolute(), folder.absolute()  # the program runs in another folder
    answers, request = folder / ANSWERS, folder / "request.parquet"
    answers.mkdir(parents=True, exist_ok=True)
    if len(places) > PART and ray_cluster.is_remote():
        # In a folder that all machines see.
        package = shutil.copytree(package, folder / "package", dirs_exist_ok=True)
        running = _run_on_machines(request, answers, len(places))
    else:
        running = _run(request, answers, cpu_count(), (0, len(places)))
    _write(request, package, files, places, features, is_check)
    first = 0
    for _ in chain(running, [None]):  # it starts here; and once more after its end
        while (file := file_of(answers, first)).exists():
            table = pq.read_table(file)
            first += len(table)
            done(len(table))
            yield table


def _write(
    request: Path,
    package: Path,
    files: ImageFiles,
    places: Sequence[Place],
    features: Sequence[bool],
    is_check: bool,
) -> None:
    """Writes what `scoring_worker.py` reads."""
    metadata = {
        "package": str(package),
        "classes": [*classes_of(package)],
        "root": str(files.root.absolute()),
        "image_column": files.image_column,
        "is_check": is_check,
    }
    columns = {
        "file": pa.array([os.fsencode(file) for file, _ in places], pa.binary()),
        "row": pa.array([row for _, row in places], pa.int64()),
        "features": pa.array(features or [False] * len(places), pa.bool_()),
    }
    described = pa.table(columns).replace_schema_metadata({"request": json.dumps(metadata)})
    pq.write_table(described, request)


def _run(request: Path, answers: Path, threads: int, part: tuple[int, int]) -> Iterator[None]:
    """Has a program answer a part; yields when there are answers.

    Raises:
        ValueError: It has failed; the message is its last line of errors.
    """
    arguments = [str(each) for each in (PROGRAM, request, answers, threads, *part)]
    with TemporaryFile() as printed:
        program = subprocess.Popen(
            [sys.executable, "-I", "-B", *arguments],
            cwd=answers,
            env=os.environ | ENVIRONMENT,
            stdin=subprocess.PIPE,  # it ends when this is closed, also because this process ends
            stdout=subprocess.PIPE,
            stderr=printed,
        )
        with program:
            assert program.stdout
            for _ in program.stdout:
                yield
        if program.returncode:
            printed.seek(0)
            message = printed.read().decode(errors="replace").strip()
            logger.error("The package's process ended with %s:\n%s", program.returncode, message)
            raise ValueError((message.splitlines() or [f"exit code {program.returncode}"])[-1])


def _run_on_machines(request: Path, answers: Path, images: int) -> Iterator[object]:
    """Has programs answer parts, each on a core of the cluster, or on the GPU that it sees."""

    def run(part: tuple[int, int]) -> list[None]:
        return [*_run(request, answers, 1, part)]

    bounds = pairwise([*range(0, images, PART), images])
    seconds = images * ray_data.SECONDS_PER_IMAGE
    return ray_data.each(lambda _: run, [*bounds], seconds=seconds, on_gpus=True)


def as_matrix(answers: pa.Table, column: str, paths: Sequence[str] = ()) -> NDArray[np.float32]:
    """The features or the probabilities in some answers.

    Args:
        answers: As `classify` gives them; at least one.
        column: `features` or `probabilities`.
        paths: The names of the images in messages; empty if none of the answers is an error.

    Returns:
        float32 (images, D) or (images, classes of the package).

    Raises:
        ValueError: The package does not tell its features, or an image has an error.
    """
    for path, error in zip(paths, answers["error"].to_pylist(), strict=False):
        if error is not None:
            raise ValueError(f"{path}: {error}")
    lists = answers[column].combine_chunks()
    if lists.null_count:
        raise ValueError(
            "The model does not tell the embeddings of images, by which they are compared: only a "
            "network of transformers (the families vit, auto and embedding_head) does."
        )
    array: NDArray[np.float32] = lists.flatten().to_numpy().reshape(len(answers), -1)
    return array
