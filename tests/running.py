"""Runs of single steps in tests, without Prefect."""

from collections.abc import Sequence
from dataclasses import dataclass

from retrain.project import Project
from retrain.runs.run import Run
from retrain.step import DataVersion, Input, Step
from retrain.store import Artifact, Store
from retrain.workload import Workload

DATA = DataVersion("data", tracked=True)


@dataclass(frozen=True)
class RunContext:
    """A run and its clone."""

    run: str
    project: Project


def run_in(
    store: Store,
    context: RunContext,
    workload: Workload,
    **options: object,
) -> Run:
    """A run that has a store of its own."""
    run = Run("toy", workload, DATA, context.project, context.run, **options)
    run.store = store
    return run


def make(
    store: Store,
    step: Step,
    workload: Workload,
    inputs: Sequence[Artifact | Input],
    context: RunContext,
    *,
    refresh: bool = False,
) -> tuple[Artifact, bool]:
    """Makes the output of a step, or takes it from the store; and says whether it was there."""
    run = run_in(store, context, workload, refresh=refresh)
    artifact = run.output(step, *inputs)
    return artifact, run.outcomes[step.name].cached
