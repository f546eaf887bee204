"""Runs a flow: calls its steps as Prefect tasks and records the outcome of each."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, replace
from time import monotonic

from retrain.atomic import write_json
from retrain.errors import DamagedArtifactError, PrunedError, StepTimeoutError
from retrain.limits import timeout_message
from retrain.runs import console
from retrain.runs.dry_run import REFRESHED
from retrain.runs.state import Outcome, RunState
from retrain.step import Input, Plan, Step, TrialContext, plan
from retrain.store import Artifact, RunContext
from retrain.verify import Verifier, retry_damaged
from retrain.workload import Workload


class Run:
    """Runs the steps of a flow, in the flow's order.

    Attributes:
        state: The workload, and the outcomes so far.
        refresh: Take nothing from the store.
    """

    def __init__(
        self,
        state: RunState,
        refresh: bool = False,
        ahead: Mapping[str, Callable[[], object]] | None = None,
    ) -> None:
        """Prepares a run; no step is called yet.

        Args:
            state: The workload of the run.
            refresh: Take nothing from the store.
            ahead: What is called when a step has to run, by that step's name.
        """
        self.state = state
        self.refresh = refresh
        self._ahead = ahead or {}
        self._verifier = Verifier(state.store)
        self._damaged: dict[tuple[str, str], str] = {}
        self._ran: dict[tuple[str, str], Outcome] = {}
        self._made: set[tuple[str, str]] = set()  # or found

    @property
    def workload(self) -> Workload:
        """The workload of the run."""
        return self.state.workload

    @property
    def context(self) -> RunContext:
        """The run, and the project that it runs in."""
        return self.state.context

    def hold_artifacts(self) -> AbstractContextManager[None]:
        """Protects the artifacts that the run uses and makes from `retrain gc` while it lasts."""
        return self.state.store.holding(self.context.run)

    def follow(self, order: Callable[["Run"], None]) -> None:
        """Calls the steps in the order of a flow.

        A damaged artifact is removed from the store, and the order is followed again from its
        start: the other artifacts come from the store.

        Args:
            order: Calls this object with each step.

        Raises:
            DamagedArtifactError: An artifact was made again and is damaged again.
            ValueError: From a step.
        """
        retry_damaged(lambda: order(self), self._start_again)

    def __call__(self, step: Step, *inputs: Input, workload: Workload | None = None) -> Artifact:
        """Runs a step, or takes its output from the store.

        Args:
            step: Which step.
            *inputs: The outputs of the steps in its `inputs`, in that order.
            workload: With other parameters than the run's.

        Raises:
            StepTimeoutError: It did not end within its limit.
            ValueError: From the step.
        """
        chosen = workload or self.workload
        now = plan(step, chosen, inputs)
        if step.cached and (done := self.state.added(now)):
            return done
        reason = self._reason_to_run(step, now)
        if reason and step.name in self._ahead:
            self._ahead[step.name]()
        began = monotonic()
        with console.running(step.name):
            artifact, cached = self._result(step, now, chosen, inputs, self.context)
        ran = None if cached else reason or "asked of the registry each time"
        outcome = Outcome.of(step.name, now, artifact, ran=ran, seconds=monotonic() - began)
        if cached and (step.name, now.key) in self._ran:  # it ran before damage was found
            outcome = self._ran[step.name, now.key]
        self.state.add(outcome, artifact)
        console.ended(outcome.step, outcome.cached, outcome.why, outcome.seconds)
        if step.cached and workload is None:
            self._remember(now)
        return artifact

    def would_run(self, now: Plan) -> bool:
        """Whether a cached step would run, because the store lacks its output."""
        return self.refresh or self.state.reason_to_run(now) is not None

    def run_trial(
        self, step: Step, workload: Workload, trial: TrialContext, *inputs: Input
    ) -> tuple[Artifact, bool]:
        """Runs a step with other parameters, as the trial of a search.

        It does not count as a step of the run.

        Returns:
            The output, and whether the store had it.

        Raises:
            PrunedError: It was ended early.
            StepTimeoutError: It did not end within its limit.
            ValueError: From the step.
        """
        context = replace(self.context, trial=trial)
        with console.running(trial.name):
            return self._result(step, plan(step, workload, inputs), workload, inputs, context)

    def _start_again(self, error: DamagedArtifactError) -> None:
        console.say(str(error))
        self._damaged[error.step, error.key] = error.damage
        self._ran |= {(each.step, each.key): each for each in self.state.outcomes}
        self.state.outcomes.clear()
        self.state.artifacts.clear()

    def _result(
        self,
        step: Step,
        now: Plan,
        workload: Workload,
        inputs: tuple[Input, ...],
        context: RunContext,
    ) -> tuple[Artifact, bool]:
        """The step's output, and whether the store had it."""
        from prefect.task_engine import TaskRunTimeoutError
        from prefect.utilities.annotations import quote

        from retrain.caching import CACHED, as_task

        store, hours = self.state.store, step.limit(workload)
        refresh = self.refresh and (step.name, now.key) not in self._made
        trial = context.trial.name if context.trial else None
        task = as_task(step, store, self._verifier.check, hours, trial)
        with ExitStack() as held:
            if step.cached:
                # Before the task, whose time is limited.
                held.enter_context(store.lock(step.name, now.key, run=context.run))
                if refresh:
                    store.forget(step.name, now.key)
            try:
                # Quoted, so that Prefect does not search the arguments for futures.
                ended = task(
                    plan=quote(now),
                    workload=quote(workload),
                    inputs=quote(inputs),
                    context=quote(context),
                    refresh=refresh,
                )
            except TaskRunTimeoutError:
                raise StepTimeoutError(timeout_message(step.name, hours)) from None
        result = ended.result()
        if isinstance(result, PrunedError):
            raise result
        self._made.add((step.name, now.key))
        if step.cached and ended.name != CACHED:
            self._verifier.trust(result)
        return result, ended.name == CACHED

    def _reason_to_run(self, step: Step, now: Plan) -> str | None:
        """Why a step has to run; None when the store has its output, or the step is not cached."""
        if not step.cached:
            return None
        if self.refresh:
            return REFRESHED
        reason = self.state.reason_to_run(now)
        return reason and self._damaged.get((step.name, now.key), reason)

    def _remember(self, now: Plan) -> None:
        memory = self.state.last_plan(now.step)
        memory.parent.mkdir(parents=True, exist_ok=True)
        write_json(memory, asdict(now))
