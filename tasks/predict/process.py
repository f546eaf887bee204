"""A process that has loaded a package and classifies images with it; it runs `classify.py`.

A package brings its own code, which may be an older `models` than this clone has, and one process
cannot load both. So each worker has a process beside it, on this machine and on a cluster alike:
an actor that put the package on its own `sys.path` would already have imported this clone's
`models`, to read the images. The images go through a pipe, which takes a hundredth of the time that
it takes to decode them.
"""

import json
import logging
import os
import subprocess
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

PROGRAM = Path(__file__).with_name("classify.py")
# PyTorch divides some sums by threads, so that results would depend on the machine's cores.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class PackageProcess:
    """A process that has loaded a package; it ends with this object, or with this process."""

    def __init__(self, package: Path, classes: Sequence[str], device: str) -> None:
        """Starts it.

        Args:
            package: A folder as `mlflow.pyfunc.save_model` writes it.
            classes: The names of its classes, in the order in which answers have them.
            device: `cpu`; `cuda` for the GPU that this process sees, or `cuda:1` for one of them.
        """
        import pyarrow as pa

        errors = TemporaryFile()  # noqa: SIM115  closed with the process
        process = subprocess.Popen(
            [sys.executable, "-I", "-B", str(PROGRAM), str(package)],
            cwd=package,
            env=os.environ | ONE_THREAD | _one_gpu(device),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        self._process, self._errors = process, errors
        self.close = weakref.finalize(self, _end, process, errors)
        metadata = {"classes": json.dumps(list(classes))}
        self._schema = pa.schema({"image": pa.binary()}, metadata=metadata)
        self._writer: Any = None
        self._reader: Any = None

    def classify(self, images: Sequence[bytes]) -> "pa.RecordBatch":
        """Classifies encoded images.

        Returns:
            `label`, `probabilities` (float32, a list in the order of the classes) and `error`, in
            order of the images. A row has a label or an error; with an error, the probabilities
            mean nothing.

        Raises:
            ValueError: The process has ended; the message is its last line of errors.
        """
        import pyarrow as pa
        from pyarrow import ipc

        batch = pa.RecordBatch.from_arrays([pa.array(images, pa.binary())], schema=self._schema)
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
        return answers

    def _last_error(self) -> str:
        self._process.wait()
        self._errors.seek(0)
        message = self._errors.read().decode(errors="replace").strip()
        logger.error("The package's process ended with %s:\n%s", self._process.returncode, message)
        return message.splitlines()[-1] if message else f"exit code {self._process.returncode}"


def _end(process: "subprocess.Popen[bytes]", errors: IO[bytes]) -> None:
    process.kill()
    process.communicate()
    errors.close()


def _one_gpu(device: str) -> dict[str, str]:
    """The environment that leaves a process the GPU that it is for."""
    _, colon, number = device.partition(":")
    if not colon:
        return {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return {"CUDA_VISIBLE_DEVICES": visible.split(",")[int(number)] if visible else number}
