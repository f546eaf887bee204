"""Whether a run would change anything, told from the store and the registry alone."""

from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from retrain.runs import records
from retrain.runs.run import Outcome
from retrain.step import DataVersion, Input, Plan, Step, Workspace, digest_of, plan
from retrain.store import Artifact, RunContext, Store
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

    It stands in for a `retrain.runs.run.Run`, and has the same attributes for the run's document.

    Attributes:
        last: The document of the last run, if that was successful.
        has_to_run: The first step that would have something to do.
    """

    workload: Workload
    version: DataVersion
    store: Store
    context: RunContext
    last: records.Document | None = None
    has_to_run: str | None = None
    outcomes: list[Outcome] = field(default_factory=list)
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    began: float = field(default_factory=monotonic)

    def __call__(
        self, step: Step, *inputs: Input, workload: Workload | None = None, of: str = ""
    ) -> Artifact:
        """Takes a step's output from the store.

        Args:
            step: Which step.
            *inputs: The outputs that it names as its inputs, in that order.
            workload: Read instead of the run's own.
            of: Whose output it is, if not the challenger's.

        Raises:
            StepHasToRunError: The store does not have it whole; or the step is not cached, and
                calling it would change something.
        """
        began = monotonic()
        workload = workload or self.workload
        name = f"{step.name} {of}".strip()
        now = plan(step, workload, inputs)
        if step.cached:
            made = self.store.find(step.name, now.key)
        else:
            made = self._settled(step, now, workload, inputs)
        if made is None:
            raise StepHasToRunError(step.name)
        ran = None if step.cached else "asked of the registry each time"
        self.outcomes.append(Outcome.of(name, now, made, ran=ran, seconds=monotonic() - began))
        self.artifacts[name] = made
        return made

    def _settled(
        self, step: Step, now: Plan, workload: Workload, inputs: tuple[Input, ...]
    ) -> Artifact | None:
        """What a step that is not cached would give if it would change nothing."""
        workspace = Workspace(Path(), Path(), now.key, workload.name, self.context.project)
        facts = step.look(workload, inputs, workspace)
        if facts is None:
            return None
        return Artifact(step.name, now.key, digest_of({"facts": facts, "files": {}}), Path(), facts)

    def unchanged(self) -> records.Document | None:
        """The document that a run would end with if it would change nothing; None if it would.

        It has the last run's id and time. There is none when that failed or was interrupted.
        """
        if self.last is None or self.has_to_run or not self._agrees_with(self.last):
            return None
        return records.still(self, self.last)

    def _agrees_with(self, last: records.Document) -> bool:
        """Whether a run had the same steps to do, and left the registry as it is now.

        A run that promoted its model finds it as the champion afterwards, so that the inputs of
        what asks the registry are not compared, but what came of it.
        """
        before = {step["step"]: step for step in last["steps"]}
        for now in self.outcomes:
            same = ("key", "digest") if now.cached else ("definition",)
            was = before.get(now.step, {})
            if any(was.get(name) != getattr(now, name) for name in same):
                return False
        return bool(self.artifacts["promote"].facts == last["model"])
