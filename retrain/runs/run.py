"""The runner of a flow's steps: it makes their outputs, or only looks for them in the store."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from enum import Enum
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from prefect.states import Completed
from prefect.task_engine import TaskRunTimeoutError
from rich.markup import escape

from retrain import hardware
from retrain.disk import write_json
from retrain.errors import DamagedArtifactError, EndsHereError, UsageError
from retrain.outputs import Artifact, Outcome, Plan, difference, plan, read_plan, write_manifest
from retrain.project import Project
from retrain.runs import console
from retrain.runs.liveness import Processes
from retrain.runs.task import CACHED, ended, ends_process, task_of
from retrain.step import DataVersion, Input, Step, Workspace, digest_of, followed
from retrain.store import Store, refuse_damaged
from retrain.workload import Workload

REFRESHED = "nothing taken from the cache (refresh)"
ASKED = "asked of the registry each time"

Name = tuple[str, str]  # of an artifact: the step and the key


class Mode(Enum):
    """What a run does when its flow calls a step."""

    LOOK = "look"  # takes the output from the store, and ends at the first step that has to run
    TASKS = "tasks"  # makes or finds the output in a Prefect task
    PLAIN = "plain"  # the same without Prefect: a stage of DVC


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
    """A run of a flow for one workload; it takes the calls of the flow's steps.

    Attributes:
        flow: The name of the flow.
        workload: The workload of the run.
        version: The version of the data.
        project: The clone that the run is in.
        id: The id of the Prefect flow run, or `dvc`.
        mode: What the call of a step does.
        promote: Whether the run may change what is served; None if it may, except for a version
            that was rolled back.
        refresh: Take nothing from the store.
        strict: Take what people should know before the work as an error.
        last_step: The name of the step after which the flow is not followed; None for all of it.
        warnings: What people were told before the work, a sentence for each.
        outcomes: One for each step that has ended, by its name and in order.
        artifacts: The outputs of these steps, by the same names.
        began: When the run began, by `time.monotonic`.
        has_to_run: Of a look: the first step that has to run; None if there is none.
        reason: Why it has to run.
    """

    flow: str
    workload: Workload
    version: DataVersion
    project: Project
    id: str
    mode: Mode = Mode.TASKS
    promote: bool | None = None
    refresh: bool = False
    strict: bool = False
    last_step: str | None = None
    warnings: list[str] = field(default_factory=list)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    began: float = field(default_factory=monotonic)
    has_to_run: str | None = None
    reason: str | None = None
    _tried: float = 0.0  # when the last try of a step began
    _undamaged: set[Name] = field(default_factory=set)  # made or read whole by this run
    _damaged: dict[Name, str] = field(default_factory=dict)  # found by this run, and why

    def __post_init__(self) -> None:
        self.store = Store.of(self.project)

    def follow(self, body: Callable[[DataVersion], object]) -> None:
        """Calls the function of a flow, whose steps call this run.

        A damaged artifact is removed from the store, and the function is called again: what this
        run has already made or found is not made again.

        Raises:
            DamagedArtifactError: An artifact was made again and is damaged again.
            ValueError: From a step.
        """
        with following(self):
            while True:
                try:
                    body(self.version)
                    return
                except EndsHereError as end:
                    self.has_to_run, self.reason = end.step, end.reason
                    return
                except DamagedArtifactError as error:
                    if (error.step, error.key) in self._damaged:
                        error.add_note("The run has already made it again: check the disk.")
                        raise
                    console.say(str(error))
                    self._damaged[error.step, error.key] = error.damage
                    self.artifacts.pop(error.step, None)

    def __call__(self, step: Step, *inputs: Input, workload: Workload | None = None) -> Artifact:
        """Makes or finds the output of a step, as the mode of the run says.

        Args:
            step: The step.
            *inputs: The outputs of the steps in its `inputs`, in that order.
            workload: A workload with other parameters than the run's; None for the run's own.

        Raises:
            EndsHereError: In a look, the step has to run.
            StepTimeoutError: The step did not end within its limit.
            ValueError: From the step.
        """
        planned = plan(step, workload or self.workload, inputs)
        earlier = self.artifacts.get(step.name)
        if step.cached and earlier and earlier.key == planned.key:
            return earlier
        began, reason = monotonic(), self._reason_to_run(step, planned)
        if self.mode is Mode.LOOK:
            artifact, cached = self._look(step, planned, inputs, reason), step.cached
        else:
            with console.progress(step.name):
                artifact, cached = self.make(step, planned, workload or self.workload, inputs)
        provenance, seconds = artifact.provenance, round(monotonic() - began, 3)
        why = reason or ASKED
        if cached:
            why = f"from run {provenance['run'][:8]} of {provenance['time']}"
        path = str(artifact.folder) if artifact.folder.name else None
        self.outcomes[step.name] = Outcome(
            *(step.name, cached, why, seconds, planned.key, planned.definition),
            *(artifact.digest, path),
        )
        self.artifacts[step.name] = artifact
        if self.mode is not Mode.LOOK:
            console.ended(step.name, cached, why, seconds)
            if step.cached and workload is None:
                self._remember(planned)
        if step.name == self.last_step:
            self._read(artifact)  # it is copied
            raise EndsHereError(step.name)
        return artifact

    def make(
        self, step: Step, planned: Plan, workload: Workload, inputs: Sequence[Input]
    ) -> tuple[Artifact, bool]:
        """Runs a step, or takes its output from the store.

        Args:
            step: The step.
            planned: Its plan.
            workload: Has the parameters of the step.
            inputs: Its inputs.

        Returns:
            The output, and whether the store had it.

        Raises:
            DamagedArtifactError: An input has changed since it was made. It is gone now.
            StepTimeoutError: The step did not end within its limit.
            ConnectionError: The run has lost its slot of a deployment's concurrency limit.
            ValueError: From the step. The store is unchanged.
        """
        name, hours = (step.name, planned.key), workload.limits.get(step.name, step.hours)
        anew = self.refresh and name not in self._undamaged

        def attempt() -> Any:
            self._tried, origin = monotonic(), self._origin
            with ends_process(hours):
                if step.cached and not anew and (found := self.store.obtain(*name)):
                    self.store.forget(*name)  # as a run left it that was killed after it published
                    return self._ended((found, True), CACHED)
                self._check(step, planned, inputs)
                with self._workspace(step, planned, workload, anew) as workspace:
                    facts = step.function(*step.sections(workload), *inputs, workspace)
                    took = {"seconds": round(monotonic() - self._tried, 3)}
                    manifest = write_manifest(workspace.folder, planned, facts, origin | took)
            folder = self.store.folder(*name) if step.cached else Path()
            return self._ended((Artifact.of(*name, folder, manifest), False))

        # A step's task begins below the lock, because the time of the task is limited.
        with self.store.making(*name, anew=anew) if step.cached else nullcontext():
            task = task_of(step.name, attempt, hours)
            try:
                artifact, cached = task().result() if self.mode is Mode.TASKS else attempt()
            except TaskRunTimeoutError:
                raise ended(step.name, hours, monotonic() - self._tried) from None
        if not cached:
            self._undamaged.add(name)
        return artifact, cached

    def warn(self, *sentences: str) -> None:
        """Tells people what they should know before the work that follows, once; not in a look.

        Raises:
            UsageError: The run is strict, and there is anything to tell.
        """
        new = [sentence for sentence in sentences if sentence not in self.warnings]
        if self.mode is Mode.LOOK:
            return
        if self.strict and new:
            lines = [*new, "A strict run (--strict) takes this as an error."]
            raise UsageError(f"workload {self.workload.name}: " + "\n".join(lines))
        self.warnings += new
        for sentence in new:
            console.say(escape(sentence))

    def would_run(self, step: str, key: str) -> bool:
        """Whether the run is about to make the output of a cached step; not in a look."""
        if self.mode is Mode.LOOK:
            return False
        return self.refresh or self.store.damage(step, key) is not None

    def _reason_to_run(self, step: Step, planned: Plan) -> str | None:
        """Why a step has to run; None when the store has its output, or the step is not cached."""
        if not step.cached:
            return None
        if self.refresh:
            return REFRESHED
        damage = self.store.damage(step.name, planned.key)
        if damage is None:
            return None
        last = read_plan(self._last_plan(step.name))
        reason = (difference(last, planned) or damage) if last else "first run"
        return self._damaged.get((step.name, planned.key), reason)

    def _look(
        self, step: Step, planned: Plan, inputs: Sequence[Input], reason: str | None
    ) -> Artifact:
        """The output of a step from the store, or of one that would change nothing."""
        if step.cached:
            artifact = self.store.find(step.name, planned.key)
        else:
            workspace = Workspace(Path(), Path(), planned.key, self.workload.name, self.project)
            facts = step.look(*step.sections(self.workload), *inputs, workspace)
            digest = digest_of({"facts": facts, "files": {}})
            found = Artifact(step.name, planned.key, digest, Path(), facts or {})
            artifact = None if facts is None else found
        if artifact is None:
            raise EndsHereError(step.name, reason or "it would change the registry")
        return artifact

    def _check(self, step: Step, planned: Plan, inputs: Sequence[Input]) -> None:
        """Reads the inputs of a step that is about to run, each once in a run.

        The step itself checks what it only looks up; all of that output may be far more.
        """
        for source in inputs:
            if isinstance(source, Artifact) and source.step not in step.looked_up:
                try:
                    self._read(source)
                except DamagedArtifactError:
                    if step.cached:  # an earlier try may have read what is damaged
                        self.store.forget(step.name, planned.key)
                    raise

    def _read(self, artifact: Artifact) -> None:
        """Reads all of an artifact of the store; a damaged one is removed and told of."""
        name = (artifact.step, artifact.key)
        if name not in self._undamaged:
            refuse_damaged(self.store, artifact)
            self._undamaged.add(name)

    @contextmanager
    def _workspace(
        self, step: Step, planned: Plan, workload: Workload, anew: bool
    ) -> Iterator[Workspace]:
        """The folders of a step while it runs; after the block its output is published."""
        store, key = self.store, planned.key
        if not step.cached:
            with TemporaryDirectory(dir=Processes(store.root).temporary()) as name:
                folder = Path(name)
                yield Workspace(
                    folder, folder, key, workload.name, self.project, configuration=workload
                )
            return
        half, scratch = store.partial(step.name, key), store.scratch(step.name, key)
        half.mkdir(parents=True)
        try:
            yield Workspace(
                *(half, scratch, key, workload.name, self.project, workload),
                earlier=lambda: None if anew else self._earlier(planned),
            )
        except BaseException:
            shutil.rmtree(half, ignore_errors=True)
            raise
        store.replace(step.name, key)
        shutil.rmtree(scratch)

    def _earlier(self, planned: Plan) -> Path | None:
        """The folder of the output that the workload's last run of a step has made.

        None if more than the inputs was different, or it is not here, whole and undamaged.
        """
        last = read_plan(self._last_plan(planned.step))
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

    def _ended(self, result: Any, state: str | None = None) -> Any:
        """What an attempt returns; for Prefect its task's final state, which has a name."""
        return Completed(data=result, name=state) if self.mode is Mode.TASKS else result

    def _last_plan(self, step: str) -> Path:
        """The file with the plan of the workload's last run of a step."""
        return self.store.last_plan(self.workload.name, step)

    def _remember(self, planned: Plan) -> None:
        """Writes the plan of a step that has ended, for the reason of the next run."""
        memory = self._last_plan(planned.step)
        memory.parent.mkdir(parents=True, exist_ok=True)
        write_json(memory, asdict(planned))
