"""The state of a run, and the dry run, which finds out whether a run would change anything.

A dry run reads the store and the registry only.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from retrain.atomic import write_json
from retrain.outputs import Plan, difference, plan, read_plan
from retrain.project import Project
from retrain.step import DataVersion, Input, Step, Workspace, digest_of
from retrain.store import Artifact, RunContext, Store
from retrain.workload import Workload

REFRESHED = "nothing taken from the cache (refresh)"
ASKED = "asked of the registry each time"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a step in a run.

    Attributes:
        step: The name of the step.
        cached: Whether the output was in the store.
        why: Why the step ran, or which run made its output.
        seconds: How long the run waited for it.
        key: The key of its plan.
        definition: The definition of its plan, which does not depend on the inputs.
        digest: The digest of its output.
        path: The folder of its output; None for a step that leaves no files.
    """

    step: str
    cached: bool
    why: str
    seconds: float
    key: str
    definition: str
    digest: str
    path: str | None

    @classmethod
    def of(
        cls, name: str, planned: Plan, artifact: Artifact, *, ran: str | None, seconds: float
    ) -> "Outcome":
        """Describes the outcome of a step.

        Args:
            name: The step's name in the run's document.
            planned: The plan of the step.
            artifact: The output of the step.
            ran: Why it ran; None if its output was in the store.
            seconds: How long the run waited for it.
        """
        provenance = artifact.provenance
        return cls(
            step=name,
            cached=ran is None,
            why=ran or f"from run {provenance['run'][:8]} of {provenance['time']}",
            seconds=round(seconds, 3),
            key=planned.key,
            definition=planned.definition,
            digest=artifact.digest,
            path=str(artifact.folder) if artifact.folder.name else None,
        )


@dataclass
class RunState:
    """A run of a flow, for one workload.

    Attributes:
        flow: The name of the flow.
        workload: The workload of the run.
        version: The version of the data.
        store: Where the outputs are kept.
        context: The Prefect flow run, and the project that it runs in.
        promote: Whether the run may change what is served; None if it may, except for a version
            that was rolled back.
        warnings: What people were told before the work, a sentence for each.
        outcomes: One per step that has ended, in order.
        artifacts: The outputs of these steps, by the same names.
        began: When the run began, by `time.monotonic`.
    """

    flow: str
    workload: Workload
    version: DataVersion
    store: Store
    context: RunContext
    promote: bool | None = None
    warnings: list[str] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    began: float = field(default_factory=monotonic)

    def add(self, outcome: Outcome, artifact: Artifact) -> None:
        """Adds a step that has ended, in place of the same step with other inputs."""
        self.outcomes[:] = [earlier for earlier in self.outcomes if earlier.step != outcome.step]
        self.outcomes.append(outcome)
        self.artifacts[outcome.step] = artifact

    def added(self, planned: Plan) -> Artifact | None:
        """The output of a plan, if its step has ended in this run."""
        artifact = self.artifacts.get(planned.step)
        return artifact if artifact and artifact.key == planned.key else None

    def reason_to_run(self, planned: Plan) -> str | None:
        """Why a cached step has to run; None when the store has its output."""
        damage = self.store.damage(planned.step, planned.key)
        if damage is None:
            return None
        last_plan = read_plan(self.last_plan(planned.step))
        return (difference(last_plan, planned) or damage) if last_plan else "first run"

    def last_plan(self, step: str) -> Path:
        """The file with the plan of the workload's last run of a step."""
        return self.store.last_plan(self.workload.name, step)

    def remember(self, planned: Plan) -> None:
        """Writes the plan of a step that has ended, for the reason of the next run."""
        memory = self.last_plan(planned.step)
        memory.parent.mkdir(parents=True, exist_ok=True)
        write_json(memory, asdict(planned))


@dataclass
class StateRunner:
    """What all runners of a flow's steps have; see `retrain.step.Runner`.

    Attributes:
        state: The workload, and the outcomes so far.
    """

    state: RunState

    @property
    def workload(self) -> Workload:
        """The workload of the run."""
        return self.state.workload

    @property
    def project(self) -> Project:
        """The clone that the run is in."""
        return self.state.context.project

    @property
    def promote(self) -> bool | None:
        """Whether the run may change what is served; see `RunState`."""
        return self.state.promote

    def warn(self, *sentences: str) -> None:
        """Nothing, unless the steps are run."""


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

    last: dict[str, Any] | None = None
    has_to_run: str | None = None
    reason: str | None = None

    def __call__(self, step: Step, *inputs: Input, workload: Workload | None = None) -> Artifact:
        """Takes a step's output from the store.

        Args:
            step: The step to run.
            *inputs: The outputs of the steps in its `inputs`, in that order.
            workload: A workload with other parameters than the run's; None for the run's own.

        Raises:
            StepHasToRunError: The output is missing or damaged; or the step is not cached, and
                it would change something.
        """
        began = monotonic()
        planned = plan(step, workload or self.workload, inputs)
        if step.cached and (earlier := self.state.added(planned)):
            return earlier
        if step.cached:
            artifact = self.state.store.find(step.name, planned.key)
        else:
            artifact = self._dry_run(step, planned, inputs)
        if artifact is None:
            reason = (
                self.state.reason_to_run(planned) if step.cached else "it would change the registry"
            )
            raise StepHasToRunError(step.name, reason)
        ran = None if step.cached else ASKED
        outcome = Outcome.of(step.name, planned, artifact, ran=ran, seconds=monotonic() - began)
        self.state.add(outcome, artifact)
        return artifact

    def would_run(self, step: str, key: str) -> bool:
        """Always False: a dry run ends at the first step that would run."""
        return False

    def agrees_with(self, document: dict[str, Any]) -> bool:
        """Whether no step has to run, and the last run had the same steps and the same result.

        Steps that are not cached read the registry, which the last run may have changed: the
        output of the last of them is compared.
        """
        if self.has_to_run:
            return False
        recorded = {step["step"]: step for step in document["steps"]}
        for outcome in self.state.outcomes:
            previous = recorded.get(outcome.step)
            if previous is None or previous["definition"] != outcome.definition:
                return False
            is_last = outcome is self.state.outcomes[-1]
            if (outcome.cached or is_last) and previous["digest"] != outcome.digest:
                return False
        return True

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
        outcomes = {} if refresh else {outcome.step: outcome for outcome in self.state.outcomes}
        first_step = steps[0] if refresh else self.has_to_run
        shown: list[dict[str, str | None]] = []
        for step in steps:
            if step in outcomes:
                would = "come from the cache" if outcomes[step].cached else "change nothing"
                shown.append({"step": step, "would": would, "why": outcomes[step].why})
            elif step == first_step:
                why = REFRESHED if refresh else self.reason
                shown.append({"step": step, "would": "run", "why": why})
            elif first_step and steps.index(step) > steps.index(first_step):
                shown.append(
                    {"step": step, "would": "depend", "why": f"on what {first_step} gives"}
                )
        return shown

    def _dry_run(self, step: Step, planned: Plan, inputs: tuple[Input, ...]) -> Artifact | None:
        """The output of a step that is not cached; None if the step would change something."""
        workspace = Workspace(Path(), Path(), planned.key, self.workload.name, self.project)
        facts = step.dry_run(self.workload, inputs, workspace)
        if facts is None:
            return None
        return Artifact(
            step.name, planned.key, digest_of({"facts": facts, "files": {}}), Path(), facts
        )
