"""Defines a step, and the plan that decides whether it has to run.

A step is one function. It takes the sections of the workload that it reads, the outputs of earlier
steps and a workspace, writes its files into the workspace's folder, and returns a few facts. It
knows nothing of Prefect, DVC or the cache.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from retrain.code import code_digests
from retrain.project import Project
from retrain.workload import Workload

Facts = dict[str, Any]

# The files below this folder of an output are for people. They may differ from run to run (times,
# plots) and are not part of the output's digest.
REPORT = "report"


class Input(Protocol):
    """An input of a step: the output of an earlier step, or the version of the data."""

    @property
    def step(self) -> str:
        """The name of the step that made it."""

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of its content."""


@dataclass(frozen=True)
class DataVersion:
    """Which version of the data a run uses.

    Attributes:
        digest: DVC's hash; or a digest of the content, for data that is not under DVC.
        tracked: Whether it is under DVC.
        revision: The git revision that the user named; None is the working tree.
    """

    digest: str
    tracked: bool
    revision: str | None = None

    @property
    def step(self) -> str:
        """Its name as an input of `pull`."""
        return "data"


@dataclass(frozen=True)
class TrialContext:
    """What a search tells a step that trains, when the training is one of its trials.

    Attributes:
        name: For people: `trial 3`.
        parent: The search's run in MLflow, below which the training's own is shown.
        bounds: The training is pruned if its best metric so far is worse than this, by the number
            of the evaluation (from 1). Larger is better: it is the opposite of a loss.
    """

    name: str
    parent: str
    bounds: Mapping[int, float]


@dataclass(frozen=True)
class Workspace:
    """The folders and names that a step gets beside its inputs.

    Attributes:
        folder: Where the step writes its output; empty when it starts.
        scratch: A folder that is kept when the run is killed, and used again for the same key as
            long as the files of the inputs are the same.
        key: The step's key.
        workload: The workload's name.
        project: The clone that the step runs in.
        anew: Whether what earlier tries have recorded elsewhere does not count: the step is
            repeated on purpose, or they read files that have changed since.
        trial: The trial of a search that the step is run for; it does not change the output, but
            whether there is one.
        configuration: The whole workload, for a record of how a version came about. What a step
            computes depends on its arguments only.
    """

    folder: Path
    scratch: Path
    key: str
    workload: str
    project: Project
    anew: bool = False
    trial: TrialContext | None = None
    configuration: Workload | None = None

    @property
    def report(self) -> Path:
        """The folder of the output that is for people; created here."""
        folder = self.folder / REPORT
        folder.mkdir(exist_ok=True)
        return folder


@dataclass(frozen=True)
class Chosen:
    """The modules and libraries that a step uses because of its configuration or its inputs.

    Attributes:
        modules: Imported by the step with `importlib`, so that the modules for other
            configurations do not count.
        libraries: The distributions whose version then changes the output.
    """

    modules: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()


@dataclass(frozen=True)
class Forecast:
    """What a step would take if it ran.

    Attributes:
        says: A sentence about it for a person; None if it is not worth mentioning.
        excess: A sentence about what it needs more of than this machine has; None if it fits.
    """

    says: str | None = None
    excess: str | None = None


@dataclass(frozen=True)
class Step:
    """One step of the flow.

    Attributes:
        name: The name of the step, a verb.
        function: Called with the sections named in `reads` (once each, in that order), the
            inputs, and a `Workspace`; returns JSON-able facts that do not differ between runs.
        reads: Dotted names of the sections or parameters of the workload that the output depends
            on. A parameter of a section that is not named must not change the output.
        inputs: The names of the earlier steps whose outputs are the inputs; a function of the
            workload where they depend on it.
        looked_up: Those of them in which the step only looks up what another input names by its
            SHA-256, and checks it: their digests are not part of the key.
        libraries: The distributions whose version changes the output.
        chosen: Called with the workload and the inputs; returns what is used because of them.
        reports_with: Modules that affect only what the step shows, logs and writes below
            `report/`: a change in them does not change the output.
        cached: Whether the same key gives the same output. False for a step that reads the
            registry.
        dry_function: For a step that is not cached. It has the parameters of the function, changes
            nothing and returns what the function would return, or None if the function would
            change something.
        check: Finds faults that would make the step fail, before a run's first step: a sentence
            for each. It takes milliseconds and imports nothing heavy.
        check_slowly: The same, for faults that take seconds to find. It is called only when the
            step is about to run, or may be.
        forecast: What the step would take, also known before a run's first step.
        hours: The time limit of the step, if the workload's `limits` have none for it.
        needed: Whether a flow calls the step for a workload.
    """

    name: str
    function: Callable[..., Facts]
    reads: tuple[str, ...]
    inputs: tuple[str, ...] | Callable[[Workload], tuple[str, ...]]
    looked_up: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    chosen: Callable[..., Chosen] | None = None
    reports_with: tuple[str, ...] = ()
    cached: bool = True
    dry_function: Callable[..., Facts | None] | None = None
    check: Callable[[Workload, Project], Iterable[str]] = lambda workload, project: ()
    check_slowly: Callable[[Workload, Project], Iterable[str]] = lambda workload, project: ()
    forecast: Callable[[Workload, Project], Forecast] = lambda workload, project: Forecast()
    hours: float = 24.0
    needed: Callable[[Workload], bool] = lambda workload: True

    def inputs_for(self, workload: Workload) -> tuple[str, ...]:
        """The names of the earlier steps whose outputs are the inputs, for a workload."""
        return self.inputs(workload) if callable(self.inputs) else self.inputs

    def run(self, workload: Workload, inputs: Sequence[Input], workspace: Workspace) -> Facts:
        """Calls the function.

        Raises:
            ValueError: From the function: the user has to correct something.
        """
        return self.function(*self._sections(workload), *inputs, workspace)

    def dry_run(
        self, workload: Workload, inputs: Sequence[Input], workspace: Workspace
    ) -> Facts | None:
        """What the function would return; None if it would change something.

        Raises:
            ValueError: From the function.
        """
        assert self.dry_function, self.name
        return self.dry_function(*self._sections(workload), *inputs, workspace)

    def limit(self, workload: Workload) -> float:
        """How long the step may take, in hours."""
        return workload.limits.get(self.name, self.hours)

    def _sections(self, workload: Workload) -> list[Any]:
        sections = dict.fromkeys(name.split(".")[0] for name in self.reads)
        return [getattr(workload, section) for section in sections]


@dataclass(frozen=True)
class Plan:
    """Everything that the output of a step depends on, known before it runs.

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
        """SHA-256 (hex) over all attributes; no time, path, host or environment."""
        return digest_of(asdict(self))

    @property
    def definition(self) -> str:
        """SHA-256 (hex) over all attributes except the inputs."""
        return digest_of(asdict(self) | {"inputs": {}})


def plan(step: Step, workload: Workload, inputs: Sequence[Input]) -> Plan:
    """Makes the plan of a step: what its output depends on."""
    wanted = step.inputs_for(workload)
    assert tuple(each.step for each in inputs) == wanted, (step.name, inputs)
    chosen = step.chosen(workload, *inputs) if step.chosen else Chosen()
    modules = (step.function.__module__, *chosen.modules)
    return Plan(
        step=step.name,
        config={
            name: value
            for name, value in workload.flat().items()
            if any(name == read or name.startswith(f"{read}.") for read in step.reads)
        },
        inputs={each.step: each.digest for each in inputs if each.step not in step.looked_up},
        code=code_digests(modules, without=step.reports_with),
        libraries={name: version(name) for name in sorted({*step.libraries, *chosen.libraries})},
    )


def difference(before: Plan, now: Plan) -> str:
    """Describes what changed between two plans of a step: `train.lr 0.001 -> 0.0005`."""
    changes = [
        f"{name} {_show(before.config.get(name))} -> {_show(now.config.get(name))}"
        for name in sorted({*before.config, *now.config})
        if before.config.get(name) != now.config.get(name)
    ]
    changes += [
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
        changes.append(f"code of {' and '.join(code)}")
    changes += [
        f"{name} {_show(before.libraries.get(name))} -> {_show(now.libraries.get(name))}"
        for name in sorted({*before.libraries, *now.libraries})
        if before.libraries.get(name) != now.libraries.get(name)
    ]
    return ", ".join(changes)


def digest_of(value: Any) -> str:
    """SHA-256 (hex) of a JSON-able value; the order of its keys does not matter."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _show(value: Any) -> str:
    return "unset" if value is None else str(value)
