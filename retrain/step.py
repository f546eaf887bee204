"""What a step is, and what decides whether it has to run.

A step is one function. It takes the sections of the workload that it reads, the outputs of earlier
steps and a workspace, writes its files into the workspace's folder, and returns a few facts. It
knows nothing of Prefect, DVC or the cache.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from retrain.code import code_digests
from retrain.project import Project
from retrain.workload import Workload

Facts = dict[str, Any]

# What lies below this folder of an output is for people. It may differ from run to run (times,
# drawings) and is no part of the output's digest.
REPORT = "report"


class Input(Protocol):
    """What a step is given: an earlier step's output, or the version of the data."""

    @property
    def step(self) -> str:
        """Where it comes from."""

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of what it holds."""


@dataclass(frozen=True)
class DataVersion:
    """Which version of the data a run uses.

    Attributes:
        digest: DVC's hash; or a digest of the content, for data that is not under DVC.
        tracked: Whether it is under DVC.
        revision: The git revision that it was asked for by; None is the working tree.
    """

    digest: str
    tracked: bool
    revision: str | None = None

    @property
    def step(self) -> str:
        """Its name as an input of `pull`."""
        return "data"


@dataclass(frozen=True)
class Workspace:
    """What a step has to work with beside its inputs.

    Attributes:
        folder: Where the step writes its output; empty when it starts.
        scratch: Survives a kill, and is the same again for the same key.
        key: The step's key.
        workload: The workload's name.
        project: The clone that the step runs in.
    """

    folder: Path
    scratch: Path
    key: str
    workload: str
    project: Project

    @property
    def report(self) -> Path:
        """The folder of the output that is for people; made here."""
        folder = self.folder / REPORT
        folder.mkdir(exist_ok=True)
        return folder


@dataclass(frozen=True)
class Step:
    """One step of the flow.

    Attributes:
        name: Its verb.
        function: Called with the sections named in `reads` (once each, in that order), the
            inputs, and a `Workspace`; returns JSON-able facts that do not differ between runs.
        reads: Dotted names of the sections or parameters of the workload that the output depends
            on. A parameter of a section that is not named must not change the output.
        inputs: The names of the earlier steps whose outputs it is given.
        libraries: The distributions whose version changes the output.
        runs_model: Whether it runs the code of the workload's model family.
        runs: Further modules whose code decides the output, but which it does not import.
        cached: Whether the same key gives the same output. False for what looks at the registry.
        dry_function: For a step that is not cached. Called as the function is, it changes nothing
            and returns what the function would, or None if the function would change something.
    """

    name: str
    function: Callable[..., Facts]
    reads: tuple[str, ...]
    inputs: tuple[str, ...]
    libraries: tuple[str, ...] = ()
    runs_model: bool = False
    runs: tuple[str, ...] = ()
    cached: bool = True
    dry_function: Callable[..., Facts | None] | None = None

    def run(self, workload: Workload, inputs: Sequence[Input], workspace: Workspace) -> Facts:
        """Calls the function.

        Raises:
            ValueError: As the function does, for what is the user's to mend.
        """
        return self.function(*self._sections(workload), *inputs, workspace)

    def look(
        self, workload: Workload, inputs: Sequence[Input], workspace: Workspace
    ) -> Facts | None:
        """What the function would return if it would change nothing; None if it would.

        Raises:
            ValueError: As the function does.
        """
        assert self.dry_function, self.name
        return self.dry_function(*self._sections(workload), *inputs, workspace)

    def _sections(self, workload: Workload) -> list[Any]:
        sections = dict.fromkeys(name.split(".")[0] for name in self.reads)
        return [getattr(workload, section) for section in sections]


@dataclass(frozen=True)
class Plan:
    """Everything that decides the output of a step, known before it runs.

    Attributes:
        step: The step's name.
        config: The parameters that it reads, by dotted name.
        inputs: The digests of its inputs, by the step they come from.
        code: The digests of the modules that it runs, by dotted name.
        libraries: The versions of the libraries that change its output.
    """

    step: str
    config: Mapping[str, Any]
    inputs: Mapping[str, str]
    code: Mapping[str, str]
    libraries: Mapping[str, str]

    @property
    def key(self) -> str:
        """SHA-256 (hex) over all of it; no time, path, host or environment."""
        return digest_of(asdict(self))

    @property
    def definition(self) -> str:
        """SHA-256 (hex) over all but the inputs: what is done, whatever it is done to."""
        return digest_of(asdict(self) | {"inputs": {}})


def plan(step: Step, workload: Workload, inputs: Sequence[Input]) -> Plan:
    """Says what a step's output will depend on."""
    assert tuple(each.step for each in inputs) == step.inputs, (step.name, inputs)
    modules = [step.function.__module__, *step.runs]
    if step.runs_model:
        modules.append(f"models.{workload.model.family}")
    return Plan(
        step=step.name,
        config={
            name: value
            for name, value in workload.flat().items()
            if any(name == read or name.startswith(f"{read}.") for read in step.reads)
        },
        inputs={each.step: each.digest for each in inputs},
        code=code_digests(modules),
        libraries={name: version(name) for name in step.libraries},
    )


def difference(before: Plan, now: Plan) -> str:
    """Says why a step's output may be another one than before: `train.lr 0.001 -> 0.0005`."""
    said = [
        f"{name} {_show(before.config.get(name))} -> {_show(now.config.get(name))}"
        for name in sorted({*before.config, *now.config})
        if before.config.get(name) != now.config.get(name)
    ]
    said += [
        f"{name} has a new output" if name != "data" else "the data changed"
        for name in now.inputs
        if before.inputs.get(name) != now.inputs[name]
    ]
    code = [
        name
        for name in sorted({*before.code, *now.code})
        if before.code.get(name) != now.code.get(name)
    ]
    if code:
        said.append(f"code of {' and '.join(code)}")
    said += [
        f"{name} {before.libraries.get(name)} -> {now.libraries[name]}"
        for name in now.libraries
        if before.libraries.get(name) != now.libraries[name]
    ]
    return ", ".join(said)


def digest_of(value: Any) -> str:
    """SHA-256 (hex) of a JSON-able value, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _show(value: Any) -> str:
    return "unset" if value is None else str(value)
