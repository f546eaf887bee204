"""Whether a run would change anything, told from the store and the registry alone."""

from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from retrain.runs.records import Document
from retrain.runs.state import Outcome, RunState
from retrain.step import Input, Plan, Step, Workspace, digest_of, plan
from retrain.store import Artifact, RunContext
from retrain.workload import Workload


class StepHasToRunError(Exception):
    """A step would have something to do.

    Attributes:
        step: Its name.
    """

    def __init__(self, step: str) -> None:
        super().__init__(step)
        self.step = step


@dataclass
class DryRun:
    """Calls no step: it takes their outputs from the store, in the order that the flow gives.

    Attributes:
        state: What would be run, and what was found so far.
        last: The document of the last run, if that was successful.
        has_to_run: The first step that would have something to do.
    """

    state: RunState
    last: Document | None = None
    has_to_run: str | None = None

    @property
    def workload(self) -> Workload:
        """What would be run."""
        return self.state.workload

    @property
    def context(self) -> RunContext:
        """The last run, and the project that it ran in."""
        return self.state.context

    def __call__(self, step: Step, *inputs: Input) -> Artifact:
        """Takes a step's output from the store.

        Args:
            step: Which step.
            *inputs: The outputs that it names as its inputs, in that order.

        Raises:
            StepHasToRunError: The store does not have it whole; or the step is not cached, and
                calling it would change something.
        """
        began = monotonic()
        now = plan(step, self.workload, inputs)
        if step.cached:
            found = self.state.store.find(step.name, now.key)
        else:
            found = self._dry_run(step, now, inputs)
        if found is None:
            raise StepHasToRunError(step.name)
        ran = None if step.cached else "asked of the registry each time"
        outcome = Outcome.of(step.name, now, found, ran=ran, seconds=monotonic() - began)
        self.state.add(outcome, found)
        return found

    def agrees_with(self, last: Document) -> bool:
        """Whether no step has to run, and the last run had the same steps and the same result.

        What asks the registry finds something else after a run that has changed it, so that not
        its inputs are compared but what it does, and what the last step left.
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

    def _dry_run(self, step: Step, now: Plan, inputs: tuple[Input, ...]) -> Artifact | None:
        """What a step that is not cached would give if it would change nothing."""
        project, name = self.context.project, self.workload.name
        workspace = Workspace(Path(), Path(), now.key, name, project)
        facts = step.dry_run(self.workload, inputs, workspace)
        if facts is None:
            return None
        return Artifact(step.name, now.key, digest_of({"facts": facts, "files": {}}), Path(), facts)
