"""Runs the command line in a fork of a process that has imported the libraries.

Importing them takes longer than most of the tests' runs. The fork imports the project's own code
from the clone, and has a working folder, an environment and an output of its own.
"""

import atexit
import multiprocessing
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryDirectory

# Of Prefect's nothing: it reads its settings when it is imported.
LIBRARIES = (
    "dvc.repo",
    "great_expectations",
    "matplotlib.figure",
    "mlflow",
    "ray.data",
    "ray.train.torch",
    "torch",
    "transformers.models.vit.modeling_vit",
)

forks = multiprocessing.get_context("forkserver")
forks.set_forkserver_preload(list(LIBRARIES))


def run(
    arguments: Sequence[str], root: Path, environment: Mapping[str, str]
) -> CompletedProcess[str]:
    """Runs `retrain` in a clone, as `subprocess.run` does with captured output."""
    with TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("output", "errors")]
        for file in files:
            file.touch()
        process = forks.Process(target=_command, args=(arguments, root, environment, files))
        process.start()
        process.join()
        assert process.exitcode is not None
        return CompletedProcess(
            arguments, process.exitcode, *(file.read_text(encoding="utf-8") for file in files)
        )


def _command(
    arguments: Sequence[str], root: Path, environment: Mapping[str, str], files: Sequence[Path]
) -> None:
    for descriptor, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_APPEND), descriptor)
    os.chdir(root)
    os.environ.clear()
    os.environ.update(environment)
    sys.path.insert(0, str(root))
    sys.argv = ["retrain", *arguments]
    try:
        runpy.run_module("retrain.cli", run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()  # which multiprocessing leaves out
