"""Classifies images with a package, in separate processes.

The package brings its own code, which may be an older `models` than this clone has: one process
cannot load both. The processes run `answer.py`.
"""

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version as installed
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from tasks.compute.prefetch import prefetch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tasks.data.accepted_images import AcceptedImage

logger = logging.getLogger(__name__)

PROGRAM = Path(__file__).with_name("answer.py")
# The most that is sent at once, so that memory stays small whatever the size of an image.
MAX_ROWS, MAX_BYTES = 256, 64_000_000
# For fewer images each, another process is not worth it: its imports take about 5 s.
ROWS_PER_PROCESS = 500
# PyTorch divides some sums by threads, so that results would depend on the machine's cores.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Served:
    """The answers of a package for some images.

    Attributes:
        images: Those it classified.
        labels: The predicted class of each.
        known: The classes that it knows.
        probabilities: float32 (images, known).
    """

    images: "Sequence[AcceptedImage]"
    labels: Sequence[str]
    known: tuple[str, ...]
    probabilities: "NDArray[np.float32]"


class _Process:
    """A process that has loaded a package."""

    def __init__(self, package: Path, folder: Path, environment: dict[str, str]) -> None:
        self._errors = TemporaryFile()  # noqa: SIM115  closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-B", str(PROGRAM), str(package)],
            cwd=folder,
            env=os.environ | ONE_THREAD | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self._writer: Any = None
        self._reader: Any = None

    def ask(self, images: "Sequence[AcceptedImage]") -> Served:
        """Sends images and waits for the answers.

        Raises:
            ValueError: The process has ended; the message is its last line of errors.
        """
        import numpy as np
        import pyarrow as pa
        from pyarrow import ipc

        batch = pa.RecordBatch.from_pydict({"image": [image.data for image in images]})
        try:
            if self._writer is None:
                self._writer = ipc.new_stream(self._process.stdin, batch.schema)
            self._writer.write_batch(batch)
            assert self._process.stdin and self._process.stdout
            self._process.stdin.flush()
            if self._reader is None:
                self._reader = ipc.open_stream(self._process.stdout)
            answers: pa.RecordBatch = self._reader.read_next_batch()
        except (OSError, StopIteration, pa.ArrowInvalid) as error:
            raise ValueError(self._last_error()) from error
        probabilities = answers["probabilities"]
        return Served(
            images,
            answers["label"].to_pylist(),
            tuple(field.name for field in probabilities.type),
            np.stack(probabilities.flatten(), axis=1).astype(np.float32),
        )

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def _last_error(self) -> str:
        self._process.wait()
        self._errors.seek(0)
        message = self._errors.read().decode(errors="replace").strip()
        logger.error("The package's process ended with %s:\n%s", self._process.returncode, message)
        return message.splitlines()[-1] if message else f"exit code {self._process.returncode}"


def ask(
    package: Path, images: "Iterable[AcceptedImage]", rows: int, folder: Path
) -> Generator[Served, None, None]:
    """Classifies images with a package, through its public interface alone.

    The answers do not depend on how many processes there are.

    Args:
        package: A folder as `mlflow.pyfunc.save_model` writes it.
        images: Any number.
        rows: How many there are.
        folder: Where the processes run.

    Yields:
        The answers, in the order of the images.

    Raises:
        ValueError: The package cannot be loaded, or does not answer.
    """
    environments = _environments(rows)
    with ExitStack() as stack:
        idle: SimpleQueue[_Process] = SimpleQueue()
        for environment in environments:
            process = _Process(package, folder, environment)
            stack.callback(process.close)
            idle.put(process)

        def ask_one(some: "Sequence[AcceptedImage]") -> Served:
            process = idle.get()
            try:
                return process.ask(some)
            finally:
                idle.put(process)

        count = len(environments)
        yield from prefetch(ask_one, _portions(images), 2 * count, count)


def other_versions(package: Path) -> list[str]:
    """The libraries whose installed version differs from the one a package was made with."""
    others = []
    for line in (package / "requirements.txt").read_text(encoding="utf-8").splitlines():
        name, equals, wanted = line.strip().partition("==")
        if equals:
            try:
                here = installed(name).partition("+")[0]
            except PackageNotFoundError:
                here = "missing"
            if here != wanted:
                others.append(f"{name} {wanted} (here {here})")
    return others


def _environments(rows: int) -> list[dict[str, str]]:
    """The environment variables of each process: there is one per GPU, or one per core."""
    from joblib import cpu_count

    gpus = _gpus()
    count = max(1, min(len(gpus) or cpu_count(), rows // ROWS_PER_PROCESS))
    return [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in gpus[:count]] or [{}] * count


def _gpus() -> list[str]:
    """The GPUs that PyTorch can use, as `CUDA_VISIBLE_DEVICES` names them."""
    if not shutil.which("nvidia-smi"):  # spares the import of torch
        return []
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = (
        visible.split(",") if visible else [str(gpu) for gpu in range(torch.cuda.device_count())]
    )
    return names[: torch.cuda.device_count()]


def _portions(images: "Iterable[AcceptedImage]") -> "Iterator[list[AcceptedImage]]":
    """Cuts images into portions to send at once; they depend on the images alone."""
    some: list[AcceptedImage] = []
    size = 0
    for image in images:
        if some and (len(some) == MAX_ROWS or size + len(image.data) > MAX_BYTES):
            yield some
            some, size = [], 0
        some.append(image)
        size += len(image.data)
    if some:
        yield some
