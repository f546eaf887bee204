"""Trains a version again from its lineage, and compares the weights."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version as installed
from typing import Any

from retrain import hardware
from retrain.errors import UsageError
from retrain.project import PARAMS, Project
from retrain.registry import lineage
from retrain.registry.lineage import Lineage
from retrain.registry.rerun import PIN, run_again
from retrain.registry.versions import ModelVersion

RECORDED = (PARAMS, PIN)  # files whose content is in the record, committed or not
# Of a machine, what may change how numbers are rounded.
SURROUNDINGS = ("processor", "instructions", "cores", "accelerators", "system", "python")


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
        steps: Of each step, whether it gave the same output; in order.
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
    steps: Mapping[str, bool]
    metrics: Mapping[str, tuple[float | None, float | None]]
    differs: tuple[str, ...]
    seconds: float

    @property
    def outcome(self) -> str:
        """It in one sentence."""
        name = f"{self.model} version {self.version}"
        if self.identical:
            return f"{name} is reproduced: the weights are identical."
        other = next(step for step, is_identical in self.steps.items() if not is_identical)
        why = "; ".join(self.differs) or "nothing that is recorded differs"
        return f"{name} is not reproduced: {other} gave another output; {why}."


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
    differs = [*_surroundings(record, changes)]
    for line in differs:
        say(f"Not as it was: {line}.")
    say(f"Trains {name} again, in a copy of commit {commit[:12]}.")
    made = run_again(project, commit, record)
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
        steps={
            step.step: made.get(step.step, {}).get("digest") == step.digest for step in record.steps
        },
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


def _surroundings(record: Lineage, changes: Mapping[str, Any] | None) -> Iterator[str]:
    """What is other than it was: uncommitted code, the libraries, and this machine."""
    if lost := _lost(changes):
        yield f"uncommitted changes were not kept, of {', '.join(lost)}"
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
