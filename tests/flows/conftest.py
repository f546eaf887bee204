"""A clone of the project, as a user has it, with everything it leaves behind in a folder."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest
from PIL import Image
from ruamel.yaml import YAML

from benchmarks.flow import copy_project
from tests import templates, warm_python
from tests.flows import preloaded

ROOT = Path(__file__).parents[2]

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
        programs = (Path(each).parent for each in (sys.executable, warm_python.REAL))
        return kept | {
            "PREFECT_API_URL": self.api,
            "PYTHONPATH": str(self.root),
            "PATH": os.pathsep.join([*map(str, programs), os.environ["PATH"]]),
        }

    def run(self, *command: str, code: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
        """Runs a command in the clone and checks its exit code."""
        done = subprocess.run(
            command, cwd=self.root, env=self.environment | more, capture_output=True, text=True
        )
        return self._checked(done, code)

    def retrain(
        self, *arguments: str, code: int = 0, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs the project's command line."""
        return self._checked(preloaded.run(arguments, self.root, self.environment | more), code)

    def _checked(
        self, done: subprocess.CompletedProcess[str], code: int
    ) -> subprocess.CompletedProcess[str]:
        assert done.returncode == code, f"{done.args}: {done.stdout}\n{done.stderr}"
        return done

    def train(self, *arguments: str, workload: str = "vit") -> dict[str, Any]:
        """Runs the flow; returns its document."""
        done = self.retrain("train", workload, "--json", *arguments)
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def edit(self, file: str, old: str, new: str) -> None:
        """Replaces a piece of a file, which must be there."""
        path = self.root / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))


def make_clone(root: Path, api: str) -> Clone:
    """Clones the project as it stands here, committed or not, with short trainings."""
    copy_project(root)
    clone = Clone(root, api)
    clone.run("git", "add", "-A")
    clone.run("git", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "start")
    path, yaml = root / "params.yaml", YAML()
    tree = yaml.load(path.read_text())
    for workload in tree["workloads"].values():
        for section, values in QUICK.items():
            workload[section].update(values)
    with path.open("w") as file:
        yaml.dump(tree, file)
    return clone


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
