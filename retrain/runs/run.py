"""Runs of a flow: a `Run` makes the outputs of its steps, and a `DryRun` only finds them.

A flow is followed twice: by a dry run, which ends at the first step that has to run, or finds that
nothing has changed; then by a run, inside a Prefect flow run. All that differs is in `DryRun`.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from time import monotonic
from typing import Any, NoReturn

from rich.markup import escape

from retrain import hardware, outputs
from retrain.errors import DamagedArtifactError, UsageError
from retrain.file_io import write_json
from retrain.outputs import Artifact, Outcome, Plan
from retrain.project import Project
from retrain.runs import console
from retrain.runs.task import in_task
from retrain.step import (
    DataVersion,
    Facts,
    Input,
    Step,
    Task,
    Workspace,
    followed,
    plan,
    plan_of_task,
)
from retrain.store import Store, damage_of, refuse_damaged
from retrain.workload import Workload

REFRESHED = "nothing taken from the cache (refresh)"
ASKED = "asked of the registry each time"
GONE = "its artifact is gone"  # since the run has found it

Name = tuple[str, str]  # of an artifact: the step and the key


class StopFollowingError(Exception):
    """The rest of a flow is not followed, because nothing more is wanted of it."""


@contextmanager
def following(run: "Run") -> Iterator[None]:
    """Has a run take the calls of steps while the block follows a flow."""
    token = followed.set(run)
    try:
        yield
    finally:
        followed.reset(token)


def current_run() -> "Run":
    """The run whose flow is being followed."""
    run = followed.get()
    assert isinstance(run, Run)
    return run


@dataclass
class Run:
    """A run of a flow for one workload; it takes the calls of the flow's steps and tasks.

    Attributes:
        flow: The name of the flow.
        workload: The workload of the run.
        version: The version of the data.
        project: The clone that the run is in.
        id: The id of the Prefect flow run, or `dvc`.
        promote: Whether the run may change what is served; None if it may, except for a version
            that was rolled back.
        refresh: Take nothing from the store but what this run has made.
        strict: Take what people should know before the work as an error.
        last_step: The name of the step after which the flow is not followed; None for all of it.
        warnings: What people were told before the work, a sentence for each.
        outcomes: One for each step and task that has ended, by its name and in order.
        artifacts: The outputs of the steps, and the facts of the tasks, by the same names.
        began: When the run began, by `time.monotonic`.
    """

    flow: str
    workload: Workload
    version: DataVersion
    project: Project
    id: str
    promote: bool | None = None
    refresh: bool = False
    strict: bool = False
    last_step: str | None = None
    warnings: list[str] = field(default_factory=list)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    began: float = field(default_factory=monotonic)
    _undamaged: set[Name] = field(default_factory=set)  # made or read whole by this run
    _damaged: dict[Name, str] = field(default_factory=dict)  # found by this run, and why

    def __post_init__(self) -> None:
        self.store = Store.of(self.project)

    def follow(self, body: Callable[[Input], object]) -> None:
        """Calls the function of a flow, whose steps call this run.

        A damaged artifact is removed from the store, and the function is called again: what this
        run has already made or found is not made again.

        Raises:
            DamagedArtifactError: An artifact was made again and is damaged again.
            ValueError: From a step.
        """
        with following(self), suppress(StopFollowingError):
            while True:
                try:
                    body(self.version.as_input)
                    return
                except DamagedArtifactError as error:
                    if (error.step, error.key) in self._damaged:
                        error.add_note("The run has already made it again: check the disk.")
                        raise
                    console.say(str(error))
                    self._damaged[error.step, error.key] = error.damage
                    self.artifacts.pop(error.step, None)

    def output(
        self, step: Step, *inputs: Artifact | Input, workload: Workload | None = None
    ) -> Artifact:
        """Makes the output of a step, or takes it from the store.

        Args:
            step: The step.
            *inputs: Those that the step names in its `inputs`, in that order.
            workload: A workload with other parameters than the run's; None for the run's own.

        Raises:
            StepTimeoutError: The step did not end within its limit.
            ValueError: From the step. The store is unchanged.
        """
        planned = plan(step, workload or self.workload, inputs)
        known = self.artifacts.get(step.name)
        if known and known.key == planned.key:
            return known
        began, reason = monotonic(), self.reason_to_run(planned)
        if reason:
            self.must_run(step.name, reason)
        artifact, cached = self._take_or_make(step, planned, workload or self.workload, inputs)
        why = reason or GONE
        if cached:
            made = artifact.provenance
            why = f"from run {made['run'][:8]} of {made['time']}"
        self._end(planned, artifact, cached, why, began, is_own=workload is None)
        return artifact

    def call(self, task: Task, *arguments: Any) -> Facts:
        """Calls a task, after all artifacts that it gets were read, each once in a run.

        Raises:
            StepTimeoutError: The task did not end within its limit.
            ValueError: From the task.
        """
        planned, began = plan_of_task(task, self.workload), monotonic()
        facts = self._facts(task, arguments)
        digest = outputs.digest_of_output(facts, [])
        artifact = Artifact(task.name, planned.key, digest, Path(), facts)
        self._end(planned, artifact, False, ASKED, began)
        return facts

    def must_run(self, step: str, reason: str) -> None:
        """Says that a step or task is about to make or change something: a dry run ends here.

        Args:
            step: Its name.
            reason: Why it has to run.
        """

    def warn(self, *sentences: str) -> None:
        """Tells people what they should know before the work that follows, once.

        Raises:
            UsageError: The run is strict, and there is anything to tell.
        """
        new = [sentence for sentence in sentences if sentence not in self.warnings]
        if self.strict and new:
            lines = [*new, "A strict run (--strict) takes this as an error."]
            raise UsageError(f"workload {self.workload.name}: " + "\n".join(lines))
        self.warnings += new
        for sentence in new:
            console.say(escape(sentence))

    def reason_to_run(self, planned: Plan) -> str | None:
        """Why a step has to run; None if the store has its output, and the run may take it."""
        if not self._may_take(planned):
            return REFRESHED
        damage = self.store.damage(planned.step, planned.key)
        if damage is None:
            return None
        last = outputs.read_plan(self._last_plan(planned.step))
        reason = (outputs.difference(last, planned) or damage) if last else "first run"
        return self._damaged.get((planned.step, planned.key), reason)

    def _may_take(self, planned: Plan) -> bool:
        """Whether an output may be taken from the store: in a refresh, only what this run made."""
        return not self.refresh or (planned.step, planned.key) in self._undamaged

    def _take_or_make(
        self, step: Step, planned: Plan, workload: Workload, inputs: Sequence[Artifact | Input]
    ) -> tuple[Artifact, bool]:
        """The output of a step in a Prefect task, and whether the store had it."""
        hours = workload.limits.get(step.name, step.hours)
        attempt = partial(self._attempt, step, planned, workload, inputs)
        making = self.store.making(step.name, planned.key, anew=not self._may_take(planned))
        # A step's task begins below the lock, because the time of the task is limited.
        with console.progress(step.name), making:
            artifact, cached = in_task(step.name, hours, attempt)
        if not cached:
            self._undamaged.add((step.name, planned.key))
        return artifact, cached

    def _attempt(
        self, step: Step, planned: Plan, workload: Workload, inputs: Sequence[Artifact | Input]
    ) -> tuple[Artifact, bool]:
        """One try to take the output of a step from the store, or to make it there.

        Raises:
            DamagedArtifactError: An input has changed since it was made. It is gone now.
        """
        store, key, began, origin = self.store, planned.key, monotonic(), self._origin
        if self._may_take(planned) and (found := store.obtain(step.name, key)):
            store.forget(step.name, key)  # as a run left it that was killed after it published
            return found, True
        self._check(step, planned, inputs)
        half, scratch = store.partial(step.name, key), store.scratch(step.name, key)
        values = [source.value if isinstance(source, Input) else source for source in inputs]
        earlier = partial(self._earlier, planned)
        place = Workspace(half, scratch, key, workload.name, self.project, workload, earlier)
        half.mkdir(parents=True)
        try:
            facts = step.function(*step.sections(workload), *values, place)
            took = {"seconds": round(monotonic() - began, 3)}
            manifest = outputs.write_manifest(half, planned, facts, origin | took)
        except BaseException:
            shutil.rmtree(half, ignore_errors=True)
            raise
        store.replace(step.name, key)
        shutil.rmtree(scratch)
        return Artifact.of(step.name, key, store.folder(step.name, key), manifest), False

    def _check(self, step: Step, planned: Plan, inputs: Sequence[Artifact | Input]) -> None:
        """Reads the inputs of a step that is about to run, each once in a run.

        The step itself checks what it only looks up; all of that output may be far more.
        """
        for source in inputs:
            if isinstance(source, Artifact) and source.step not in step.not_in_key:
                try:
                    self._read(source)
                except DamagedArtifactError:  # an earlier try may have read what is damaged
                    self.store.forget(step.name, planned.key)
                    raise

    def _facts(self, task: Task, arguments: Sequence[Any]) -> Facts:
        """The facts of a task, which runs in a Prefect task."""

        def attempt() -> tuple[Facts, bool]:
            for source in arguments:
                if isinstance(source, Artifact):
                    self._read(source)
            return task.function(*arguments), False

        with console.progress(task.name):
            return in_task(task.name, self.workload.limits.get(task.name, task.hours), attempt)[0]

    def _read(self, artifact: Artifact) -> None:
        """Reads all of an artifact of the store; a damaged one is removed and told of."""
        name = (artifact.step, artifact.key)
        if name not in self._undamaged:
            refuse_damaged(self.store, artifact)
            self._undamaged.add(name)

    def _earlier(self, planned: Plan) -> Path | None:
        """The folder of the output that the workload's last run of a step has made.

        None if more than the inputs was different, or it is not here, whole and undamaged; or if
        the run takes nothing from the store.
        """
        last = outputs.read_plan(self._last_plan(planned.step)) if self._may_take(planned) else None
        if last is None or last.definition != planned.definition or last.key == planned.key:
            return None
        artifact = self.store.find(planned.step, last.key)
        if artifact is None:
            return None
        with self.store.lock(planned.step, last.key):
            self.store.use(planned.step, last.key)  # so that no clean-up removes it meanwhile
        try:
            self._read(artifact)
        except DamagedArtifactError:
            return None
        return artifact.folder

    @cached_property
    def _origin(self) -> dict[str, Any]:
        """What the provenance of all outputs of this run has in common: the state at its start."""
        return {
            "run": self.id,
            "commit": self.project.commit,
            "uncommitted": self.project.uncommitted,
            "workload": self.workload.name,
            "machine": hardware.machine(),
        }

    def _end(
        self,
        planned: Plan,
        artifact: Artifact,
        cached: bool,
        why: str,
        began: float,
        is_own: bool = False,
    ) -> None:
        """Keeps how a step or task has ended; the flow is not followed any more after the last."""
        outcome = Outcome(
            step=planned.step,
            cached=cached,
            why=why,
            seconds=round(monotonic() - began, 3),
            key=planned.key,
            definition=planned.definition,
            digest=artifact.digest,
            path=str(artifact.folder) if artifact.folder.name else None,
        )
        self.artifacts[planned.step], self.outcomes[planned.step] = artifact, outcome
        self._show(outcome, planned if is_own else None)
        if planned.step == self.last_step:
            self._read(artifact)  # it is copied
            raise StopFollowingError

    def _show(self, outcome: Outcome, planned: Plan | None) -> None:
        """Shows how a step has ended, and keeps its plan, for the reason of the next run."""
        console.say_step(outcome.step, outcome.cached, outcome.why, outcome.seconds)
        if planned:
            memory = self._last_plan(planned.step)
            memory.parent.mkdir(parents=True, exist_ok=True)
            write_json(memory, asdict(planned))

    def _last_plan(self, step: str) -> Path:
        """The file with the plan of the workload's last run of a step."""
        return self.store.last_plan(self.workload.name, step)


@dataclass
class DryRun(Run):
    """A run that changes nothing: it ends at the first step or task that has to run.

    It takes outputs from the store, and calls tasks without Prefect. It warns of nothing and shows
    nothing, because the run that follows does so.

    Attributes:
        has_to_run: The name of the first step or task that has to run; None if there is none.
        reason: Why it has to run.
    """

    has_to_run: str | None = None
    reason: str | None = None

    def must_run(self, step: str, reason: str) -> NoReturn:
        """Ends the dry run."""
        self.has_to_run, self.reason = step, reason
        raise StopFollowingError

    def warn(self, *sentences: str) -> None:
        """Tells nothing."""

    def _take_or_make(self, step: Step, planned: Plan, *_: Any) -> tuple[Artifact, bool]:
        artifact = self.store.find(step.name, planned.key)
        if artifact is None:
            self.must_run(step.name, GONE)
        return artifact, True

    def _facts(self, task: Task, arguments: Sequence[Any]) -> Facts:
        try:
            return task.function(*arguments)
        except StopFollowingError:
            raise
        except Exception:
            for source in arguments:  # nobody has read them; a run makes them again
                if isinstance(source, Artifact) and damage_of(self.store, source):
                    self.must_run(task.name, f"the output of {source.step} is damaged")
            raise

    def _show(self, outcome: Outcome, planned: Plan | None) -> None:
        pass
