"""What is known of a run while it goes on, whether its steps are run or only looked up."""

from dataclasses import dataclass, field
from time import monotonic

from retrain.step import DataVersion, Plan
from retrain.store import Artifact, RunContext, Store
from retrain.workload import Workload


@dataclass(frozen=True)
class Outcome:
    """What became of a step in a run.

    Attributes:
        step: Its name.
        cached: Whether the output was there already.
        why: What made it run, or which run its output is from.
        seconds: How long the run waited for it.
        key: Of its plan.
        definition: Of its plan: the same for a step that does the same, whatever its inputs are.
        digest: Of its output.
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
        cls, name: str, now: Plan, made: Artifact, *, ran: str | None, seconds: float
    ) -> "Outcome":
        """What became of a step.

        Args:
            name: What it is called in the run's document.
            now: Its plan.
            made: Its output.
            ran: Why it ran; None if its output was there already.
            seconds: How long the run waited for it.
        """
        provenance = made.provenance
        return cls(
            step=name,
            cached=ran is None,
            why=ran or f"from run {provenance['run'][:8]} of {provenance['time']}",
            seconds=round(seconds, 3),
            key=now.key,
            definition=now.definition,
            digest=made.digest,
            path=str(made.folder) if made.folder.name else None,
        )


@dataclass
class RunState:
    """A run of a flow, for one workload.

    Attributes:
        flow: The name of the flow.
        workload: What is run.
        version: Of the data.
        store: Where the outputs are kept.
        context: The Prefect flow run, and the project that it runs in.
        outcomes: One per step that has ended, in order.
        artifacts: The outputs of these steps, by the same names.
        began: When it began, by `time.monotonic`.
    """

    flow: str
    workload: Workload
    version: DataVersion
    store: Store
    context: RunContext
    outcomes: list[Outcome] = field(default_factory=list)
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    began: float = field(default_factory=monotonic)

    def add(self, outcome: Outcome, artifact: Artifact) -> None:
        """Notes a step that has ended."""
        self.outcomes.append(outcome)
        self.artifacts[outcome.step] = artifact
