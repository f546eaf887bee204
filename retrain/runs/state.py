"""The state of a run or a dry run: its workload, and the outcomes of its steps so far."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic

from retrain.atomic import write_json
from retrain.outputs import Plan, difference
from retrain.project import Project
from retrain.step import DataVersion
from retrain.store import Artifact, RunContext, Store
from retrain.workload import Workload


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
        cls, name: str, now: Plan, artifact: Artifact, *, ran: str | None, seconds: float
    ) -> "Outcome":
        """Describes the outcome of a step.

        Args:
            name: The step's name in the run's document.
            now: Its plan.
            artifact: Its output.
            ran: Why it ran; None if its output was in the store.
            seconds: How long the run waited for it.
        """
        provenance = artifact.provenance
        return cls(
            step=name,
            cached=ran is None,
            why=ran or f"from run {provenance['run'][:8]} of {provenance['time']}",
            seconds=round(seconds, 3),
            key=now.key,
            definition=now.definition,
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
        promote: Whether the run may change what is served.
        again: Whether it may promote even a version that was rolled back.
        outcomes: One per step that has ended, in order.
        artifacts: The outputs of these steps, by the same names.
        began: When the run began, by `time.monotonic`.
    """

    flow: str
    workload: Workload
    version: DataVersion
    store: Store
    context: RunContext
    promote: bool = True
    again: bool = False
    outcomes: list[Outcome] = field(default_factory=list)
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    began: float = field(default_factory=monotonic)

    def add(self, outcome: Outcome, artifact: Artifact) -> None:
        """Adds a step that has ended, in place of the same step with other inputs."""
        self.outcomes[:] = [each for each in self.outcomes if each.step != outcome.step]
        self.outcomes.append(outcome)
        self.artifacts[outcome.step] = artifact

    def added(self, now: Plan) -> Artifact | None:
        """The output of a plan, if its step has ended in this run."""
        artifact = self.artifacts.get(now.step)
        return artifact if artifact and artifact.key == now.key else None

    def reason_to_run(self, now: Plan) -> str | None:
        """Why a cached step has to run; None when the store has its output."""
        damage = self.store.damage(now.step, now.key)
        if damage is None:
            return None
        try:
            last = Plan(**json.loads(self.last_plan(now.step).read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError, TypeError):
            return "first run"
        return difference(last, now) or damage

    def last_plan(self, step: str) -> Path:
        """The file with the plan of the workload's last run of a step."""
        return self.store.last_plan(self.workload.name, step)

    def remember(self, now: Plan) -> None:
        """Writes the plan of a step that has ended, for the reason of the next run."""
        memory = self.last_plan(now.step)
        memory.parent.mkdir(parents=True, exist_ok=True)
        write_json(memory, asdict(now))


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
    def promote(self) -> bool:
        """Whether the run may change what is served."""
        return self.state.promote

    @property
    def again(self) -> bool:
        """Whether it may promote even a version that was rolled back."""
        return self.state.again
