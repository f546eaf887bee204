"""Describes a flow without Prefect: its steps in order, and the document of a run.

Importing Prefect takes a second, and a run that finds nothing to do should take less. So a module
in `flows/` describes its flow as a `Pipeline`, which a dry run follows without Prefect, and
`as_prefect_flow` makes the Prefect flow.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from retrain import preflight, roots
from retrain.errors import UsageError
from retrain.params import load_workload
from retrain.project import Project, find_project
from retrain.runs import console, lost, records
from retrain.runs.dry_run import DryRun, StepHasToRunError
from retrain.runs.notify import notify_of_end, run_name
from retrain.runs.records import Document
from retrain.runs.run import Run
from retrain.runs.state import RunState
from retrain.step import DataVersion, Step
from retrain.store import RunContext, Store
from retrain.workload import Data, Workload

if TYPE_CHECKING:
    from prefect import Flow
    from prefect.client.schemas.objects import State


@dataclass(frozen=True)
class Pipeline:
    """A flow: its steps, and how its runs are described and shown.

    Attributes:
        name: The name of the flow, and of its command: `train`.
        help: What the flow does, in one sentence.
        steps: All its steps, in order; a workload may not need some of them.
        order: Takes a version of the data through the steps, top to bottom. Its first argument
            runs a step, or takes the step's output from the store.
        data_version: Finds the version of the data for a run; its last argument is a git revision,
            or None for the working tree.
        data_warning: A warning about the data for a person who starts a run, from the same
            arguments; None if there is none.
        document: Describes a run in JSON-able values. The run may have failed at any step; if it
            has not, `outcome` is one sentence about its end, and people are notified of that if
            `rejected` or `waiting` is true.
        standing: The current state if nothing has changed since a run, from the run's document.
        show: Shows the document of a run on the console.
        publish: Shows the document of a run in Prefect.
        imports: The modules that take long to import, by the step that needs them, in order: a run
            imports them while its Prefect server starts.
        preparations: Other work that takes long the first time, by the step that needs it.
        ahead: What is started when a step has to run, because a later one needs it, by the name of
            the earlier step.
        promotes: Whether its runs may change what is served.
        resume: Called at the start of a run, with the project, the name of the workload and the id
            of the run. If the run was suspended (`retrain.runs.suspension`) and a person has
            resumed it, it may give the state that the run ends in; the steps are followed if None.
        wait: Called at the end of a run, with the project and the run's document; it may suspend
            the run.
        faults: Finds faults of parameters that only the flow itself uses, before a run: a sentence
            for each. It is called if the steps find none, and told whether they may need more than
            this machine has.
        others: The names of steps of other flows; a workload may have time limits of these too.
        options: Further options of its command: the parameter that each sets, by its name.
    """

    name: str
    help: str
    steps: Sequence[Step]
    order: Callable[[Run | DryRun, DataVersion], None]
    data_version: Callable[[Data, Project, str | None], DataVersion]
    data_warning: Callable[[Data, Project, str | None], str | None]
    document: Callable[[RunState], Document]
    standing: Callable[[Document], str]
    show: Callable[[Document], None]
    publish: Callable[[Document], None]
    imports: Mapping[str, Sequence[str]]
    preparations: Mapping[str, Callable[[Project], object]] = field(default_factory=dict)
    ahead: Mapping[str, Callable[[], object]] = field(default_factory=dict)
    promotes: bool = False
    resume: Callable[[Project, str, str], "State[Document] | None"] = lambda *_: None
    wait: Callable[[Project, Document], None] = lambda *_: None
    faults: Callable[[Workload, Project, bool], Iterable[str]] = lambda *_: ()
    others: Sequence[str] = ()
    options: Mapping[str, str] = field(default_factory=dict)

    def check(self, workload: Workload, project: Project, force: bool = False) -> None:
        """Finds faults that would make a run fail, before anything is started.

        Args:
            workload: The workload of the run.
            project: The clone.
            force: As of `check_slowly`.

        Raises:
            UsageError: With a line for each fault.
        """
        others = [*self.others, *(step.name for step in self.steps)]
        preflight.check(self.steps_for(workload), workload, project, others)
        if faults := [*self.faults(workload, project, force)]:
            raise UsageError(f"workload {workload.name}: " + "\n".join(faults))

    def check_slowly(
        self, first: str | None, workload: Workload, project: Project, force: bool = False
    ) -> None:
        """Finds faults of the steps from one on that take seconds to find.

        Args:
            first: The name of that step.
            workload: The workload of the run.
            project: The clone.
            force: Allow steps that need more than this machine has.

        Raises:
            UsageError: With a line for each fault.
        """
        preflight.check_slowly(self._from(first, workload), workload, project, force)

    def forecast(self, first: str | None, workload: Workload, project: Project) -> list[str]:
        """What a run would take from a step on, in a sentence for each that takes much."""
        said = [step.forecast(workload, project).says for step in self._from(first, workload)]
        return [each for each in said if each]

    def steps_for(self, workload: Workload) -> Sequence[Step]:
        """The steps that a workload needs, in order."""
        return [step for step in self.steps if step.needed(workload)]

    def _from(self, first: str | None, workload: Workload) -> Sequence[Step]:
        steps = self.steps_for(workload)
        names = [step.name for step in steps]
        return steps[names.index(first) :] if first in names else ()

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
            revision: The git revision whose version of the data is used; the working tree's if
                None.
            promote: As for `run`.

        Raises:
            ValueError: As in a run.
        """
        last = records.last_success(project, workload.name, self.name)
        context = RunContext(last["run"] if last else "", project)
        version = self.data_version(workload.data, project, revision)
        may = promote is not False
        state = RunState(
            self.name, workload, version, Store(project.store), context, may, bool(promote)
        )
        dry_run = DryRun(state, last)
        try:
            self.order(dry_run, version)
        except StepHasToRunError as error:
            dry_run.has_to_run, dry_run.reason = error.step, error.reason
        return dry_run

    def unchanged(self, dry_run: DryRun) -> Document | None:
        """The document of a run that changes nothing; None if the run would change something.

        It has the last run's id and time. It is also None if the last run failed or was killed.
        """
        last = dry_run.last
        if last is None or not dry_run.agrees_with(last):
            return None
        document = self.document(dry_run.state) | {"time": last["time"], "unchanged": True}
        since = f"Nothing changed since run {last['run'][:8]} of {last['time']}"
        return document | {"outcome": f"{since}; {self.standing(document)}."}

    def preview(self, dry_run: DryRun, *, insist: bool, refresh: bool) -> Document:
        """Describes what a run would do, without running it.

        Args:
            dry_run: As `dry_run` gives it.
            insist: Whether the run follows the steps even if nothing has changed.
            refresh: Whether it takes nothing from the store.
        """
        names = [step.name for step in self.steps_for(dry_run.workload)]
        steps = dry_run.preview(names, refresh=refresh)
        same = None if insist or refresh else self.unchanged(dry_run)
        first = next((each for each in steps if each["would"] == "run"), None)
        if same:
            outcome = same["outcome"]
        elif refresh or dry_run.has_to_run:
            assert first
            outcome = f"{first['step']} would be the first step to run: {first['why']}."
        else:
            outcome = "Every output is in the store; no step would run."
        return {
            "flow": self.name,
            "workload": dry_run.workload.name,
            "dry_run": True,
            "unchanged": same is not None,
            "data": {"version": dry_run.state.version.digest},
            "steps": steps,
            "outcome": outcome,
        }

    def imports_from(self, step: str | None, project: Project) -> list[Callable[[], object]]:
        """The imports and preparations of a run from a step on, in calls of about a second."""
        names = list(self.imports)
        if step not in names:
            return []
        calls: list[Callable[[], object]] = []
        for name in names[names.index(step) :]:
            calls += [partial(import_module, module) for module in self.imports[name]]
            if name in self.preparations:
                calls.append(partial(self.preparations[name], project))
        return calls

    def run(
        self,
        workload: str,
        overrides: dict[str, Any] | None = None,
        data_rev: str | None = None,
        refresh: bool = False,
        run: bool = False,
        promote: bool | None = None,
        as_name: str | None = None,
        force: bool = False,
    ) -> "Document | State[Document]":
        """Runs the steps that have to run, inside a Prefect flow run.

        When nothing has changed since the last run, no step runs, and the flow run ends in the
        state `Skipped`. One that is resumed, after it was suspended, may end without them, too.

        Args:
            workload: An entry of `params.yaml`.
            overrides: Parameters that replace the file's, by dotted name: `{"train.lr": 0.0005}`;
                an empty text drops one to its default.
            data_rev: A git revision whose version of the data is used; the working tree's if None.
            refresh: Run every step, even those whose output is in the store.
            run: Follow the steps even if nothing has changed.
            promote: Whether a model that passes the gate becomes champion, or is only compared and
                registered. If None, it becomes champion unless it was rolled back. A flow that
                promotes nothing ignores it.
            as_name: Another name for the run's workload, with a champion of its own.
            force: Run steps that need more than this machine has.

        Returns:
            The run's document, as `--json` prints it.

        Raises:
            ValueError: The user has to correct something, such as data that fails its checks.
        """
        from prefect import runtime
        from prefect.states import Completed

        project = find_project()
        config = load_workload(project.params, workload, overrides, as_name=as_name)
        run_id = str(runtime.flow_run.id)
        if ended := self.resume(project, config.name, run_id):
            return ended
        self.check(config, project, force)
        lost.end_lost_runs(project)
        if warning := self.data_warning(config.data, project, data_rev):
            console.say(warning)
        first: str | None = self.steps[0].name
        if not refresh:
            dry_run = self.dry_run(project, config, data_rev, promote)
            if not run and (same := self.unchanged(dry_run)):
                roots.add(project, ())
                console.logger.info(same["outcome"])
                return Completed(name="Skipped", message=same["outcome"], data=same)
            first = dry_run.has_to_run  # what is cached needs no check, which imports libraries
        self.check_slowly(first, config, project, force)
        preflight.check_surroundings(project)
        version = self.data_version(config.data, project, data_rev)
        context = RunContext(run_id, project)
        may = promote is not False
        state = RunState(
            self.name, config, version, Store(project.store), context, may, bool(promote)
        )
        steps = Run(state, refresh, self.ahead)
        with steps.hold_artifacts(), records.recording(state, self.document):
            steps.follow(lambda run: self.order(run, version))
        document = self.document(state)
        console.logger.info(document["outcome"])  # for who watches a deployment
        self.publish(document)
        self.wait(project, document)
        return document

    def module_attribute(self, name: str) -> Any:
        """What a flow's module has as its `__getattr__`: the Prefect flow under the flow's name.

        It is made when somebody asks for it, because importing Prefect takes a second.

        Raises:
            AttributeError: The name is another one.
        """
        if name != self.name:
            raise AttributeError(name)
        return self.as_prefect_flow()

    def as_prefect_flow(self) -> "Flow[..., Document | State[Document]]":
        """The flow that Prefect runs, with the parameters of `run`."""
        from prefect import Flow

        return Flow(
            self.run,
            self.name,
            description=self.help,
            flow_run_name=self._run_name,
            persist_result=False,
            on_completion=[notify_of_end],
            on_failure=[notify_of_end],
            on_crashed=[notify_of_end],
        )

    def _run_name(self) -> str:
        """The name of the flow run that begins, for Prefect."""
        from prefect import runtime

        return f"{self.name}-{run_name(runtime.flow_run.parameters)}"


def flow_without_steps(
    run: Callable[..., Document], name: str, help_: str
) -> "Flow[..., Document]":
    """Makes the Prefect flow of a function, which notifies people when it fails.

    Args:
        run: The function; one of its parameters is `workload`, or `b` for a version.
        name: The name of the flow.
        help_: What it does, in one sentence.
    """
    from prefect import Flow, runtime

    return Flow(
        run,
        name,
        description=help_,
        flow_run_name=lambda: f"{name}-{run_name(runtime.flow_run.parameters)}",
        persist_result=False,
        on_failure=[notify_of_end],
        on_crashed=[notify_of_end],
    )
