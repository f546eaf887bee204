"""One run of a flow: calls the steps as Prefect tasks and keeps what became of each."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic

from retrain.errors import DamagedArtifactError
from retrain.runs import console
from retrain.step import DataVersion, Input, Plan, Step, difference, plan
from retrain.store import Artifact, RunContext, Store, write_json
from retrain.verify import Verifier, until_whole
from retrain.workload import Workload


@dataclass(frozen=True)
class Outcome:
    """What became of a step in a run.

    Attributes:
        step: Its name; for the champion's evaluation, with `champion` behind it.
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
            name: What it is called in the summary.
            now: Its plan.
            made: Its output.
            ran: Why it ran; None if its output was there already.
            seconds: How long the run waited for it.
        """
        return cls(
            step=name,
            cached=ran is None,
            why=ran or f"from run {made.provenance['run'][:8]} of {made.provenance['time']}",
            seconds=round(seconds, 3),
            key=now.key,
            definition=now.definition,
            digest=made.digest,
            path=str(made.folder) if made.folder.name else None,
        )


@dataclass
class Run:
    """Calls steps, in the order that the flow gives, for one workload.

    Attributes:
        workload: What is run.
        version: Of the data.
        store: Where the outputs are kept.
        context: The Prefect flow run and the project it runs in.
        refresh: Take nothing from the store.
        outcomes: One per call, in order.
        artifacts: What the calls gave, by the same names.
    """

    workload: Workload
    version: DataVersion
    store: Store
    context: RunContext
    refresh: bool = False
    outcomes: list[Outcome] = field(default_factory=list)
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    began: float = field(default_factory=monotonic)
    _damaged: dict[tuple[str, str], str] = field(default_factory=dict)
    _ran: dict[tuple[str, str], Outcome] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Makes what checks the artifacts that the run takes from the store."""
        self._verifier = Verifier(self.store, self.context.run)

    def going_on(self) -> AbstractContextManager[None]:
        """Keeps what the run takes and makes in the store, for as long as it goes on."""
        return self.store.holding(self.context.run)

    def follow(self, order: Callable[["Run"], None]) -> None:
        """Calls the steps in the order of a flow.

        Where an artifact in the store turns out damaged, it is taken out, and the order is followed
        again from its start: what is whole comes from the store.

        Args:
            order: Calls this with each step.

        Raises:
            DamagedArtifactError: An artifact is damaged that was made again already.
            ValueError: As the steps do.
        """
        until_whole(lambda: order(self), self._start_again)

    def _start_again(self, error: DamagedArtifactError) -> None:
        console.say(str(error))
        self._damaged[error.step, error.key] = error.said
        self._ran |= {(each.step, each.key): each for each in self.outcomes}
        self.outcomes.clear()
        self.artifacts.clear()

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
        """
        workload = workload or self.workload
        name = f"{step.name} {of}".strip()
        now = plan(step, workload, inputs)
        reason = self._reason_to_run(step, name, now)
        began = monotonic()
        with console.running(name):
            made, cached = self._result(step, now, workload, inputs)
        ran = None if cached else reason or "asked of the registry each time"
        outcome = Outcome.of(name, now, made, ran=ran, seconds=monotonic() - began)
        if cached and (name, now.key) in self._ran:  # before damage was found
            outcome = self._ran[name, now.key]
        self.outcomes.append(outcome)
        self.artifacts[name] = made
        console.ended(outcome.step, outcome.cached, outcome.why, outcome.seconds)
        if step.cached:
            self._remember(name, now)
        return made

    def _result(
        self, step: Step, now: Plan, workload: Workload, inputs: tuple[Input, ...]
    ) -> tuple[Artifact, bool]:
        """The step's output, and whether the store had it."""
        from prefect.utilities.annotations import quote

        from retrain.caching import CACHED, as_task

        if self.refresh and step.cached:
            self.store.forget(step.name, now.key)
        # Quoted, so that Prefect does not search all of it for futures.
        state = as_task(step, self.store, self._verifier.checking)(
            plan=quote(now),
            workload=quote(workload),
            inputs=quote(inputs),
            context=quote(self.context),
            refresh=self.refresh,
        )
        return state.result(), state.name == CACHED

    def _reason_to_run(self, step: Step, name: str, now: Plan) -> str | None:
        """Why a step has to run; None when the store has its output, or it is never kept."""
        if not step.cached:
            return None
        if self.refresh:
            return "nothing taken from the cache (refresh)"
        damage = self.store.damage(step.name, now.key)
        if damage is None:
            return None
        if (step.name, now.key) in self._damaged:
            return self._damaged[step.name, now.key]
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
        return self.store.last_plan(self.workload.name, name)
