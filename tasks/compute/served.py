"""Classifies images with a package, in separate processes.

The package brings its own code, which may be an older `models` than this clone has: one process
cannot load both. The processes run `answer.py`. An actor of Ray needs such a process too: it
imports this clone's `models` to read the images, and could not import the package's after that. The
images go through a pipe, which takes a small part of the time that it takes to decode them.
"""

import logging
import os
import shutil
import subprocess
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version as installed
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeVar

from retrain import atomic
from retrain.hardware import gpu_capabilities
from retrain.servers import ray_cluster
from tasks.data.package import FILES, MODEL, classes_of

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from tasks.data.image_table import AcceptedImage

logger = logging.getLogger(__name__)

PROGRAM = Path(__file__).with_name("answer.py")
# The most that is sent at once, so that memory stays small whatever the size of an image.
MAX_ROWS, MAX_BYTES = 256, 64_000_000
# For fewer images each, another process is not worth it: its imports take about 5 s.
ROWS_PER_PROCESS = 500
# How often a weight takes part in a forward pass, and what a core or a GPU multiplies in a second,
# very roughly. They decide no more than where the work is done.
USES = 100
SPEED = {"cpu": 4e10, "gpu": 2e13}
# What is classified here is no request to a server.
NO_LOG = {"RETRAIN_LOG_PREDICTIONS": ""}
# PyTorch divides some sums by threads, so that results would depend on the machine's cores.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Served:
    """The answers of a package for some images.

    Attributes:
        images: The images that it classified.
        labels: The predicted class of each image.
        known: The classes that the package knows.
        probabilities: float32 (images, known).
    """

    images: "Sequence[AcceptedImage]"
    labels: Sequence[str]
    known: tuple[str, ...]
    probabilities: "NDArray[np.float32]"


@dataclass(frozen=True)
class Timed:
    """How long a package took for one image, from its encoded bytes to the answer.

    Attributes:
        seconds: The time of the package, without the way to its process and back.
        threads: The number of threads that PyTorch calculated with.
        device: `cpu`, or the name of the GPU.
    """

    seconds: float
    threads: int
    device: str


class _Program:
    """A running program `answer.py`; it ends with this object, or with this process.

    Attributes:
        process: The process that runs the program.
        pipe: Sends images to the program, and receives its answers.
        errors: The file with all that the program prints.
        close: Ends the program.
    """

    def __init__(self) -> None:
        self.errors = TemporaryFile()  # noqa: SIM115  closed with the process
        self.pipe, other_end = Pipe()
        with other_end:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-B", PROGRAM, str(other_end.fileno())],
                env={**os.environ, **ONE_THREAD, **NO_LOG},
                pass_fds=[other_end.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self.errors,  # of a library that prints
                stderr=self.errors,
            )
        self.close = weakref.finalize(self, _end, self.process, self.pipe, self.errors)


_prestarted: SimpleQueue[_Program] = SimpleQueue()


def start_ahead() -> None:
    """Starts a process for the next package, unless one is waiting already.

    The process imports its libraries meanwhile, which takes most of its start.
    """
    if _prestarted.empty():
        _prestarted.put(_Program())


class PackageProcess:
    """A process that has loaded a package; it ends with this object, or with this process.

    Attributes:
        classes: The names of the package's classes, in the order in which answers have them.
        close: Ends the process.
    """

    def __init__(self, package: Path, folder: Path, device: str = "cpu") -> None:
        """Starts the process, or takes the one that `start_ahead` has started.

        Args:
            package: A folder as `mlflow.pyfunc.save_model` writes it.
            folder: The folder in which the process runs.
            device: `cuda` or `cuda:1` for one of several GPUs.
        """
        self.classes = tuple(classes_of(package))
        try:
            self._program = _prestarted.get_nowait()
        except Empty:
            self._program = _Program()
        self.close = self._program.close
        places = {"package": str(package), "folder": str(folder), "device": device}
        with suppress(OSError):  # it has ended; `classify` says why
            self._program.pipe.send(places | {"classes": self.classes})

    def classify(
        self, images: Sequence[bytes], with_features: Sequence[bool] | None = None
    ) -> "pa.RecordBatch":
        """Classifies encoded images.

        Args:
            images: At least one encoded image.
            with_features: Whether the features of each image are wanted; None if of no image.

        Returns:
            `label`, `probabilities` (float32, a list in the order of the classes), `accepted`
            (null if the package does not say), `error` and `features` (float32, a list), in order
            of the images. A row has a label or an error; with an error, the probabilities mean
            nothing. The features, which the last layer of the network takes, are null if they are
            not wanted, or the package cannot tell them.

        Raises:
            ValueError: The process has ended; the message is its last line of errors.
        """
        return self._ask(images, with_features or [False] * len(images))[0]

    def time(self, image: bytes) -> Timed:
        """Classifies one encoded image, and tells how long that took.

        Raises:
            ValueError: The process has ended, or the package refuses the image.
        """
        answers, took = self._ask([image], [False])
        if (error := answers["error"][0].as_py()) is not None:
            raise ValueError(error)
        return Timed(**took)

    def _ask(
        self, images: Sequence[bytes], with_features: Sequence[bool]
    ) -> "tuple[pa.RecordBatch, Mapping[str, Any]]":
        """Returns the answers, and the values of a `Timed`."""
        try:
            self._program.pipe.send((list(images), list(with_features)))
            answers, took = self._program.pipe.recv()
        except (OSError, EOFError) as error:
            raise ValueError(self._last_error()) from error
        return answers, took

    def _last_error(self) -> str:
        code = self._program.process.wait()
        self._program.errors.seek(0)
        message = self._program.errors.read().decode(errors="replace").strip()
        logger.error("The package's process ended with %s:\n%s", code, message)
        return message.splitlines()[-1] if message else f"exit code {code}"


def _end(process: "subprocess.Popen[bytes]", pipe: Connection, errors: IO[bytes]) -> None:
    process.kill()
    process.wait()
    pipe.close()
    errors.close()


class PackagePool:
    """Processes that have loaded the same package; as many as there are calls at the same time.

    Attributes:
        classes: The names of the package's classes, in the order in which answers have them.
    """

    def __init__(self, package: Path, folder: Path, device: str) -> None:
        """Starts no process yet; the arguments are those of `PackageProcess`."""
        self.classes = tuple(classes_of(package))
        self._make = partial(PackageProcess, package, folder, device)
        self._idle: SimpleQueue[PackageProcess] = SimpleQueue()

    def classify(
        self, images: Sequence[bytes], with_features: Sequence[bool] | None = None
    ) -> "pa.RecordBatch":
        """Classifies encoded images with a process that is idle, as `PackageProcess` does."""
        try:
            process = self._idle.get_nowait()
        except Empty:
            process = self._make()
        answers = process.classify(images, with_features)
        self._idle.put(process)
        return answers


def serve(images: "Sequence[AcceptedImage]", process: PackageProcess | PackagePool) -> Served:
    """The answers of a process for images that are sent at once, none of which is an error.

    Raises:
        ValueError: The process has ended, or refuses an image.
    """
    answers = process.classify([image.data for image in images])
    for image, error in zip(images, answers["error"].to_pylist(), strict=True):
        if error is not None:
            raise ValueError(f"{image.path}: {error}")
    probabilities = answers["probabilities"].flatten().to_numpy()
    return Served(
        images,
        answers["label"].to_pylist(),
        process.classes,
        probabilities.reshape(len(images), len(process.classes)),
    )


def where_all_see_it(package: Path, scratch: Path) -> Path:
    """A package's folder, or its copy in the scratch where machines of a cluster need it."""
    if not ray_cluster.is_remote():
        return package
    copy = scratch / "package"
    if not copy.exists():
        with atomic.replacing(copy) as aside:
            shutil.copytree(package, aside)
    return copy


def seconds_per_image(package: Path) -> float:
    """How long a core, or a GPU, takes to classify an image, roughly."""
    weights = (package / MODEL / FILES[0]).stat().st_size / 4
    return weights * USES / SPEED["gpu" if gpu_capabilities() else "cpu"]


def other_versions(package: Path) -> list[str]:
    """The libraries whose installed version differs from the one a package was made with."""
    differing = []
    for line in (package / "requirements.txt").read_text(encoding="utf-8").splitlines():
        name, equals, recorded = line.strip().partition("==")
        if equals:
            try:
                current = installed(name).partition("+")[0]
            except PackageNotFoundError:
                current = "missing"
            if current != recorded:
                differing.append(f"{name} {recorded} (here {current})")
    return differing


class Encoded(Protocol):
    """An image that is sent."""

    @property
    def data(self) -> bytes:
        """The encoded image."""


E = TypeVar("E", bound=Encoded)


def portions(images: Iterable[E]) -> Iterator[list[E]]:
    """Cuts images into portions to send at once; they depend on the images alone."""
    portion: list[E] = []
    size = 0
    for image in images:
        if portion and (len(portion) == MAX_ROWS or size + len(image.data) > MAX_BYTES):
            yield portion
            portion, size = [], 0
        portion.append(image)
        size += len(image.data)
    if portion:
        yield portion
