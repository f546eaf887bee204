"""The decorators of flows: `@flow` above a function in `flows/` makes a Prefect flow of it.

The function under `@steps_flow(steps=…, report=…, version=…)` calls steps. It is followed twice: a
`DryRun` finds whether anything has to run, and then a `Run` runs it, where each call is a Prefect
task, with the store as its cache. DVC has one step of it run, by `run_one`.
"""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import asdict
from itertools import dropwhile
from pathlib import Path
from typing import Any, Protocol

from prefect import runtime

from retrain.file_io import write_json
from retrain.outputs import MANIFEST
from retrain.params import load_workload, resolve
from retrain.project import Project, find_project
from retrain.runs import console, preflight, records
from retrain.runs.flow_runs import Flow, P, R
from retrain.runs.liveness import Processes, end_lost_runs
from retrain.runs.records import Document
from retrain.runs.run import REFRESHED, DryRun, Run
from retrain.step import DataVersion, Input, Step, Task
from retrain.workload import Data, Workload

# Finds the version of the data for a section of the workload, a clone, and a git revision or None.
FindVersion = Callable[[Data, Project, str | None], DataVersion]

# What takes long to import, and is imported while a server starts.
MODEL_IMPORTS = ("mlflow", "pyarrow.parquet")

# The dry run that the caller of a flow has made; it is no parameter that Prefect could record.
_dry_run: ContextVar[DryRun | None] = ContextVar("dry_run", default=None)


class Report(Protocol):
    """What a flow with steps says of a run; the reports are in `flows/reports/`."""

    def document(self, run: Run) -> Document:
        """Describes a run, which may have failed at any step, in JSON-able values.

        `outcome` is a sentence about its end; people get it if `rejected` or `waiting` is true.
        """

    def show(self, document: Document) -> None:
        """Shows a run on the console."""

    def write_page(self, project: Project, document: Document) -> None:
        """Writes the page of a run, which may have failed at any step."""


class StepsFlow(Flow[..., Document]):
    """A flow whose function calls steps.

    Attributes:
        steps: All that the function may call, in order; a workload may not need some of them.
        report: What the flow says of a run.
        body: The function.
        find_version: Finds the version of the data that a run uses.
        other_steps: Steps of other flows, whose limits the same workloads may have.
    """

    def __init__(
        self,
        fn: Callable[[Input], None],
        steps: Sequence[Task],
        report: Report,
        version: FindVersion,
        other_steps: Sequence[Task],
        imports: tuple[str, ...],
    ) -> None:
        """Describes the flow; see `steps_flow`."""
        super().__init__(fn, imports, self.run)
        self.steps, self.report, self.body = steps, report, fn
        self.find_version, self.other_steps = version, other_steps

    def __call__(  # type: ignore[override]
        self, *args: Any, dry_run: DryRun | None = None, **kwargs: Any
    ) -> Document:
        """Runs the flow in a Prefect flow run; see `run`.

        Args:
            *args: As `run` has them.
            dry_run: One that has found that there is something to do; None to make it here.
            **kwargs: As `run` has them.
        """
        token = _dry_run.set(dry_run)
        try:
            return dict(super().__call__(*args, **kwargs))
        finally:
            _dry_run.reset(token)

    def check(self, workload: Workload, project: Project) -> None:
        """Raises a UsageError with a line for each fault that would make a run fail."""
        names = [step.name for step in (*self.steps, *self.other_steps)]
        preflight.check(self.steps_for(workload), workload, project, names)

    def steps_for(self, workload: Workload) -> list[Task]:
        """The steps that a workload needs, in order."""
        return [step for step in self.steps if step.needed(workload)]

    def dry_run(
        self,
        project: Project,
        workload: Workload,
        revision: str | None = None,
        promote: bool | None = None,
    ) -> DryRun:
        """Follows the steps up to the first that has to run. Nothing is changed.

        Args:
            project: The clone.
            workload: The workload, with the parameters of the run.
            revision: The git revision of the data, which `run` takes as `data_rev`.
            promote: Whether a model may become champion, as `run` takes it.

        Raises:
            ValueError: The user has to correct something, as in a run.
        """
        self.check(workload, project)
        version = self.find_version(workload.data, project, revision)
        dry_run = DryRun(self.name, resolve(workload, project), version, project, "", promote)
        dry_run.follow(self.body)
        return dry_run

    def unchanged(self, dry_run: DryRun) -> Document | None:
        """The document of a run that changes nothing, with the last run's id and time.

        None if the run would change something, or the last one failed or was killed.
        """
        last = records.last_run(dry_run.project, dry_run.workload.name, self.name)
        if last is None or "error" in last or not _agrees(dry_run, last):
            return None
        document = self.report.document(dry_run)
        for (
            artifact
        ) in dry_run.artifacts.values():  # it is used, as by a run that takes it from there
            dry_run.store.use(artifact.step, artifact.key)
        since = f"Nothing changed since run {last['run'][:8]} of {console.local_time(last['time'])}"
        return document | {
            "run": last["run"],
            "time": last["time"],
            "unchanged": True,
            "state": "Skipped",
            "outcome": f"{since}; {document['outcome']}",
        }

    def preview(self, dry_run: DryRun, *, insist: bool, refresh: bool) -> Document:
        """Describes what a run with these options would do; `insist` is `run` of `run`."""
        names = [step.name for step in self.steps_for(dry_run.workload)]
        steps = preview(dry_run, names, refresh=refresh)
        unchanged = None if insist or refresh else self.unchanged(dry_run)
        warning = {"warning": dry_run.version.warning} if dry_run.version.warning else {}
        outcome = "Every output is in the store; no step would run."
        if first_step := next((step for step in steps if step["would"] == "run"), None):
            outcome = f"{first_step['step']} would be the first step to run: {first_step['why']}."
        return {
            "flow": self.name,
            "workload": dry_run.workload.name,
            "dry_run": True,
            "unchanged": unchanged is not None,
            "data": {"version": dry_run.version.digest, **warning},
            "steps": steps,
            "outcome": unchanged["outcome"] if unchanged else outcome,
        }

    def run(
        self,
        workload: str,
        overrides: dict[str, Any] | None = None,
        data_rev: str | None = None,
        refresh: bool = False,
        run: bool = False,
        promote: bool | None = None,
        as_name: str | None = None,
        strict: bool = False,
    ) -> Document:
        """Runs the steps that have to run, inside a Prefect flow run; returns its document.

        Its `state` is `Skipped` if nothing has changed since the last run.

        Args:
            workload: An entry of `params.yaml`.
            overrides: Values by dotted name: `{"train.lr": 0.0005}`; an empty text is the default.
            data_rev: A git revision whose version of the data is used; the working tree's if None.
            refresh: Run every step, even those whose output is in the store.
            run: Follow the steps even if nothing has changed.
            promote: Whether a model that passes the gate becomes champion, or is only compared and
                registered. If None, it becomes champion unless it was rolled back, or the run only
                tries something: it has `overrides` or `data_rev`, and not `as_name`.
            as_name: Another name for the run's workload, with a champion of its own.
            strict: Take what is warned of before a step as an error.

        Raises:
            ValueError: The user has to correct something, such as data that fails its checks.
        """
        project = find_project()
        config = load_workload(project.params, workload, overrides, as_name=as_name)
        may_promote = may_change(promote, overrides, data_rev, as_name)
        run_id = str(runtime.flow_run.id)
        with Processes(project.store).hold():
            with console.progress("starting"):
                end_lost_runs(project)
                dry_run = _dry_run.get() or self.dry_run(project, config, data_rev, may_promote)
            if not (run or refresh) and (unchanged := self.unchanged(dry_run)):
                return unchanged
            config = dry_run.workload  # with what was `auto`
            begun = Run(
                self.name, config, dry_run.version, project, run_id, may_promote, refresh, strict
            )
            if dry_run.has_to_run or refresh:  # else libraries would be imported for nothing
                begun.warn(
                    *preflight.notices(self.steps_for(config), config, project, dry_run.version)
                )
            preflight.check_surroundings(project, config.scale.workers)
            try:
                begun.follow(self.body)
            except Exception as error:
                self._record(begun, **records.failure(project, error))
                raise
            return self._record(begun)

    def _record(self, run: Run, **failure: Any) -> Document:
        """Writes the document and the page of a run that has ended; returns the document."""
        document = self.report.document(run) | failure
        records.write(run.project, document)
        self.report.write_page(run.project, document)
        return document


def may_change(
    promote: bool | None,
    overrides: dict[str, Any] | None,
    data_rev: str | None,
    as_name: str | None,
) -> bool | None:
    """Whether a run may change what is served: one that only tries something may not.

    Args:
        promote: What the user has said; None if nothing.
        overrides: The parameters that differ from `params.yaml`.
        data_rev: A git revision of the data.
        as_name: Another name for the workload, which has a champion of its own.

    Returns:
        None if it may, except for a version that was rolled back.
    """
    only_tries = bool(overrides or data_rev) and as_name is None
    return False if promote is None and only_tries else promote


def _agrees(dry_run: DryRun, document: Document) -> bool:
    """Whether no step has to run, and a run's document has the same steps and the same result.

    The run may have changed the registry, on which the facts of tasks depend: those of the last are
    compared.
    """
    if dry_run.has_to_run:
        return False
    recorded = {step["step"]: step for step in document["steps"]}
    *_, last = dry_run.outcomes
    for name, outcome in dry_run.outcomes.items():
        previous = recorded.get(name)
        if previous is None or previous["definition"] != outcome.definition:
            return False
        if (outcome.cached or name == last) and previous["digest"] != outcome.digest:
            return False
    return True


def preview(dry_run: DryRun, steps: list[str], *, refresh: bool) -> list[dict[str, str | None]]:
    """What a run would do with each step, as far as that is known before it.

    Args:
        dry_run: It has followed the flow.
        steps: All steps of the flow, in order.
        refresh: Whether the run takes nothing from the store.

    Returns:
        For each step `step`, its name; `would`, which is `come from the cache`, `change nothing` (a
        task), `run`, or `depend` on what the first step that runs gives; and
        `why`.
    """
    first_step, reason = (steps[0], REFRESHED) if refresh else (dry_run.has_to_run, dry_run.reason)
    shown: list[dict[str, str | None]] = []
    if not refresh:
        for outcome in dry_run.outcomes.values():
            would = "come from the cache" if outcome.cached else "change nothing"
            shown.append({"step": outcome.step, "would": would, "why": outcome.why})
    if first_step:
        shown.append({"step": first_step, "would": "run", "why": reason})
        later = [*dropwhile(lambda step: step != first_step, steps)][1:]
        why = f"on what {first_step} gives"
        known = {each["step"] for each in shown}
        shown += [
            {"step": step, "would": "depend", "why": why} for step in later if step not in known
        ]
    return shown


def flow(fn: Callable[P, R]) -> Flow[P, R]:
    """Makes a flow of a function that calls no steps."""
    return Flow(fn, MODEL_IMPORTS)


def steps_flow(
    *,
    steps: Sequence[Task],
    report: Report,
    version: FindVersion,
    other_steps: Sequence[Task] = (),
    imports: tuple[str, ...] = MODEL_IMPORTS,
) -> Callable[[Callable[[Input], None]], StepsFlow]:
    """Makes a flow of a function that calls steps; its only parameter is the version of the data.

    Args:
        steps: The steps and tasks that the function may call, in order.
        report: What the flow says of a run.
        version: A function that finds the version of the data.
        other_steps: Steps of other flows, whose limits the same workloads may have.
        imports: Modules that a run needs and that take long to import.
    """
    return lambda function: StepsFlow(function, steps, report, version, other_steps, imports)


RECORD = "record.json"
EXPERIMENT = "DVC_EXP_NAME"  # which `dvc exp run` sets for its stages, and `dvc repro` does not


def run_one(flow: StepsFlow, step: Task, workload: Workload, project: Project) -> dict[str, Any]:
    """Follows a flow up to one of its steps, for DVC: `step train vit` in `dvc.yaml`.

    The outputs of earlier steps come from the store, or are made there as in a run. The files of
    the step are copied to `build/<workload>/<step>/`, with a `record.json` that names the output by
    its digest, on which the later stages depend. The last step shows what a run of the flow does.
    In an experiment of DVC nothing is promoted. Each workload has all stages; of a step that it
    does not need there is an empty record.

    Args:
        flow: The flow.
        step: The step of the flow to run.
        workload: The workload of the run.
        project: The clone.

    Returns:
        The record of the step, as its `record.json` has it.

    Raises:
        ValueError: From a step.
    """
    folder, first_step = project.root / "build" / workload.name, flow.steps[0]
    if not step.needed(workload):
        return _write(folder, {"step": step.name})
    experiment, first = os.environ.get(EXPERIMENT), folder / first_step.name / RECORD
    if step is not first_step and first.exists():
        version = DataVersion(**json.loads(first.read_text(encoding="utf-8"))["version"])
    else:
        version = flow.find_version(workload.data, project, None)
    may_promote = None if experiment is None else False
    resolved = resolve(workload, project)
    run = Run(flow.name, resolved, version, project, "dvc", may_promote, last_step=step.name)
    with Processes(project.store).hold():
        run.follow(flow.body)
    artifact = run.artifacts.get(step.name)
    if artifact is None:  # such as that of a champion, before there is one
        return _write(folder, {"step": step.name})
    recorded = asdict(version)
    del recorded["warning"], recorded["pin"]  # which are no reason to run the later stages
    of_output = {"key": artifact.key, "digest": artifact.digest, "facts": dict(artifact.facts)}
    record = {"step": step.name, **of_output, "version": recorded}
    _write(folder, record, artifact.folder if isinstance(step, Step) else None)
    if step is flow.steps[-1]:
        document = flow.report.document(run)
        how = {"how": f"dvc exp apply {experiment} && dvc repro promotes it"} if experiment else {}
        flow.report.show(document | how | {"took": document["seconds"]})
    return record


def _write(build: Path, record: dict[str, Any], output: Path | None = None) -> dict[str, Any]:
    """Writes a stage's record, and copies its output without the manifest, which tells of times."""
    folder = build / record["step"]
    shutil.rmtree(folder, ignore_errors=True)
    if output is None:
        folder.mkdir(parents=True)
    else:
        shutil.copytree(output, folder)
        (folder / MANIFEST).unlink()
    write_json(folder / RECORD, record)
    return record
