"""Runs one step of a flow for DVC: `retrain step train vit`, which `dvc.yaml` calls.

The step's files go to `build/<workload>/<step>/`, with a `record.json` that names the output by its
digest; later steps read the records. The output is taken from the store, or made there by the same
function as in the flow, so the bytes are the same and the two ways share the work. The last step
shows the metrics and the verdict, as a run of the flow does. In an experiment of DVC it promotes
nothing.
"""

import json
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from rich.markup import escape

from retrain import roots
from retrain.atomic import write_json
from retrain.errors import ChampionChangedError, UsageError
from retrain.execute import get_or_run, run_uncached
from retrain.flow import StepsFlow
from retrain.outputs import MANIFEST, digest_of_output, list_files
from retrain.project import Project
from retrain.runs import console
from retrain.runs.dry_run import ASKED
from retrain.runs.state import Outcome, RunState, StateRunner
from retrain.step import DataVersion, Input, Plan, Step, following, plan
from retrain.store import Artifact, RunContext, Store
from retrain.verify import Verifier, retry_damaged
from retrain.workload import Workload

RECORD = "record.json"
EXPERIMENT = "DVC_EXP_NAME"  # which `dvc exp run` sets for its stages, and `dvc repro` does not


class StepEndedError(Exception):
    """The step that was asked for has ended; the rest of the flow is not followed."""


@dataclass
class OneStep(StateRunner):
    """Takes the outputs of earlier steps from their records, and runs one step.

    The steps that have no stage in `dvc.yaml` are taken from the store, or made there.

    Attributes:
        step: The name of the one step.
    """

    step: str

    def __call__(self, step: Step, *inputs: Input, workload: Workload | None = None) -> Artifact:
        """Returns the recorded output of a step, or makes it.

        Raises:
            StepEndedError: It was the one step.
            UsageError: The stage of an earlier step has not been run.
            ValueError: As the step does.
        """
        if step.has_stage and step.name != self.step:
            made = read_record(self.project, self.workload.name, step.name)
        else:
            made = self._make(step, inputs, workload or self.workload)
        self.state.artifacts[step.name] = made
        if step.name == self.step:
            self._write(step, made)
            raise StepEndedError
        return made

    def would_run(self, plan: Plan) -> bool:
        """Whether it is the one step, and the store lacks its output."""
        return plan.step == self.step and self.state.store.find(plan.step, plan.key) is None

    def _make(self, step: Step, inputs: tuple[Input, ...], workload: Workload) -> Artifact:
        began, store, context = monotonic(), self.state.store, self.state.context
        planned = plan(step, workload, inputs)
        if step.cached:
            reason = self.state.reason_to_run(planned)
            with store.lock(step.name, planned.key, run=context.run):
                made, cached = get_or_run(
                    store, step, planned, workload, inputs, context, self._check
                )
            roots.add(self.project, [(step.name, planned.key)])
            self.state.remember(planned)
        else:
            reason, cached = ASKED, False
            try:
                made = run_uncached(step, planned, workload, inputs, context, self._check)
            except ChampionChangedError as error:  # the record that compares is of the other one
                again = f"dvc repro {step.name}@{workload.name}"
                raise ValueError(f"{error} Compare the model again: {again}") from error
        outcome = Outcome.of(
            step.name,
            planned,
            made,
            ran=None if cached else reason,
            seconds=monotonic() - began,
        )
        console.ended(step.name, cached, outcome.why, outcome.seconds)
        return made

    def _write(self, step: Step, made: Artifact) -> None:
        """Writes the files of the one step, and its record at the end."""
        folder = _emptied(self.project, self.workload.name, step.name)
        if step.cached:
            Verifier(self.state.store).check([made])
            _copy_output(made.folder, folder)
        record = {
            "step": step.name,
            "key": made.key,
            "digest": made.digest,
            "facts": dict(made.facts),
            "version": asdict(self.state.version),
        }
        write_json(folder / RECORD, record)

    def _check(self, inputs: Sequence[Input]) -> None:
        """Checks the inputs of a step that runs, from earlier stages and from the store.

        Raises:
            DamagedArtifactError: One in the store is damaged.
            ValueError: One in the build folder has changed.
        """
        for each in inputs:
            place = _folder(self.project, self.workload.name, each.step)
            if isinstance(each, Artifact) and each.folder == place:
                files = [file for file in list_files(place) if file["path"] != RECORD]
                if digest_of_output(each.facts, files) != each.digest:
                    raise ValueError(
                        f"{place} has changed since it was made. Make it again: "
                        f"dvc repro --force --single-item {each.step}@{self.workload.name}"
                    )
        Verifier(self.state.store).check(inputs)


def run_one(flow: StepsFlow, step: Step, workload: Workload, project: Project) -> dict[str, Any]:
    """Follows a flow up to one of its steps; the outputs of earlier ones are in the build folder.

    Each workload has all stages; of a step that it does not need there is an empty record.

    Args:
        flow: The flow.
        step: One of its steps.
        workload: The workload of the run.
        project: The clone.

    Returns:
        The record of the step, as its `record.json` has it.

    Raises:
        UsageError: The stage of an earlier step has not been run.
        ValueError: As the step does.
    """
    if not step.needed(workload):
        write_json(_emptied(project, workload.name, step.name) / RECORD, {"step": step.name})
        return _read(project, workload.name, step.name)
    experiment = os.environ.get(EXPERIMENT)
    state = _state(flow, step, workload, RunContext("dvc", project))
    state.promote = experiment is None
    with state.store.holding("dvc"), following(OneStep(state, step.name)):
        retry_damaged(
            lambda: _follow(flow, state.version), lambda error: console.say(escape(str(error)))
        )
    if step is flow.steps[-1]:
        document = flow.tells.document(state)
        how = {} if experiment is None else {"how": _how_promoted(experiment)}
        flow.tells.show(document | how | {"took": document["seconds"]})
    return _read(project, workload.name, step.name)


def _follow(flow: StepsFlow, version: DataVersion) -> None:
    with suppress(StepEndedError):
        flow.fn(version)


def _how_promoted(experiment: str) -> str:
    return f"dvc exp apply {experiment} && dvc repro promotes it"


def _state(flow: StepsFlow, step: Step, workload: Workload, context: RunContext) -> RunState:
    """The state of a run; the version of the data is the one that the first step has recorded."""
    first = flow.steps[0]
    if step is first:
        return flow.state(context, workload)
    record = _read(context.project, workload.name, first.name)
    store = Store(context.project.store)
    return RunState(flow.name, workload, DataVersion(**record["version"]), store, context)


def read_record(project: Project, workload: str, step: str) -> Artifact:
    """The output of a stage, in the build folder.

    Raises:
        UsageError: The stage has not been run.
    """
    record = _read(project, workload, step)
    folder = _folder(project, workload, step)
    return Artifact(step, record["key"], record["digest"], folder, record["facts"])


def _read(project: Project, workload: str, step: str) -> dict[str, Any]:
    path = _folder(project, workload, step) / RECORD
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(
            f"{step} has made nothing for {workload} yet: dvc repro {step}@{workload}"
        ) from None
    return record


def _folder(project: Project, workload: str, step: str) -> Path:
    return project.root / "build" / workload / step


def _emptied(project: Project, workload: str, step: str) -> Path:
    folder = _folder(project, workload, step)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _copy_output(source: Path, target: Path) -> None:
    """Copies an artifact's files, without its manifest, whose times differ between runs.

    They are no hard links, so that changes by DVC or people do not reach the store. Where the file
    system supports reflinks, the copies share their blocks.
    """
    from dvc_objects.fs.system import reflink

    for path in sorted(source.rglob("*")):
        copy = target / path.relative_to(source)
        if path.is_dir():
            copy.mkdir()
        elif path != source / MANIFEST:
            try:
                reflink(str(path), str(copy))
            except OSError:  # not supported here, or between two file systems
                shutil.copyfile(path, copy)
