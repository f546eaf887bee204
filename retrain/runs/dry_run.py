"""Finds out, from the store and the registry only, whether a run would change anything."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from retrain.outputs import Plan, plan
from retrain.runs.records import Document
from retrain.runs.state import Outcome, StateRunner
from retrain.step import Input, Step, Workspace, digest_of
from retrain.store import Artifact
from retrain.workload import Workload

REFRESHED = "nothing taken from the cache (refresh)"
ASKED = "asked of the registry each time"


class StepHasToRunError(Exception):
    """The output of a step is not in the store, or the step would change something.

    Attributes:
        step: The name of the step.
        reason: Why it has to run.
    """

    def __init__(self, step: str, reason: str | None) -> None:
        super().__init__(step)
        self.step, self.reason = step, reason


@dataclass
class DryRun(StateRunner):
    """Takes the outputs of the steps from the store, in the order of the flow; runs no step.

    Attributes:
        last: The document of the last run, if that was successful.
        has_to_run: The first step that would have to run; None if there is none.
        reason: Why it would have to run.
    """

    last: Document | None = None
    has_to_run: str | None = None
    reason: str | None = None

    def __call__(self, step: Step, *inputs: Input, workload: Workload | None = None) -> Artifact:
        """Takes a step's output from the store.

        Args:
            step: Which step.
            *inputs: The outputs of the steps in its `inputs`, in that order.
            workload: With other parameters than the run's.

        Raises:
            StepHasToRunError: The output is missing or damaged; or the step is not cached, and
                it would change something.
        """
        began = monotonic()
        now = plan(step, workload or self.workload, inputs)
        if step.cached and (done := self.state.added(now)):
            return done
        if step.cached:
            found = self.state.store.find(step.name, now.key)
        else:
            found = self._dry_run(step, now, inputs)
        if found is None:
            reason = (
                self.state.reason_to_run(now) if step.cached else "it would change the registry"
            )
            raise StepHasToRunError(step.name, reason)
        ran = None if step.cached else ASKED
        outcome = Outcome.of(step.name, now, found, ran=ran, seconds=monotonic() - began)
        self.state.add(outcome, found)
        return found

    def would_run(self, step: str, key: str) -> bool:
        """Never: a dry run ends at the first step that would run."""
        return False

    def agrees_with(self, last: Document) -> bool:
        """Whether no step has to run, and the last run had the same steps and the same result.

        Steps that are not cached read the registry, which the last run may have changed. For them
        the definitions are compared and not the inputs; and the output of the last step.
        """
        if self.has_to_run:
            return False
        before = {step["step"]: step for step in last["steps"]}
        for now in self.state.outcomes:
            same = ("key", "digest") if now.cached else ("definition",)
            was = before.get(now.step, {})
            if any(was.get(name) != getattr(now, name) for name in same):
                return False
        final = self.state.outcomes[-1]
        return bool(before[final.step]["digest"] == final.digest)

    def preview(self, steps: Sequence[str], *, refresh: bool) -> list[dict[str, str | None]]:
        """What a run would do with each step, as far as that is known before it.

        Args:
            steps: All steps of the flow, in order.
            refresh: Whether the run takes nothing from the store.

        Returns:
            For each step `step`, its name; `would`, which is `come from the cache`, `change
            nothing` (a step that asks the registry), `run`, or `depend` on what the first step that
            runs gives; and `why`.
        """
        found = {} if refresh else {each.step: each for each in self.state.outcomes}
        first = steps[0] if refresh else self.has_to_run
        shown: list[dict[str, str | None]] = []
        for step in steps:
            if step in found:
                would = "come from the cache" if found[step].cached else "change nothing"
                shown.append({"step": step, "would": would, "why": found[step].why})
            elif step == first:
                why = REFRESHED if refresh else self.reason
                shown.append({"step": step, "would": "run", "why": why})
            elif first and steps.index(step) > steps.index(first):
                shown.append({"step": step, "would": "depend", "why": f"on what {first} gives"})
        return shown

    def _dry_run(self, step: Step, now: Plan, inputs: tuple[Input, ...]) -> Artifact | None:
        """The output of a step that is not cached; None if the step would change something."""
        workspace = Workspace(Path(), Path(), now.key, self.workload.name, self.project)
        facts = step.dry_run(self.workload, inputs, workspace)
        if facts is None:
            return None
        return Artifact(step.name, now.key, digest_of({"facts": facts, "files": {}}), Path(), facts)
