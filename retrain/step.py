"""Defines what a step of a flow is.

A step is one function under the decorator `step`. It takes the sections of the workload that it
reads, the outputs of earlier steps and a workspace, writes its files into the workspace's folder,
and returns a few facts. It knows nothing of Prefect, DVC or the cache.
"""

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from retrain.disk import digest_of as digest_of
from retrain.project import Project
from retrain.workload import Workload

Facts = dict[str, Any]

# The files below this folder of an output are for people. They may differ from run to run (times,
# pages) and are not part of the output's digest.
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
    def step(self) -> str:
        """The name under which the version of the data is an input of `pull`."""
        return "data"


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
followed: ContextVar[Callable[..., Any]] = ContextVar("followed")


@dataclass(eq=False)
class Step:
    """One step of a flow, as the decorator `step` makes it of a function.

    Attributes:
        name: The name of the step, a verb.
        function: Called with the sections named in `reads` (once each, in that order), the
            inputs, and a `Workspace`; returns JSON-able facts that do not differ between runs.
        inputs: The names of the earlier steps whose outputs are the inputs; a function of the
            workload where they depend on it.
        reads: Dotted names of the sections or parameters of the workload that the output depends
            on. A parameter of a section that is not named must not change the output.
        looked_up: Those of the inputs in which the step only looks up, and checks, what another
            one names by its SHA-256: their digests are not part of the key.
        digest_of_input: Called with an input; returns what stands for it in the key: its digest,
            unless the step reads only a part of it.
        libraries: The distributions whose version changes the output.
        cached: Whether the same key gives the same output; not where it reads the registry.
        hours: The time limit of each try, if the workload's `limits` have none for the step.
        needed: Whether a flow calls the step for a workload.
        chosen: Called with the workload and the inputs; returns what is used because of them.
        check: Finds faults in milliseconds that would make the step fail: a sentence for each.
        notices: Finds what a person should know before a run's first step, in seconds: a sentence
            for each. It raises a ValueError for what would make the step fail.
        look: For a step that is not cached. It has the parameters of the function, changes nothing
            and returns the same, or None if the function would change something.
    """

    name: str
    function: Callable[..., Facts]
    inputs: tuple[str, ...] | Callable[[Workload], tuple[str, ...]]
    reads: tuple[str, ...] = ()
    looked_up: tuple[str, ...] = ()
    digest_of_input: Callable[[Any], str] = lambda source: source.digest
    libraries: tuple[str, ...] = ()
    cached: bool = True
    hours: float = 24.0
    needed: Callable[[Workload], bool] = lambda workload: True
    chosen: Callable[..., Chosen] = lambda workload, *inputs: Chosen()
    check: Callable[[Workload, Project], Iterable[str]] = lambda workload, project: ()
    notices: Callable[[Workload, Project, DataVersion], Iterable[str]] = lambda *_: ()
    look: Callable[..., Facts | None] = lambda *_: None

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Has the run that follows the flow make or find the output; see `Run.__call__`.

        Outside a flow it calls the function itself.
        """
        run = followed.get(None)
        if run is None:
            return self.function(*inputs, **options)
        return run(self, *inputs, **options)

    def inputs_for(self, workload: Workload) -> tuple[str, ...]:
        """The names of the earlier steps whose outputs are the inputs, for a workload."""
        return self.inputs(workload) if callable(self.inputs) else self.inputs

    def sections(self, workload: Workload) -> list[Any]:
        """The sections of a workload that the function takes."""
        names = dict.fromkeys(name.split(".")[0] for name in self.reads)
        return [getattr(workload, name) for name in names]


def step(
    *,
    inputs: tuple[str, ...] | Callable[[Workload], tuple[str, ...]],
    **options: Any,
) -> Callable[[Callable[..., Facts]], Step]:
    """Makes a step of a function, with its name: `@step(inputs=…, reads=…, libraries=…, hours=…)`.

    Args:
        inputs: The attribute of `Step`.
        options: Other attributes of it.
    """
    return lambda function: Step(function.__name__, function, inputs, **options)
