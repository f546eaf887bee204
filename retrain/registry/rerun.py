"""Makes the outputs of a version again from what its lineage says.

The recorded commit is checked out beside the clone, with the recorded parameters and version of the
data, and runs its own steps as DVC would call them. Its store is empty and its MLflow its own, so
nothing is taken from the cache, and nothing of the clone changes.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from retrain import tracking
from retrain.outputs import MANIFEST
from retrain.params import parse_yaml
from retrain.project import Project
from retrain.registry import packages, versions
from retrain.registry.lineage import Lineage
from retrain.registry.versions import CHAMPION, Candidate
from retrain.worktree import checked_out

Manifest = Mapping[str, Any]

PIN = "data.dvc"

# Runs steps in one process, each as `retrain step STEP NAME` does; older commits have a program of
# their own for it. It ends when its standard input is closed, which the system does when the
# process ends that has started it.
PROGRAM = """
import os, runpy, signal, sys
from threading import Thread

def end_with_input():
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)

Thread(target=end_with_input, daemon=True).start()
name, *steps = sys.argv[1:]
is_older = os.path.exists("tasks/__main__.py")
program, words = ("tasks", []) if is_older else ("retrain.cli", ["step"])
for step in steps:
    sys.argv = [program, *words, step, name]
    try:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if ended.code:
            raise
"""


@dataclass(frozen=True)
class Copy(Project):
    """A copy of the clone's code with a store and a registry of its own, whatever is set here."""

    @property
    def store(self) -> Path:
        """Empty at first."""
        return self.state / "store"

    @property
    def tracking_uri(self) -> str:
        """A new SQLite file."""
        return f"sqlite:///{self.root / 'mlflow.db'}"


def run_again(project: Project, commit: str, record: Lineage) -> dict[str, Manifest]:
    """Makes the outputs from the data to the evaluation again.

    Args:
        project: The clone.
        commit: The git commit whose code makes them.
        record: What they are made from.

    Returns:
        The manifest of each output, by the step's name.

    Raises:
        ValueError: The commit or the data is gone or has changed; or a step failed.
    """
    with checked_out(project, commit) as folder:
        copy = Copy(folder.root)
        _prepare(project, copy, record)
        return _make(project, copy, record)


def _prepare(project: Project, copy: Copy, record: Lineage) -> None:
    """Gives a copy of the code the recorded parameters and version of the data."""
    # The search has no part in a training, and with all its defaults it could not be read again.
    recorded = deepcopy(record.parameters) or {}
    parameters = {name: each for name, each in recorded.items() if name != "tune"}
    tracked, model = record.data["tracked"], parameters["model"]
    places = [(model, "pretrained"), *((model["files"], name) for name in model.get("files", {}))]
    if not tracked:
        places.append((parameters["data"], "path"))
    for values, name in places:
        if value := values.get(name):
            values[name] = _place(project, copy, value)
    text = json.dumps({"workloads": {record.model: parameters}}, ensure_ascii=False, indent=1)
    copy.params.write_text(text, encoding="utf-8")
    if tracked:
        _pin(copy, record.data["version"])
        _share_cache(project, copy)
    if start := record.training.get("start"):
        _register_start(project, copy, record.model, start)


def _place(project: Project, copy: Copy, value: str) -> str:
    """What a copy of the code has to call a file or folder of the clone that it does not have."""
    place = Path(os.path.normpath(project.root / value))
    return str(place) if place.exists() and not (copy.root / value).exists() else value


def _pin(copy: Copy, version: str) -> None:
    """Lets `data.dvc` name a version; DVC's own file may be of another one at that commit."""
    entry = {"md5": version, "hash": "md5", "path": "data"}
    (copy.root / PIN).write_text(json.dumps({"outs": [entry]}), encoding="utf-8")


def _share_cache(project: Project, copy: Copy) -> None:
    """Lets DVC use the clone's cache and remotes in a copy of its code."""
    from dvc.config import Config, merge
    from dvc.repo import Repo

    settings: dict[str, Any] = {}
    with Repo(str(project.root)) as ours:
        for level in ("repo", "local"):
            merge(settings, ours.config.load_one(level))
        settings.setdefault("cache", {})["dir"] = ours.cache.local_cache_dir
    with Config(str(copy.root / ".dvc")).edit("local") as config:
        merge(config, settings)


def _register_start(project: Project, copy: Copy, name: str, weights: str) -> None:
    """Makes the version that a training started from the champion of a copy.

    Raises:
        ValueError: It is not in the registry any more.
    """
    version = versions.find_by_weights(project, name, weights)
    if version is None:
        raise ValueError(f"The weights that it started from are not in the registry: {weights}.")
    run = tracking.start_run(copy, name, "start", {}, "unknown")
    known = {each.name: getattr(version, each.name) for each in fields(Candidate)}
    # Without how it was trained: else a training that finds itself would start where it did.
    alone = {"run_id": run.run_id, "start": None, "train_key": None, "lineage": None}
    made = versions.register(copy, Candidate(**known | alone), packages.download(project, version))
    tracking.end_run(copy, run.run_id, "FINISHED")
    tracking.client(copy).set_registered_model_alias(name, CHAMPION, str(made.version))


def _make(project: Project, copy: Copy, record: Lineage) -> dict[str, Manifest]:
    """Runs the steps in a copy of the code, up to the last that is recorded.

    Returns:
        The manifest of each output, by the step's name.
    """
    stages = list(parse_yaml((copy.root / "dvc.yaml").read_text(encoding="utf-8"))["stages"])
    first, *others = stages[: stages.index(record.steps[-1].step) + 1]
    _run(project, copy, [first], record.model)
    version = _manifests(copy)[first]["plan"]["inputs"]["data"]
    if version != record.data["version"]:
        raise ValueError(
            f"The data at {record.data['path']} is not what it was: version "
            f"{record.data['version']} then, and {version} now."
        )
    _run(project, copy, others, record.model)
    return _manifests(copy)


def _manifests(copy: Copy) -> dict[str, Manifest]:
    """The manifests in a copy's own store, by the name of the step; each has made one output."""
    files = copy.store.glob(f"*/*/{MANIFEST}")
    return {file.parts[-3]: json.loads(file.read_text(encoding="utf-8")) for file in files}


def _run(project: Project, copy: Copy, steps: Sequence[str], name: str) -> None:
    """Runs steps in a copy of the code; they are ended with this process.

    Raises:
        ValueError: One has failed.
    """
    # Their program ends when its standard input is closed: by `run`, which kills it if it is
    # interrupted, or by the system, if this process is killed.
    read, write = os.pipe()
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, name, *steps],
            cwd=copy.root,
            env=_environment(copy),
            stdin=read,
            stdout=2,  # our standard output is for the result
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    finally:
        os.close(write)
        os.close(read)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        last = lines[-1] if lines else f"its process ended with code {done.returncode}"
        error = ValueError(f"{name} cannot be trained again: {last}")
        project.logs.mkdir(parents=True, exist_ok=True)
        log = project.logs / f"{time.strftime('%Y%m%d-%H%M%S')}-reproduce-{name}.log"
        parts = [file.read_text(errors="replace") for file in sorted(copy.logs.glob("*.log"))]
        log.write_text("\n".join([*parts, done.stderr]), encoding="utf-8")
        error.add_note(f"More is in {log}")
        raise error


def _environment(copy: Copy) -> dict[str, str]:
    """Ours, with the copy's code in front, a store and an MLflow of its own, and no other."""
    ours = ("MLFLOW_", "PREFECT_", "RETRAIN_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    paths = [str(copy.root), kept.get("PYTHONPATH", "")]
    return kept | {
        "DVC_SITE_CACHE_DIR": str(copy.state / "dvc"),
        "MLFLOW_TRACKING_URI": copy.tracking_uri,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "RETRAIN_STORE": str(copy.store),
    }
