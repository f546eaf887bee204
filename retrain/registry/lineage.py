"""The lineage of a version: what it was made of, how, where, and by which code.

It is a part of the version's record, which is written once, when the version is registered, as an
artifact of the MLflow run of the training. The version has the record's SHA-256 as a tag, which is
also the record's name, so it cannot be edited unseen. The lineage decides nothing and is no input
of a step: it may hold times and paths. What it has, by name:

- `model`; `package` and `weights`, the SHA-256 (hex) of what is served and of its weights; `time`,
  when it was registered (ISO 8601, UTC); `mlflow_run`, the run of the training
- `commit`, whose code registered it, and by whose code all its steps have the keys that they have,
  None outside git; `uncommitted`, what differed from it, as `Project.uncommitted` gives it;
  `requirements`, SHA-256 (hex) of `requirements.lock`, None without that file
- `data`: `version`, whether it is `tracked` by DVC, the git `revision` that was asked for, the
  `pin` (DVC's hash of all of `data/`), and the `path`
- `entry`, that of the workload in `params.yaml`; `overrides`, what replaced its parameters in that
  run, by dotted name; `parameters`, all of them, with what was `auto` decided; None if not known
- `validation`, what the checks of the data found; `images`: the `step` that listed them, the `key`
  of its output, the `file` in it (Parquet), and of each of the
  `splits` how many `rows` it has and `sha256` (hex) over the sorted SHA-256s of its images, each
  (hex) with a line feed
- `training`, what that said of itself: its numerics, the best epoch; `metrics` of the evaluation
- `steps`, the outputs from the data to the evaluation, in order: the `step`, the `digest` of the
  output, the `key` of its `plan`, None like the plan if the store had lost it, and its `provenance`

`reproduce` trains a version again: the recorded commit is checked out in a git worktree, with the
recorded parameters and version of the data, and its own code runs there. Its store is empty and its
MLflow its own, so nothing is taken from the cache, and nothing of the clone changes.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, fields
from importlib.metadata import PackageNotFoundError, version as installed
from pathlib import Path
from typing import Any

from retrain import hardware
from retrain.errors import UsageError
from retrain.locks import locked
from retrain.outputs import MANIFEST
from retrain.project import PARAMS, Project
from retrain.registry import decisions, packages, tracking, versions
from retrain.registry.ledger import Decision
from retrain.registry.versions import Candidate, ModelVersion

BATCH = 1 << 16  # images, of which the digests are hashed at once
PIN = "data.dvc"
# In the run of a training and, while it is trained again, in the state folder of the copy: which
# images look the same, as `validate` writes it.
TIES = "ties.npy"
RECORDED = (PARAMS, PIN)  # files whose content is in the record, committed or not
# The facts about a machine that may change how numbers are rounded.
SURROUNDINGS = ("processor", "instructions", "cores", "accelerators", "system", "python")


def read(project: Project, version: ModelVersion) -> dict[str, Any]:
    """The lineage of a version.

    Raises:
        ValueError: The record is gone, or was changed.
    """
    record = versions.read_record(project, version)
    for name in ("version", "files"):  # what is in the registry, and of its package
        record.pop(name, None)
    return record


def output_of(record: Mapping[str, Any], step: str) -> dict[str, Any]:
    """The output of a step, on the way to a version."""
    return next(output for output in record["steps"] if output["step"] == step)


def read_ties(project: Project, run_id: str) -> bytes | None:
    """The file about the images that looked the same to a training; None if there is none."""
    return tracking.read_artifact(project, run_id, f"evaluate/{TIES}")


def libraries(record: Mapping[str, Any]) -> dict[str, str]:
    """The version of each library that changed one of the outputs."""
    plans = [output["plan"] for output in record["steps"] if output["plan"]]
    return {name: version for plan in plans for name, version in plan["libraries"].items()}


def digests_of_images(file: Path) -> dict[str, dict[str, Any]]:
    """The `splits` of `Images`, from a list of images (Parquet)."""
    from pyarrow import compute, parquet

    table = parquet.read_table(file, columns=["split", "sha256"]).sort_by("sha256")
    digests = {}
    for split in table["split"].unique().to_pylist():
        rows = table.filter(compute.equal(table["split"], split))
        digest = hashlib.sha256()
        for batch in rows.to_batches(max_chunksize=BATCH):
            digest.update("".join(f"{line}\n" for line in batch["sha256"].to_pylist()).encode())
        digests[split] = {"rows": len(rows), "sha256": digest.hexdigest()}
    return digests


@dataclass(frozen=True)
class Copy(Project):
    """A copy of the clone's code with a store and a registry of its own, whatever is set here."""

    @property
    def store(self) -> Path:
        """The store of the copy, which is empty at first."""
        return self.state / "store"

    @property
    def tracking_uri(self) -> str:
        """MLflow's store of the copy: a new SQLite file."""
        return f"sqlite:///{self.root / 'mlflow.db'}"


def reproduce(
    project: Project, version: ModelVersion, say: Callable[[str], None]
) -> dict[str, Any]:
    """Trains a version again, and compares the weights.

    Args:
        project: The clone with the registry and the repository.
        version: The version of the model.
        say: Takes a line for a person before the first step.

    Returns:
        `model` and `version`; `commit`, which was checked out; `identical`, whether the weights
        are the same; `weights` and those `reproduced` (SHA-256, hex); `steps`, whether each gave
        the same output, in order; `metrics`, the recorded value and the new one of each; `differs`,
        what else is not as it was: code that was not committed, libraries, the machine; `seconds`;
        and `outcome`, the result in one sentence.

    Raises:
        UsageError: The version cannot be reproduced, because something was not recorded.
        ValueError: The record, the commit or the data is gone or has changed; or a step failed.
    """
    began = time.monotonic()
    record = read(project, version)
    if record["parameters"] is None or record["commit"] is None:
        raise UsageError(
            f"{version.title} cannot be reproduced: its parameters were not recorded, or it was "
            "trained outside git."
        )
    differs = [*_surroundings(record)]
    for line in differs:
        say(f"Not as it was: {line}.")
    say(f"Trains {version.title} again, in a copy of commit {record['commit'][:12]}.")
    with _checked_out(project, record["commit"]) as copy:
        _prepare(project, copy, record)
        made = _make(project, copy, record)
    trained, metrics = made["train"]["facts"], made[record["steps"][-1]["step"]]["facts"]["metrics"]
    if (before := record["training"].get("numerics")) != trained.get("numerics"):
        differs.append(f"numerics {before} -> {trained.get('numerics')}")
    steps = {
        each["step"]: made[each["step"]]["digest"] == each["digest"] for each in record["steps"]
    }
    return {
        "model": version.name,
        "version": version.version,
        "commit": record["commit"],
        "identical": trained["weights"] == record["weights"],
        "weights": record["weights"],
        "reproduced": trained["weights"],
        "steps": steps,
        "metrics": {
            name: (record["metrics"].get(name), metrics.get(name))
            for name in sorted({*record["metrics"], *metrics})
        },
        "differs": differs,
        "seconds": round(time.monotonic() - began, 3),
        "outcome": outcome(version.title, trained["weights"] == record["weights"], steps, differs),
    }


def outcome(title: str, identical: bool, steps: Mapping[str, bool], differs: list[str]) -> str:
    """The result in one sentence."""
    if identical:
        return f"{title} is reproduced: the weights are identical."
    different = next(step for step, is_identical in steps.items() if not is_identical)
    why = "; ".join(differs) or "nothing that is recorded differs"
    return f"{title} is not reproduced: {different} gave another output; {why}."


@contextmanager
def _checked_out(project: Project, commit: str) -> Iterator[Copy]:
    """Checks a commit out beside the clone; one process does so at a time.

    The folder goes after the block; the next process removes what a killed one has left.

    Raises:
        ValueError: There is no such commit here.
    """
    folder = project.state / "reproduce"
    project.state.mkdir(exist_ok=True)
    with locked(folder.with_suffix(".lock")):
        _remove(project, folder)
        # Hooks of the clone, such as those of pre-commit or DVC, are not for a copy.
        add = ("-c", "core.hooksPath=/dev/null", "worktree", "add", "--force", "--detach")
        try:
            project.git(*add, str(folder), commit)
        except ValueError as error:
            raise ValueError(
                f"Commit {commit} is not in this clone. Fetch it first: git fetch --all"
            ) from error
        try:
            yield Copy(folder / project.git("rev-parse", "--show-prefix"))
        finally:
            _remove(project, folder)


def _remove(project: Project, folder: Path) -> None:
    with suppress(ValueError):  # git does not know it: it was never there
        project.git("worktree", "remove", "--force", str(folder))
    shutil.rmtree(folder, ignore_errors=True)


def _surroundings(record: Mapping[str, Any]) -> Iterator[str]:
    """What differs from the recorded training: uncommitted code, libraries, and the machine."""
    files = (record["uncommitted"] or {}).get("files", ())
    if lost := [file for file in files if file not in RECORDED]:
        yield f"uncommitted changes were not kept, of {', '.join(lost)}"
    for name, known in libraries(record).items():
        try:
            version = installed(name)
        except PackageNotFoundError:
            version = "not installed"
        if version != known:
            yield f"{name} {known} -> {version}"
    machine = hardware.machine()
    recorded = output_of(record, "train")["provenance"].get("machine", {})
    for name in SURROUNDINGS:
        if name in recorded and recorded[name] != machine[name]:
            yield f"{name} {recorded[name]} -> {machine[name]}"


def _prepare(project: Project, copy: Copy, record: Mapping[str, Any]) -> None:
    """Gives a copy of the code the recorded parameters and version of the data."""
    # The search has no part in a training, and with all its defaults it could not be read again.
    parameters = deepcopy(dict(record["parameters"]))
    parameters.pop("tune", None)
    model = parameters["model"]
    places = [(model, "pretrained"), *((model["files"], name) for name in model.get("files", {}))]
    if record["data"]["tracked"]:
        # DVC's own file may be of another version at that commit.
        if pin := record["data"]["pin"]:
            outs = {"outs": [{"md5": pin, "hash": "md5", "path": "data"}]}
            (copy.root / PIN).write_text(json.dumps(outs), encoding="utf-8")
        _share_cache(project, copy)
    else:
        places.append((parameters["data"], "path"))
    for values, name in places:
        if value := values.get(name):
            values[name] = _place(project, copy, value)
    text = json.dumps({"workloads": {record["model"]: parameters}}, ensure_ascii=False, indent=1)
    copy.params.write_text(text, encoding="utf-8")
    copy.state.mkdir(exist_ok=True)
    if ties := read_ties(project, record["mlflow_run"]):
        (copy.state / TIES).write_bytes(ties)
    if start := record["training"].get("start"):
        _register_start(project, copy, record["model"], start)


def _place(project: Project, copy: Copy, value: str) -> str:
    """The path by which a copy of the code reaches a file or folder that only the clone has."""
    place = Path(os.path.normpath(project.root / value))
    return str(place) if place.exists() and not (copy.root / value).exists() else value


def _share_cache(project: Project, copy: Copy) -> None:
    """Lets DVC use the clone's cache and remotes in a copy of its code."""
    from dvc.config import Config
    from dvc.repo import Repo

    with (
        Repo(str(project.root)) as repository,
        Config(str(copy.root / ".dvc")).edit("local") as config,
    ):
        config |= {name: repository.config[name] for name in ("core", "remote")}
        config["cache"] = {"dir": repository.cache.local_cache_dir}


def _register_start(project: Project, copy: Copy, name: str, weights: str) -> None:
    """Makes the version that a training started from the champion of a copy.

    Raises:
        ValueError: That version is not in the registry any more.
    """
    version = versions.find_by_weights(project, name, weights)
    if version is None:
        raise ValueError(f"The weights that it started from are not in the registry: {weights}.")
    run_id = tracking.start_run(copy, name, "start", {}, "unknown")
    attributes = {field.name: getattr(version, field.name) for field in fields(Candidate)}
    # Without how it was trained: else a training that finds itself would start where it did.
    attributes |= {"run_id": run_id, "start": None, "train_key": None}
    package = packages.download(project, version)
    start = versions.register(copy, Candidate(**attributes), package)
    decisions.apply(copy, start, Decision("promoted", start.version, None, "first"))


def _make(project: Project, copy: Copy, record: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Runs the steps in a copy of the code, up to the last that is recorded.

    Returns:
        The manifest of each output, by the step's name.

    Raises:
        ValueError: The data is not what it was; or a step failed.
    """
    project.logs.mkdir(parents=True, exist_ok=True)
    copy.logs.symlink_to(project.logs)  # which stay when the copy goes
    own = ("MLFLOW_", "PREFECT_", "RETRAIN_")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(own)}
    environment |= {
        "DVC_SITE_CACHE_DIR": str(copy.state / "dvc"),
        "PYTHONPATH": os.pathsep.join([str(copy.root), environment.get("PYTHONPATH", "")]),
    }
    made: dict[str, dict[str, Any]] = {}
    for step in (record["steps"][0]["step"], record["steps"][-1]["step"]):
        done = subprocess.run(
            [sys.executable, "-m", "retrain.cli", "step", step, record["model"]],
            cwd=copy.root,
            env=environment,
            stdout=2,  # standard output is for the result
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise ValueError(f"{record['model']} cannot be trained again: {lines[-1]}")
        for file in copy.store.glob(f"*/*/{MANIFEST}"):  # each step has made one output
            made[file.parts[-3]] = json.loads(file.read_text(encoding="utf-8"))
        version = made[record["steps"][0]["step"]]["plan"]["inputs"]["data"]
        if version != record["data"]["version"]:  # before hours of training
            raise ValueError(
                f"The data at {record['data']['path']} is not what it was: version "
                f"{record['data']['version']} then, and {version} now."
            )
    return made
