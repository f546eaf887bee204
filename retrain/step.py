"""Defines what a flow calls: steps, whose outputs are cached, and tasks, which run each time.

A step is one function under the decorator `step`. It takes the sections of the workload that it
reads, the outputs of earlier steps and a workspace, writes its files into the workspace's folder,
and returns a few facts. It knows nothing of Prefect, DVC or the cache. A task is one function under
the decorator `task`, which takes what the flow gives it, and returns facts.
"""

from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from retrain.code import code_digests
from retrain.file_io import json_digest as json_digest
from retrain.outputs import REPORT as REPORT, Artifact, Facts as Facts, Plan
from retrain.project import Project
from retrain.workload import Workload


@dataclass(frozen=True)
class Input:
    """An input of a step that no step has made, such as the version of the data.

    Attributes:
        name: Its name in the `inputs` of the step.
        digest: Stands for it in the step's key.
        value: What the function of the step gets.
    """

    name: str
    digest: str
    value: Any


@dataclass(frozen=True)
class DataVersion:
    """Which version of the data a run uses.

    Attributes:
        digest: For data under DVC a digest of its part of DVC's listing (for all of `data/` DVC's
            own hash); for other data, a digest of the content.
        tracked: Whether it is under DVC.
        revision: The git revision that the user named; None is the working tree.
        warning: A sentence for a person who starts a run with it; None if there is none.
        pin: DVC's hash of all of `data/`, by which it can be fetched again; None without DVC.
    """

    digest: str
    tracked: bool
    revision: str | None = None
    warning: str | None = None
    pin: str | None = None

    @property
    def as_input(self) -> Input:
        """The version of the data as an input of a step."""
        return Input("data", self.digest, self)


@dataclass(frozen=True)
class Workspace:
    """The folders and names that a step gets beside its inputs.

    Attributes:
        folder: Where the step writes its output; empty when it starts.
        scratch: A folder that is kept when the run is killed, and used again for the same key.
        key: The step's key.
        workload: The workload's name.
        project: The clone that the step runs in.
        configuration: The whole workload, for records only: a step computes from its arguments.
        earlier: Returns the folder of the step's output for earlier inputs, if nothing else was
            different and it is here; else None. The new output is the same with it and without.
    """

    folder: Path
    scratch: Path
    key: str
    workload: str
    project: Project
    configuration: Workload | None = None
    earlier: Callable[[], Path | None] = lambda: None

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


# The run whose flow is being followed (`retrain.runs.run.Run`): it takes the calls of steps.
followed: ContextVar[Any] = ContextVar("followed")


@dataclass(eq=False)
class Task:
    """A function that a flow calls in a Prefect task, as the decorator `task` makes it.

    It runs each time, in a dry run (`retrain.runs.run.DryRun`), too: before it changes
    anything, it calls `Run.must_run`, which ends a dry run.

    Attributes:
        name: Its name, a verb.
        function: Returns JSON-able facts.
        reads: Dotted names of the sections or parameters of the workload that the facts depend on.
        hours: The time limit of each try, if the workload's `limits` have none for it.
        needed: Whether a flow calls it for a workload.
        check: Finds faults in milliseconds that would make it fail: a sentence for each.
        notices: Finds what a person should know before a run's first step, in seconds: a sentence
            for each. It raises a ValueError for what would make it fail.
    """

    name: str
    function: Callable[..., Facts]
    reads: tuple[str, ...] = ()
    hours: float = 24.0
    needed: Callable[[Workload], bool] = lambda workload: True
    check: Callable[[Workload, Project], Iterable[str]] = lambda workload, project: ()
    notices: Callable[[Workload, Project, DataVersion], Iterable[str]] = lambda *_: ()

    def __call__(self, *arguments: Any) -> Any:
        """Has the run that follows the flow call the function; see `Run.call`.

        Outside a flow it calls the function itself.
        """
        run = followed.get(None)
        return run.call(self, *arguments) if run else self.function(*arguments)


@dataclass(eq=False)
class Step(Task):
    """A function whose output is cached, as the decorator `step` makes it.

    The function is called with the sections named in `reads` (once each, in that order), the
    inputs, and a `Workspace`; its facts do not differ between runs. A parameter of a section that
    is not named in `reads` must not change the output.

    Attributes:
        inputs: The names of the earlier steps whose outputs are the inputs, and of `Input`s; a
            function of the workload where they depend on it.
        not_in_key: Those of the inputs in which the step only looks up, and checks, what another
            one names by its SHA-256: their digests are not part of the key.
        digest_of_input: Called with an input; returns what stands for it in the key: its digest,
            unless the step reads only a part of it.
        libraries: The distributions whose version changes the output.
        chosen: Called with the workload and the inputs; returns what is used because of them.
    """

    inputs: tuple[str, ...] | Callable[[Workload], tuple[str, ...]] = field(kw_only=True)
    not_in_key: tuple[str, ...] = ()
    digest_of_input: Callable[[Any], str] = lambda source: source.digest
    libraries: tuple[str, ...] = ()
    chosen: Callable[..., Chosen] = lambda workload, *inputs: Chosen()

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Has the run that follows the flow make or find the output; see `Run.output`.

        Outside a flow it calls the function itself.
        """
        run = followed.get(None)
        return run.output(self, *inputs, **options) if run else self.function(*inputs)

    def inputs_for(self, workload: Workload) -> tuple[str, ...]:
        """The names of the inputs, for a workload."""
        return self.inputs(workload) if callable(self.inputs) else self.inputs

    def sections(self, workload: Workload) -> list[Any]:
        """The sections of a workload that the function takes."""
        names = dict.fromkeys(name.split(".")[0] for name in self.reads)
        return [getattr(workload, name) for name in names]


def step(**options: Any) -> Callable[[Callable[..., Facts]], Step]:
    """Makes a step of a function, with its name: `@step(inputs=…, reads=…, libraries=…, hours=…)`.

    Args:
        options: Attributes of `Step`.
    """
    return lambda function: Step(function.__name__, function, **options)


def task(**options: Any) -> Callable[[Callable[..., Facts]], Task]:
    """Makes a task of a function, with its name: `@task(reads=…, hours=…)`.

    Args:
        options: Attributes of `Task`.
    """
    return lambda function: Task(function.__name__, function, **options)


def plan(step: Step, workload: Workload, inputs: Sequence[Artifact | Input]) -> Plan:
    """Makes the plan of a step: what its output depends on."""
    named = {source.name if isinstance(source, Input) else source.step: source for source in inputs}
    assert tuple(named) == step.inputs_for(workload), (step.name, inputs)
    chosen = step.chosen(workload, *inputs)
    return Plan(
        step=step.name,
        config=_config(step, workload),
        inputs={
            name: step.digest_of_input(source)
            for name, source in named.items()
            if name not in step.not_in_key
        },
        code=code_digests((step.function.__module__, *chosen.modules)),
        libraries={name: version(name) for name in sorted({*step.libraries, *chosen.libraries})},
    )


def plan_of_task(task: Task, workload: Workload) -> Plan:
    """The code and the parameters of a task, by which a run knows that nothing has changed."""
    code = code_digests((task.function.__module__,))
    return Plan(task.name, _config(task, workload), inputs={}, code=code, libraries={})


def _config(task: Task, workload: Workload) -> dict[str, Any]:
    """The parameters of a workload that a task reads."""
    return {
        name: value
        for name, value in workload.flat().items()
        if any(name == read or name.startswith(f"{read}.") for read in task.reads)
    }
