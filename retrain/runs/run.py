"""Runs a flow: calls its steps as Prefect tasks and records the outcome of each."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

from rich.markup import escape

from retrain import preflight
from retrain.errors import DamagedArtifactError
from retrain.execute import get_or_run, run_uncached
from retrain.outputs import Plan, plan
from retrain.runs import console
from retrain.runs.state import ASKED, REFRESHED, Outcome, StateRunner
from retrain.step import Input, Step, TrialContext, following
from retrain.store import Artifact, RunContext
from retrain.verify import Verifier, retry_damaged
from retrain.workload import Workload

Name = tuple[str, str]  # of an artifact: the step and the key


@dataclass
class Run(StateRunner):
    """Runs the steps of a flow, in the flow's order.

    Attributes:
        refresh: Take nothing from the store.
        strict: Take what people should know before the work as an error.
    """

    refresh: bool = False
    strict: bool = False
    _damaged: dict[Name, str] = field(default_factory=dict)
    _ran: dict[Name, Outcome] = field(default_factory=dict)
    _made_or_found: set[Name] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.verifier = Verifier(self.state.store)

    def follow(self, body: Callable[..., Any], *arguments: Any) -> None:
        """Calls the function of a flow, whose steps are run.

        A damaged artifact is removed from the store, and the function is called again: the other
        artifacts come from the store.

        Raises:
            DamagedArtifactError: An artifact was made again and is damaged again.
            ValueError: From a step.
        """
        with following(self):
            retry_damaged(lambda: body(*arguments), self._start_again)

    def __call__(self, step: Step, *inputs: Input, workload: Workload | None = None) -> Artifact:
        """Runs a step, or takes its output from the store.

        Args:
            step: The step to run.
            *inputs: The outputs of the steps in its `inputs`, in that order.
            workload: A workload with other parameters than the run's; None for the run's own.

        Raises:
            StepTimeoutError: The step did not end within its limit.
            ValueError: From the step.
        """
        parameters = workload or self.workload
        planned = plan(step, parameters, inputs)
        if step.cached and (earlier := self.state.added(planned)):
            return earlier
        reason = self._reason_to_run(step, planned)
        began = monotonic()
        with console.progress(step.name):
            artifact, cached = self._result(step, planned, parameters, inputs, self.state.context)
        ran = None if cached else reason or ASKED
        outcome = Outcome.of(step.name, planned, artifact, ran=ran, seconds=monotonic() - began)
        if cached:  # it may have run before damage was found
            outcome = self._ran.get((step.name, planned.key), outcome)
        self.state.add(outcome, artifact)
        console.ended(outcome.step, outcome.cached, outcome.why, outcome.seconds)
        if step.cached and workload is None:
            self.state.remember(planned)
        return artifact

    def warn(self, *sentences: str) -> None:
        """Tells people what they should know before the work that follows, once.

        Raises:
            UsageError: The run is strict, and there is anything to tell.
        """
        if self.strict:
            preflight.refuse_warnings(self.workload, sentences)
        for sentence in sentences:
            if sentence not in self.state.warnings:
                self.state.warnings.append(sentence)
                console.say(escape(sentence))

    def would_run(self, step: str, key: str) -> bool:
        """Whether a cached step would run, because the store lacks its output."""
        return self.refresh or self.state.store.damage(step, key) is not None

    def run_trial(
        self, step: Step, workload: Workload, trial: TrialContext, *inputs: Input
    ) -> tuple[Artifact, bool]:
        """Runs a step with other parameters, as the trial of a search.

        It does not count as a step of the run.

        Returns:
            The output, and whether the store had it.

        Raises:
            PrunedError: The trial was ended early.
            StepTimeoutError: The step did not end within its limit.
            ValueError: From the step.
        """
        context = replace(self.state.context, trial=trial)
        with console.progress(trial.name):
            return self._result(step, plan(step, workload, inputs), workload, inputs, context)

    def _start_again(self, error: DamagedArtifactError) -> None:
        console.say(str(error))
        self._damaged[error.step, error.key] = error.damage
        self._ran |= {(outcome.step, outcome.key): outcome for outcome in self.state.outcomes}
        self.state.outcomes.clear()
        self.state.artifacts.clear()

    def _result(
        self,
        step: Step,
        planned: Plan,
        workload: Workload,
        inputs: tuple[Input, ...],
        context: RunContext,
    ) -> tuple[Artifact, bool]:
        """The step's output, and whether the store had it."""
        store, check, name = self.state.store, self.verifier.check, (step.name, planned.key)
        refresh = self.refresh and name not in self._made_or_found

        def work() -> tuple[Artifact, bool]:
            call = (step, planned, workload, inputs, context, check)
            if step.cached:
                return get_or_run(store, *call, refresh=refresh)
            return run_uncached(*call), False

        with ExitStack() as locks:
            if step.cached:
                # The lock is taken before the task begins, because the time of the task is limited.
                locks.enter_context(store.making(*name))
                if refresh:
                    store.forget(*name)
            artifact, cached = self._run(step, work, workload, context)
        self._made_or_found.add(name)
        if step.cached and not cached:
            self.verifier.trust(artifact)
        return artifact, cached

    def _run(
        self,
        step: Step,
        work: Callable[[], tuple[Artifact, bool]],
        workload: Workload,
        context: RunContext,
    ) -> tuple[Artifact, bool]:
        """Calls what makes or finds the output of a step, as a Prefect task."""
        from retrain.caching import run_as_task

        return run_as_task(step, work, workload, context)

    def _reason_to_run(self, step: Step, planned: Plan) -> str | None:
        """Why a step has to run; None when the store has its output, or the step is not cached."""
        if not step.cached:
            return None
        if self.refresh:
            return REFRESHED
        reason = self.state.reason_to_run(planned)
        return reason and self._damaged.get((step.name, planned.key), reason)
