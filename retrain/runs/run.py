"""One run of a flow: calls the steps as Prefect tasks and keeps what became of each."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from retrain.errors import StepTimeoutError
from retrain.limits import overrun
from retrain.runs import console
from retrain.runs.state import Outcome, RunState
from retrain.step import Input, Plan, Step, difference, plan
from retrain.store import Artifact, RunContext, write_json
from retrain.workload import Workload


@dataclass(frozen=True)
class Run:
    """Calls steps, in the order that the flow gives.

    Attributes:
        state: What is run, and what became of it so far.
        refresh: Take nothing from the store.
    """

    state: RunState
    refresh: bool = False

    @property
    def workload(self) -> Workload:
        """What is run."""
        return self.state.workload

    @property
    def context(self) -> RunContext:
        """The run, and the project that it runs in."""
        return self.state.context

    def __call__(
        self, step: Step, *inputs: Input, workload: Workload | None = None, of: str = ""
    ) -> Artifact:
        """Runs a step, or takes its output from the store.

        Args:
            step: What to run.
            *inputs: The outputs that it names as its inputs, in that order.
            workload: Read instead of the run's own: for the champion, which has its own settings.
            of: Whose output it is, if not the challenger's; part of its name in the summary.

        Raises:
            ValueError: As the step does.
            StepTimeoutError: It did not end within its limit.
        """
        workload = workload or self.workload
        name = f"{step.name} {of}".strip()
        now = plan(step, workload, inputs)
        reason = self._reason_to_run(step, name, now)
        if reason and not self.refresh:  # damaged: Prefect's own record must not hit
            self.state.store.discard(step.name, now.key)
        began = monotonic()
        with console.running(name):
            made = self._result(step, now, workload, inputs)
        cached = step.cached and made.provenance["run"] != self.context.run
        ran = None if cached else reason or "asked of the registry each time"
        outcome = Outcome.of(name, now, made, ran=ran, seconds=monotonic() - began)
        self.state.add(outcome, made)
        console.ended(outcome.step, outcome.cached, outcome.why, outcome.seconds)
        if step.cached:
            self._remember(name, now)
        return made

    def _result(
        self, step: Step, now: Plan, workload: Workload, inputs: tuple[Input, ...]
    ) -> Artifact:
        from prefect.task_engine import TaskRunTimeoutError
        from prefect.utilities.annotations import quote

        from retrain.caching import as_task

        # Quoted, so that Prefect does not search all of it for futures.
        hours = step.limit(workload)
        task = as_task(step, self.state.store, hours).with_options(refresh_cache=self.refresh)
        try:
            result: dict[str, Any] = task(  # type: ignore[assignment]  # a flow that is not async
                plan=quote(now),
                workload=quote(workload),
                inputs=quote(inputs),
                context=quote(self.context),
                refresh=self.refresh,
            )
        except TaskRunTimeoutError:
            raise StepTimeoutError(overrun(step.name, hours)) from None
        if step.cached:
            made = self.state.store.find(step.name, now.key)
            assert made is not None
            return made
        return Artifact(folder=Path(), **result)

    def _reason_to_run(self, step: Step, name: str, now: Plan) -> str | None:
        """Why a step has to run; None when the store has its output, or it is never kept."""
        if not step.cached:
            return None
        if self.refresh:
            return "nothing taken from the cache (refresh)"
        damage = self.state.store.damage(step.name, now.key)
        if damage is None:
            return None
        last = self._last(name)
        if last is None:
            return "first run"
        return difference(last, now) or damage

    def _last(self, name: str) -> Plan | None:
        try:
            return Plan(**json.loads(self._memory(name).read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def _remember(self, name: str, now: Plan) -> None:
        self._memory(name).parent.mkdir(parents=True, exist_ok=True)
        write_json(self._memory(name), asdict(now))

    def _memory(self, name: str) -> Path:
        folder = self.state.store.root / "last" / self.workload.name
        return folder / f"{name.replace(' ', '-')}.json"
