"""The decorator of flows: `@flow` above a function in `flows/` makes a Prefect flow of it.

The body of a flow under `@flow(steps=…, tells=…, version=…)` calls steps. In a run, such a call is
a Prefect task with the store as its cache; in a dry run, it looks into the store.

Prefect is imported when a flow is run as a flow run, because that takes a second. Prefect itself
loads a file by its path (`flows/train.py:train` in `prefect.yaml`), which makes a module outside of
any package; there, the name stands for Prefect's own flow.
"""

from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from itertools import dropwhile
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from retrain import preflight
from retrain.messages import local_time
from retrain.params import load_workload
from retrain.project import Project, find_project
from retrain.report import Report
from retrain.runs import console, flow_runs, lost, records
from retrain.runs.notify import notify_of_end
from retrain.runs.records import Document
from retrain.runs.run import Run
from retrain.runs.state import DryRun, RunState, StepHasToRunError
from retrain.servers import reachable
from retrain.step import DataVersion, Step, following
from retrain.store import RunContext, Store
from retrain.workload import Data, Workload

if TYPE_CHECKING:
    from prefect import Flow as PrefectFlow

P = ParamSpec("P")
R = TypeVar("R")

# Finds the version of the data for a section of the workload, a clone, and a git revision or None.
FindVersion = Callable[[Data, Project, str | None], DataVersion]
# Finds faults that are not of one step, before a run: a sentence for each.
Check = Callable[[Workload, Project], Iterable[str]]


class Flow(Generic[P, R]):
    """A flow of the project; one whose body calls steps is a `StepsFlow`.

    Attributes:
        fn: The function under the decorator; to call it runs it without Prefect.
        name: The name of the flow, and of its command.
        description: What the flow does: the first line of the function's docstring.
    """

    def __init__(self, fn: Callable[P, R]) -> None:
        assert fn.__doc__, f"{fn.__name__} has no docstring"
        self.fn = fn
        self.body: Callable[P, R] = fn  # what Prefect calls
        self.name = fn.__name__
        self.description = fn.__doc__.strip().splitlines()[0]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the flow inside a Prefect flow run."""
        return self.as_prefect_flow()(*args, **kwargs)

    def as_prefect_flow(self) -> "PrefectFlow[P, R]":
        """The flow that Prefect runs; people are notified of how a run ends."""
        from prefect import Flow as PrefectFlow

        return PrefectFlow(
            flow_runs.ending_in_a_state(self.body),
            self.name,
            description=self.description,
            flow_run_name=partial(flow_runs.name_of, self.name),
            persist_result=False,
            on_completion=[notify_of_end],
            on_failure=[notify_of_end],
            on_crashed=[notify_of_end],
        )


class StepsFlow(Flow[..., Any]):
    """A flow whose function calls steps.

    Attributes:
        steps: All that the function may call, in order; a workload may not need some of them.
        tells: The report that the flow makes of a run.
    """

    def __init__(
        self,
        fn: Callable[[DataVersion], None],
        steps: tuple[Step, ...],
        tells: Report,
        version: FindVersion,
        check: Check,
        beside: "StepsFlow | None",
    ) -> None:
        """Describes the flow; see `flow`."""
        super().__init__(fn)
        self.body, self.steps, self.tells = self.run, steps, tells
        self._version, self._check, self._beside = version, check, beside

    def check(self, workload: Workload, project: Project) -> None:
        """Raises a UsageError with a line for each fault that would make a run fail."""
        step_names = [step.name for step in self.known_steps()]
        preflight.check(self.steps_for(workload), workload, project, step_names)
        preflight.refuse(workload, self._check(workload, project))

    def known_steps(self) -> tuple[Step, ...]:
        """The steps that a workload may limit: those of this flow and of the flow beside it."""
        return self.steps if self._beside is None else (*self.steps, *self._beside.steps)

    def steps_for(self, workload: Workload) -> list[Step]:
        """The steps that a workload needs, in order."""
        return [step for step in self.steps if step.needed(workload)]

    def steps_from(self, start: str | None, workload: Workload) -> list[Step]:
        """The steps that a workload needs from `start` on; none if it is None."""
        return [*dropwhile(lambda step: step.name != start, self.steps_for(workload))]

    def imports_from(self, start: str | None, workload: Workload) -> list[Callable[[], object]]:
        """What a run imports for its steps from `start` on, in calls of about a second."""
        modules = [name for step in self.steps_from(start, workload) for name in step.imports]
        return [partial(import_module, name) for name in dict.fromkeys(modules)]

    def state(
        self,
        context: RunContext,
        workload: Workload,
        revision: str | None = None,
        promote: bool | None = None,
        dry_run: DryRun | None = None,
    ) -> RunState:
        """The state of a run that begins; the version of its data is that of a dry run, if any."""
        version = dry_run and dry_run.state.version
        version = version or self._version(workload.data, context.project, revision)
        store = Store.of(context.project)
        return RunState(self.name, workload, version, store, context, promote)

    def dry_run(
        self,
        project: Project,
        workload: Workload,
        revision: str | None = None,
        promote: bool | None = None,
    ) -> DryRun:
        """Follows the steps up to the first that has to run. Nothing is changed.

        Args:
            project: The clone.
            workload: The workload, with the parameters of the run.
            revision: The git revision of the data, which `run` takes as `data_rev`.
            promote: Whether a model may become champion, as `run` takes it.

        Raises:
            ValueError: The user has to correct something, as in a run.
        """
        last = records.last_run(project, workload.name, self.name)
        if last and "error" in last:
            last = None
        context = RunContext(last["run"] if last else "", project)
        dry_run = DryRun(self.state(context, workload, revision, promote), last)
        try:
            with following(dry_run):
                self.fn(dry_run.state.version)
        except StepHasToRunError as error:
            dry_run.has_to_run, dry_run.reason = error.step, error.reason
        return dry_run

    def unchanged(self, dry_run: DryRun) -> Document | None:
        """The document of a run that changes nothing, with the last run's id and time.

        None if the run would change something, or the last one failed or was killed.
        """
        last = dry_run.last
        if last is None or not dry_run.agrees_with(last):
            return None
        document = self.tells.document(dry_run.state) | {"time": last["time"], "unchanged": True}
        since = f"Nothing changed since run {last['run'][:8]} of {local_time(last['time'])}"
        outcome = f"{since}; {document['outcome']}"
        return document | {"state": "Skipped", "outcome": outcome}

    def preview(self, dry_run: DryRun, *, insist: bool, refresh: bool) -> Document:
        """Describes what a run with these options would do; `insist` is `run` of `run`."""
        step_names = [step.name for step in self.steps_for(dry_run.workload)]
        steps = dry_run.preview(step_names, refresh=refresh)
        unchanged = None if insist or refresh else self.unchanged(dry_run)
        outcome = "Every output is in the store; no step would run."
        if first_step := next((step for step in steps if step["would"] == "run"), None):
            outcome = f"{first_step['step']} would be the first step to run: {first_step['why']}."
        return {
            "flow": self.name,
            "workload": dry_run.workload.name,
            "dry_run": True,
            "unchanged": unchanged is not None,
            "data": {"version": dry_run.state.version.digest},
            "steps": steps,
            "outcome": unchanged["outcome"] if unchanged else outcome,
        }

    def run(
        self,
        workload: str,
        overrides: dict[str, Any] | None = None,
        data_rev: str | None = None,
        refresh: bool = False,
        run: bool = False,
        promote: bool | None = None,
        as_name: str | None = None,
        strict: bool = False,
    ) -> Document:
        """Runs the steps that have to run, inside a Prefect flow run; returns its document.

        Its `state` is `Skipped` if nothing has changed since the last run.

        Args:
            workload: An entry of `params.yaml`.
            overrides: Values by dotted name: `{"train.lr": 0.0005}`; an empty text is the default.
            data_rev: A git revision whose version of the data is used; the working tree's if None.
            refresh: Run every step, even those whose output is in the store.
            run: Follow the steps even if nothing has changed.
            promote: Whether a model that passes the gate becomes champion, or is only compared and
                registered. If None, it becomes champion unless it was rolled back.
            as_name: Another name for the run's workload, with a champion of its own.
            strict: Take what is warned of before a step as an error.

        Raises:
            ValueError: The user has to correct something, such as data that fails its checks.
        """
        from prefect import runtime

        project = find_project()
        config = load_workload(project.params, workload, overrides, as_name=as_name)
        context = RunContext(str(runtime.flow_run.id), project)
        with Store(project.store).runs.holding(context.run):
            with console.progress("starting"):
                self.check(config, project)
                lost.end_lost_runs(project)
                dry_run = None if refresh else self.dry_run(project, config, data_rev, promote)
                state = self.state(context, config, data_rev, promote, dry_run)
                flow_runs.name_by_data(self.name, config.name, state.version.digest)
            if dry_run and not run and (unchanged := self.unchanged(dry_run)):
                return unchanged
            return self._follow(Run(state, refresh, strict), dry_run)

    def _follow(self, run: Run, dry_run: DryRun | None) -> Document:
        """Runs the steps; keeps, shows and returns the run's document."""
        # Steps that are cached need no check, which would import libraries.
        start = dry_run.has_to_run if dry_run else self.steps[0].name
        workload, state, due = run.workload, run.state, self.steps_from(start, run.workload)
        preflight.check_slowly(due, workload, run.project)
        preflight.check_surroundings(run.project)
        if due:
            run.warn(*preflight.warnings(self.steps_for(workload), state))
        follow = partial(run.follow, self.fn, state.version)
        with reachable.patient():
            return records.record(state, follow, self.tells.document, self.tells.write_page)


@overload
def flow(fn: Callable[P, R]) -> Flow[P, R]: ...


@overload
def flow(
    *,
    steps: tuple[Step, ...],
    tells: Report,
    version: FindVersion,
    check: Check = ...,
    beside: StepsFlow | None = ...,
) -> Callable[[Callable[[DataVersion], None]], StepsFlow]: ...


def flow(
    fn: Callable[..., Any] | None = None,
    *,
    steps: tuple[Step, ...] = (),
    tells: Report | None = None,
    version: FindVersion | None = None,
    check: Check = lambda workload, project: (),
    beside: StepsFlow | None = None,
) -> Any:
    """Makes a flow of a function: `@flow`; or `@flow(steps=…, tells=…, …)`, if it calls steps.

    With steps, the only parameter of the function is the version of the data.

    Args:
        fn: The function.
        steps: The steps that the function may call, in order.
        tells: The report that the flow makes of a run.
        version: A function that finds the version of the data.
        check: A function that finds faults before a run, which no single step would find.
        beside: A flow for the same workloads, which may have limits for its steps too.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        decorated: Flow[..., Any] = Flow(function)
        if tells and version:
            decorated = StepsFlow(function, steps, tells, version, check, beside)
        is_in_a_package = "." in function.__module__
        return decorated if is_in_a_package else decorated.as_prefect_flow()

    return decorate if fn is None else decorate(fn)
