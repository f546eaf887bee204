"""A program that loads a package and classifies images with it, without the project's own code.

    python -I -B scoring_worker.py REQUEST.parquet ANSWERS THREADS FIRST END

It writes a line when a file of answers is there; a library may print others. It ends after the last
file, or when its input is closed.

The request has a row for each image: `file` (relative to a folder, as bytes), `row` (0 in an image
file), and `features`, whether these are wanted. Its metadata has the `package`, its `classes`, the
`root` of the files, and the `image_column` of Parquet files among them. The program answers the
rows from FIRST to before END, and goes on after those that are answered. It writes Parquet files
into the folder ANSWERS, as `file_of` names them. If the request `is_check`, before the package is
served, it can import only what the requirements of the package bring.

`-I` keeps this clone off `sys.path`; what an editable installation adds is removed here.
"""

import hashlib
import json
import os
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from importlib.abc import MetaPathFinder
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from tasks.data.raw_images import ImageFiles

PROJECT = Path(__file__).absolute().parents[2]
PACKAGES = ("flows", "models", "retrain", "tasks")
# The most that the package gets at once, so that memory stays small whatever the size of an image.
MAX_ROWS, MAX_BYTES = 256, 64_000_000
# A batch ends after so many rows, so that batches do not depend on where a program begins.
PART = 32 * MAX_ROWS

# The bytes, and why the file of the image cannot be read; empty, or None if it can.
Image = tuple[bytes, str | None]
Batch = tuple[int, list[Image]]  # the row of the first image, and the images
# A loaded package, and the context in which it uses its GPU.
Worker = tuple[Any, AbstractContextManager[Any]]
Predict = Callable[[Any], Any]  # a data frame with the column `image`, to one with the answers
# What a package may say of an image: the label, the probability of each class, and the features; or
# why it refuses the image. And what the image is.
ANSWER = pa.schema(
    {
        "label": pa.string(),
        "probabilities": pa.list_(pa.float32()),
        "error": pa.string(),
        "features": pa.list_(pa.float32()),
        "sha256": pa.string(),
    }
)


def main() -> None:
    """Answers the request that the arguments name."""
    Thread(target=_end_with_the_client, daemon=True).start()
    sys.path.insert(0, str(PROJECT))
    from tasks.data.raw_images import ImageFiles

    _remove_the_project()
    request, answers = map(Path, sys.argv[1:3])
    threads, first, end = map(int, sys.argv[3:])
    table = pq.read_table(request, memory_map=True)
    described = json.loads(table.schema.metadata[b"request"])
    package, classes = Path(described["package"]), described["classes"]
    if described["is_check"]:
        finder = RequirementsFinder(package)
        # These two try what they can do without: they would take a refusal for a broken library.
        import mlflow.pyfunc  # noqa: F401

        if "transformers" not in finder.refused:
            import transformers.models.vit.modeling_vit  # noqa: F401
        sys.meta_path.insert(0, finder)
    workers = _load(package, threads)
    while (file := file_of(answers, first)).exists():
        first += pq.read_metadata(file).num_rows
    files = ImageFiles(Path(described["root"]), described["image_column"])
    waiting, lock = batches(files, table, first, end), Lock()

    def work(worker: Worker) -> None:
        model, use = worker
        try:
            while batch := _take(waiting, lock):
                with use:
                    _answer(model, classes, table, answers, batch)
                print(flush=True)
        finally:  # after an error, the other threads end, too
            with lock:
                waiting.close()

    # It waits for its threads: one that lives on while Python ends would abort the process.
    with ThreadPoolExecutor(len(workers)) as pool:
        deque(pool.map(work, workers), maxlen=0)


def _take(waiting: Iterator[Batch], lock: Lock) -> Batch | None:
    with lock:
        return next(waiting, None)


def file_of(answers: Path, first: int) -> Path:
    """The file with the answers for a batch, which begins with a row."""
    return answers / f"{first:010}.parquet"


class RequirementsFinder(MetaPathFinder):
    """Refuses to import a library that is installed here, and would not be where a package is.

    What was imported before it is there stays.
    """

    def __init__(self, package: Path) -> None:
        """Finds out what the requirements of a package install, and what these require."""
        waiting = (package / "requirements.txt").read_text(encoding="utf-8").splitlines()
        own = {path.stem for path in (package / "code").iterdir()}
        brought = set[str]()
        while waiting:
            wanted = Requirement(waiting.pop())
            name = canonicalize_name(wanted.name)
            is_for_this = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
            if is_for_this and name not in brought:
                brought.add(name)
                with suppress(PackageNotFoundError):
                    waiting += distribution(name).requires or ()
        self.refused = {
            module
            for module, names in packages_distributions().items()
            if module not in own and brought.isdisjoint(map(canonicalize_name, names))
        }

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Finds nothing, so that others look for it.

        Raises:
            ModuleNotFoundError: It is the module of another library.
        """
        if name.partition(".")[0] in self.refused:
            raise ModuleNotFoundError(
                f"No module named {name!r}: the requirements of the package do not bring it. "
                "Import it at the top of a module of the network, so that they do.",
                name=name,
            )


def _load(package: Path, threads: int) -> list[Worker]:
    """The package on each GPU; without any, one for all threads."""
    import mlflow.pyfunc
    import torch

    workers = []
    gpus: list[Any] = [torch.cuda.device(gpu) for gpu in range(torch.cuda.device_count())]
    for use in gpus or [nullcontext()]:
        with use:
            # MLflow would search the installed libraries for half a second, to warn of others.
            model = mlflow.pyfunc.load_model(str(package), suppress_warnings=True)
            workers.append((model, use))
    return workers if gpus else workers * threads


def batches(files: "ImageFiles", table: pa.Table, first: int, end: int) -> Generator[Batch]:
    """Reads images in batches, whose bounds depend on the images alone."""
    batch, size = list[Image](), 0
    for row, image in enumerate(_read(files, table.slice(first, end - first)), first):
        size += len(image[0])
        if batch and (row % PART == 0 or len(batch) == MAX_ROWS or size > MAX_BYTES):
            yield row - len(batch), batch
            batch, size = [], len(image[0])
        batch.append(image)
    if batch:
        yield end - len(batch), batch


def _read(files: "ImageFiles", rows: pa.Table) -> Iterator[Image]:
    names = map(os.fsdecode, rows["file"].to_pylist())
    places = zip(names, rows["row"].to_pylist(), strict=True)
    for _, of_file in groupby(places, key=itemgetter(0)):
        try:
            yield from ((data, None) for data in files.read(of_file))
        except OSError as error:  # one image that cannot be read does not stop the others
            yield b"", error.strerror or str(error)


def _answer(model: Any, classes: list[str], table: pa.Table, answers: Path, batch: Batch) -> None:
    """Writes the file with the answers for a batch."""
    first, images = batch
    wanted = table["features"].slice(first, len(images)).to_pylist()
    predict: Predict = model.predict
    if any(wanted):
        predict = getattr(model.unwrap_python_model(), "predict_with_features", predict)
    rows = answers_of(predict, [data for data, _ in images])
    for (data, unreadable), row, is_wanted in zip(images, rows, wanted, strict=True):
        if "probabilities" in row:
            row["probabilities"] = [row["probabilities"][name] for name in classes]
        if not is_wanted:
            row["features"] = None
        if unreadable:
            row["error"] = unreadable
        else:
            row["sha256"] = hashlib.sha256(data).hexdigest()
    partial = file_of(answers, first).with_suffix(".partial")
    pq.write_table(pa.Table.from_pylist(rows, ANSWER), partial)
    partial.rename(file_of(answers, first))


def answers_of(predict: Predict, images: Sequence[bytes]) -> list[dict[str, Any]]:
    """What a package says of each image, by the names in `ANSWER`, or the `error`.

    A package refuses a whole table if one image in it is bad. So the table is halved until the bad
    image is alone. Each good image goes through the network once, with as many others as possible.
    """
    import pandas as pd
    from mlflow.exceptions import MlflowException

    try:
        answers: list[dict[str, Any]] = predict(pd.DataFrame({"image": images})).to_dict("records")
        return answers
    except MlflowException as error:
        if error.error_code != "INVALID_PARAMETER_VALUE":
            raise
        if len(images) == 1:
            why = " ".join(str(error).split()).removeprefix("row 0: ")
            return [{"error": why}]
        half = len(images) // 2
        return answers_of(predict, images[:half]) + answers_of(predict, images[half:])


def _remove_the_project() -> None:
    """Removes this clone from the places where Python looks for modules, and its modules."""
    sys.path[:] = [path for path in sys.path if Path(path).absolute() != PROJECT]
    for finder in [*sys.meta_path]:
        spec = finder.find_spec("models", None)
        if spec and spec.origin and Path(spec.origin).is_relative_to(PROJECT):
            sys.meta_path.remove(finder)
    for name in [name for name in sys.modules if name.split(".")[0] in PACKAGES]:
        del sys.modules[name]


def _end_with_the_client() -> None:
    """Ends this process when the one that has started it is gone, which closes the pipe."""
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main()
