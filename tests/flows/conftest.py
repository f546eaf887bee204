"""A clone of the project, as a user has it, with everything it leaves behind in a folder."""

import gc
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from time import monotonic, sleep
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from PIL import Image
from ruamel.yaml import YAML

from retrain import project
from retrain.cli.main import main
from retrain.runs.console import open_output
from tests import templates

ROOT = Path(__file__).parents[2]
RETRAIN = (sys.executable, "-m", "retrain.cli")

DOCUMENT = ".retrain/first.json"  # of a clone's first run; outside git

# What every workload of a clone is changed to; all else is as shipped.
QUICK = {"train": {"epochs": 2}, "gate": {"min": {}}}


@dataclass(frozen=True)
class Clone:
    """A clone of the project.

    Attributes:
        root: Where it is.
        api: The Prefect server that its runs use; empty for one inside each run.
    """

    root: Path
    api: str

    @property
    def environment(self) -> dict[str, str]:
        """Ours, with the clone's own code in front, and none of our places."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_"))}
        return kept | {
            "PREFECT_API_URL": self.api,
            "PYTHONPATH": str(self.root),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        }

    def run(self, *command: str, code: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
        """Runs a program in the clone and checks its exit code."""
        done = subprocess.run(
            command, cwd=self.root, env=self.environment | more, capture_output=True, text=True
        )
        assert done.returncode == code, f"{command}: {done.stdout}\n{done.stderr}"
        return done

    def start(self, *arguments: str, output: Path, **more: str) -> "subprocess.Popen[bytes]":
        """Starts the command line in a process and a session of its own."""
        with output.open("wb") as stream:
            return subprocess.Popen(
                [*RETRAIN, *arguments], cwd=self.root, env=self.environment | more,
                start_new_session=True, stdout=stream, stderr=stream,
            )  # fmt: skip

    def call(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Calls the command line in this process, whose code is the same as the clone's."""
        with ExitStack() as stack:
            stack.enter_context(patch.dict(os.environ, self.environment | more, clear=True))
            # At the end, so that a workload names the code in front of it, which is ours.
            stack.enter_context(patch.object(sys, "path", [*sys.path, str(self.root)]))
            stack.enter_context(patch.object(project, "CODE", self.root / "retrain"))
            stack.enter_context(chdir(self.root))
            stack.callback(signal.signal, signal.SIGTERM, signal.getsignal(signal.SIGTERM))
            files = [stack.enter_context(TemporaryFile("w+", encoding="utf-8")) for _ in range(2)]
            with redirected(*(file.fileno() for file in files)):
                ended = main(arguments)
            gc.unfreeze()
            said = [file.seek(0) or file.read() for file in files]
        return subprocess.CompletedProcess(arguments, ended, *said)

    def retrain(
        self, *arguments: str, code: int = 0, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Calls the command line, and checks its exit code."""
        done = self.call(*arguments, **more)
        assert done.returncode == code, f"{arguments}: {done.stdout}\n{done.stderr}"
        return done

    def train(self, *arguments: str, workload: str = "vit") -> dict[str, Any]:
        """Runs the flow; returns its document."""
        document: dict[str, Any] = self.json("train", workload, *arguments)
        return document

    def json(self, *arguments: str, code: int = 0, **more: str) -> Any:
        """Calls the command line; returns its document."""
        return json.loads(self.retrain(*arguments, "--json", code=code, **more).stdout)

    def edit(self, file: str, old: str, new: str) -> None:
        """Replaces a piece of a file, which must be there."""
        path = self.root / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))


@contextmanager
def redirected(*files: int) -> Iterator[None]:
    """Lets the standard output and the standard error lead to files, for C libraries too."""
    kept = [os.dup(1), os.dup(2)]
    with ExitStack() as stack:
        for fd, file in enumerate(files, 1):
            os.dup2(file, fd)
            stack.callback(os.dup2, kept[fd - 1], fd)
        stack.enter_context(redirect_stdout(stack.enter_context(open_output(1, close=False))))
        stack.enter_context(redirect_stderr(stack.enter_context(open_output(2, close=False))))
        yield
    for fd in kept:
        os.close(fd)


def make_clone(root: Path, api: str) -> Clone:
    """Clones the project as it stands here, committed or not, with short trainings."""
    templates.copy_working_tree(root)
    clone = Clone(root, api)
    clone.run("git", "add", "-A")
    clone.run("git", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "start")
    shorten_trainings(root)
    return clone


def shorten_trainings(root: Path) -> None:
    """Changes every workload of a clone to what is quick."""
    path, yaml = root / "params.yaml", YAML()
    tree = yaml.load(path.read_text())
    for workload in tree["workloads"].values():
        for section, values in QUICK.items():
            workload[section].update(values)
    with path.open("w") as file:
        yaml.dump(tree, file)


@pytest.fixture(scope="session")
def prefect_api(prefect_session) -> str:
    """The address of the tests' Prefect server."""
    from prefect.settings import PREFECT_API_URL

    return str(PREFECT_API_URL.value())


@pytest.fixture(scope="module")
def clone(tmp_path_factory, prefect_api) -> Clone:
    """A clone after its first run; each test of a file leaves code and parameters as they were."""
    return copy_clone(_after_first_run(prefect_api), tmp_path_factory.mktemp("clone") / "clone")


@pytest.fixture(scope="module")
def first(clone, prefect_api) -> dict[str, Any]:
    """The document of the clone's first run."""
    original = str(_after_first_run(prefect_api).root)
    text = (clone.root / DOCUMENT).read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text.replace(original, str(clone.root)))
    return document


def _after_first_run(api: str) -> Clone:
    """The clone that others are copies of."""

    def make(root: Path) -> None:
        clone = make_clone(root, api)
        templates.place_mlflow_database(root)
        done = clone.retrain("train", "vit", "--json")
        (root / DOCUMENT).write_text(done.stdout, encoding="utf-8")

    return Clone(templates.once("first", make), api)


def copy_clone(clone: Clone, root: Path) -> Clone:
    """Copies a clone that nothing uses; its records name the copy's folders then."""
    templates.copy_project(clone.root, root)
    old, new = str(clone.root), str(root)
    for record in (root / ".retrain" / "runs").rglob("*.json"):
        record.write_text(record.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    return Clone(root, clone.api)


def ran(document: Mapping[str, Any]) -> list[str]:
    """The steps before the gate that ran, by name."""
    steps = [step for step in document["steps"] if step["step"] not in ("gate", "promote")]
    return [step["step"] for step in steps if not step["cached"]]


def until(true: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Waits until something is so; returns what it is."""
    deadline = monotonic() + seconds
    while not (found := true()):
        assert monotonic() < deadline
        sleep(0.1)
    return found


def free_port() -> int:
    """A port on loopback that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def draw_photos(root: Path, classes: int = 3, each: int = 12, size: int = 24) -> Path:
    """A folder per class of PNG images, a stripe in another place for each class."""
    rng = np.random.default_rng(0)
    for label in range(classes):
        folder = root / f"class-{label}"
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(each):
            pixels = rng.integers(0, 60, (size, size, 3), dtype=np.uint8)
            start = label * size // classes
            pixels[:, start : start + size // classes] += 180
            Image.fromarray(pixels).save(folder / f"{number}.png")
    return root
