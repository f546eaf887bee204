"""Trains a version again from what its lineage says, and compares the weights.

The recorded commit is checked out beside the clone, with the recorded parameters and version of the
data, and runs its own steps as DVC would call them. Its store is empty and its MLflow its own, so
nothing is taken from the cache, and nothing of the clone changes.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from importlib.metadata import PackageNotFoundError, version as installed
from pathlib import Path
from typing import Any

from retrain import hardware, tracking
from retrain.errors import UsageError
from retrain.params import load_workload, parse_yaml
from retrain.project import PARAMS, Project
from retrain.redaction import HIDDEN, redact, reveal
from retrain.registry import lineage, versions
from retrain.registry.lineage import Lineage, Made
from retrain.registry.versions import CHAMPION, Candidate, ModelVersion
from retrain.step import Plan, difference
from retrain.store import MANIFEST
from retrain.worktree import checked_out

PIN = "data.dvc"
RECORDED = (PARAMS, PIN)  # files whose content is in the record, committed or not
PLACES = (("data", "path"), ("model", "pretrained"))  # parameters that may be a relative path
WITHOUT = ("gate", "tune", "drift", "limits")  # parameters without a part in a training
# Of a machine, what may change how numbers are rounded.
SURROUNDINGS = ("processor", "instructions", "cores", "accelerators", "system", "python")
STOP_SECONDS = 10.0

# Runs steps in one process, each as `python -m tasks STEP NAME` does. It ends when its standard
# input is closed, which the system does when the process ends that has started it.
PROGRAM = """
import os, runpy, signal, sys
from threading import Thread

def end_with_input():
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)

Thread(target=end_with_input, daemon=True).start()
name, *steps = sys.argv[1:]
for step in steps:
    sys.argv = ["tasks", step, name]
    try:
        runpy.run_module("tasks", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if ended.code:
            raise
"""

Manifest = Mapping[str, Any]


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


@dataclass(frozen=True)
class Compared:
    """A step, then and now.

    Attributes:
        step: Its name.
        identical: Whether it gave the same output.
        inputs: What differs in what it depends on, except for the outputs of earlier steps; empty
            if nothing does.
    """

    step: str
    identical: bool
    inputs: str


@dataclass(frozen=True)
class Reproduction:
    """What came of training a version again.

    Attributes:
        model: The name of the model.
        version: The number of the version.
        commit: The git commit that was checked out.
        identical: Whether the weights are the same.
        weights: SHA-256 (hex) of those of the version.
        reproduced: SHA-256 (hex) of the new ones.
        steps: Each step, in order.
        metrics: Of each metric, the value of the version and the new one.
        differs: What else is not as it was: code that was not committed, libraries, the machine.
        seconds: How long it took.
    """

    model: str
    version: int
    commit: str
    identical: bool
    weights: str
    reproduced: str
    steps: tuple[Compared, ...]
    metrics: Mapping[str, tuple[float | None, float | None]]
    differs: tuple[str, ...]
    seconds: float

    @property
    def outcome(self) -> str:
        """It in one sentence."""
        name = f"{self.model} version {self.version}"
        if self.identical:
            return f"{name} is reproduced: the weights are identical."
        other = next(each for each in self.steps if not each.identical)
        if other.inputs:
            return f"{name} is not reproduced: {other.step} had other inputs: {other.inputs}."
        why = "; ".join(self.differs) or "nothing that is recorded differs"
        return f"{name} is not reproduced: {other.step} gave another output; {why}."


def reproduce(project: Project, version: ModelVersion, say: Callable[[str], None]) -> Reproduction:
    """Trains a version again and compares the weights with those that are registered.

    Args:
        project: The clone with the registry and the repository.
        version: Of the model.
        say: Takes a line for a person before the first step.

    Raises:
        UsageError: The version cannot be reproduced, because something was not recorded.
        ValueError: The record, the commit or the data is gone or has changed; or a step failed.
    """
    began, name = time.monotonic(), f"{version.name} version {version.version}"
    record = lineage.read(project, version)
    if record is None or record.parameters is None:
        raise UsageError(f"{name} was registered without its lineage, so it cannot be reproduced.")
    commit, changes = _code_of(record)
    if commit is None:
        raise UsageError(f"{name} was trained outside git: the code that trained it was not kept.")
    differs = [*_not_kept(changes), *_surroundings(record)]
    for line in differs:
        say(f"Not as it was: {line}.")
    say(f"Trains {name} again, in a copy of commit {commit[:12]}.")
    with checked_out(project, commit) as folder:
        copy = Copy(folder.root)
        moved = _prepare(project, copy, record)
        made = _make(project, copy, record)
    numerics = record.training.get("numerics"), made["train"]["facts"].get("numerics")
    if numerics[0] != numerics[1]:
        differs.append(f"numerics {numerics[0]} -> {numerics[1]}")
    *_, last = record.steps
    metrics = made[last.step]["facts"].get("metrics", {})
    reproduced = str(made["train"]["facts"]["weights"])
    return Reproduction(
        model=version.name,
        version=version.version,
        commit=commit,
        identical=reproduced == record.weights,
        weights=record.weights,
        reproduced=reproduced,
        steps=tuple(_compare(record, made, moved)),
        metrics={
            metric: (record.metrics.get(metric), metrics.get(metric))
            for metric in sorted({*record.metrics, *metrics})
        },
        differs=tuple(differs),
        seconds=round(time.monotonic() - began, 3),
    )


def _code_of(record: Lineage) -> tuple[str | None, Mapping[str, Any] | None]:
    """The commit to check out, and what was not committed then.

    The code that registered the version gives all steps their keys. If it was not committed, that
    of the training may have been.
    """
    known = record.trained.provenance
    commit = known.get("commit")
    clean = commit and not commit.endswith("+dirty") and known.get("uncommitted", "?") is None
    if clean and _lost(record.uncommitted):
        return commit, None
    return record.commit, record.uncommitted


def _lost(changes: Mapping[str, Any] | None) -> list[str]:
    """The files that were not committed, and are not in the record either."""
    return [file for file in (changes or {}).get("files", ()) if file not in RECORDED]


def _not_kept(changes: Mapping[str, Any] | None) -> Iterator[str]:
    if lost := _lost(changes):
        yield f"uncommitted changes were not kept, of {', '.join(lost)}"


def _surroundings(record: Lineage) -> Iterator[str]:
    """What is other than it was: the libraries, and this machine."""
    for name, before in record.libraries.items():
        try:
            now = installed(name)
        except PackageNotFoundError:
            now = "not installed"
        if now != before:
            yield f"{name} {before} -> {now}"
    machine, here = record.trained.provenance.get("machine", {}), hardware.machine()
    for name in SURROUNDINGS:
        if name in machine and machine[name] != here[name]:
            yield f"{name} {machine[name]} -> {here[name]}"


def _prepare(project: Project, copy: Copy, record: Lineage) -> dict[str, str]:
    """Gives a copy of the code the recorded parameters and version of the data.

    Returns:
        The parameters with a place that has another name, seen from the copy: by dotted name.
    """
    parameters = {
        name: value for name, value in (record.parameters or {}).items() if name not in WITHOUT
    }
    moved = {}
    tracked = record.data["tracked"]
    for section, key in (("model", "pretrained"),) if tracked else PLACES:
        value = parameters[section].get(key)
        if value and (place := _place(project, copy, value)) != value:
            moved[f"{section}.{key}"] = place
            parameters[section] = parameters[section] | {key: place}
    path = parameters["data"]["path"]
    if HIDDEN in path:  # in the place of a password, which this clone's own parameters may have
        with suppress(UsageError):
            load_workload(project.params, record.entry or record.model)
        parameters["data"] = parameters["data"] | {"path": reveal(path)}
    text = json.dumps({"workloads": {record.model: parameters}}, ensure_ascii=False, indent=1)
    copy.params.write_text(text, encoding="utf-8")
    if tracked:
        _pin(copy, record.data["version"])
        _share_cache(project, copy)
    if start := record.training.get("start"):
        _register_start(project, copy, record.model, start)
    return moved


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
    package = copy.state / "start"  # it is changed when it is registered
    shutil.copytree(versions.download(project, version), package)
    run = tracking.start_run(copy, name, "start", {}, "unknown")
    known = {each.name: getattr(version, each.name) for each in fields(Candidate)}
    # Without how it was trained: else a training that finds itself would start where it did.
    alone = {"run_id": run.run_id, "start": None, "train_key": None, "lineage": None}
    made = versions.register(copy, Candidate(**known | alone), package)
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
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, name, *steps],
        cwd=copy.root,
        env=_environment(copy),
        stdin=subprocess.PIPE,
        stdout=2,  # our standard output is for the result
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
    ) as process:
        assert process.stderr
        try:
            said = redact(process.stderr.read())
            code = process.wait()
        except BaseException:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
            raise
    if code:
        lines = said.strip().splitlines() or [f"its process ended with code {code}"]
        error = ValueError(f"{name} cannot be trained again: {lines[-1]}")
        project.logs.mkdir(parents=True, exist_ok=True)
        log = project.logs / f"{time.strftime('%Y%m%d-%H%M%S')}-reproduce-{name}.log"
        parts = [file.read_text(errors="replace") for file in sorted(copy.logs.glob("*.log"))]
        log.write_text("\n".join([*parts, said]), encoding="utf-8")
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
        "RETRAIN_STORE": strcopy.store,
    }


def _compare(
    record: Lineage, made: Mapping[str, Manifest], moved: Mapping[str, str]
) -> Iterator[Compared]:
    steps = {each.step for each in record.steps}
    for before in record.steps:
        now = made.get(before.step)
        if now is None:
            yield Compared(before.step, False, "it was not needed")
            continue
        identical = before.digest == now["digest"]
        yield Compared(before.step, identical, _difference(before, now, steps, moved))


def _difference(before: Made, now: Manifest, steps: set[str], moved: Mapping[str, str]) -> str:
    """What differs in the plan of a step, except for the outputs of earlier steps."""
    was, plan = before.depends_on, Plan(**now["plan"])
    if was is None:
        return ""
    config = {
        name: was.config.get(name) if moved.get(name, ...) == value else value
        for name, value in plan.config.items()
    }
    inputs = {
        name: was.inputs.get(name, digest) if name in steps else digest
        for name, digest in plan.inputs.items()
    }
    return difference(was, replace(plan, config=config, inputs=inputs))
