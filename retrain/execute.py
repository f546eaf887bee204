"""Runs a step, and keeps its output in the store if the step is cached."""

import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from retrain import hardware
from retrain.step import Input, Plan, Step, Workspace
from retrain.store import (
    MANIFEST,
    Artifact,
    RunContext,
    Store,
    digest_of_output,
    list_files,
    write_json,
)
from retrain.workload import Workload

# Checks inputs while its block runs, as `retrain.verify.Verifier.checking` does.
Checking = Callable[[Sequence[Input]], AbstractContextManager[None]]


def get_or_run(
    store: Store,
    step: Step,
    plan: Plan,
    workload: Workload,
    inputs: Sequence[Input],
    context: RunContext,
    checking: Checking,
    *,
    refresh: bool = False,
) -> tuple[Artifact, bool]:
    """Takes a step's output from the store, or runs the step and publishes it there.

    Args:
        store: Where the output is kept.
        step: What to run.
        plan: What the output depends on.
        workload: Given to the step in sections.
        inputs: The outputs of the steps in its `inputs`.
        context: Which run this is.
        checking: Checks the inputs if the step runs.
        refresh: Run it even if the store has it.

    Returns:
        The output, and whether the store had it.

    Raises:
        DamagedArtifactError: An input has changed since it was made. Nothing is published.
        PrunedError: From the step, as the trial of a search. Its scratch is kept.
        ValueError: From the step. The store is unchanged.
    """
    with store.lock(step.name, plan.key):
        store.hold(context.run, step.name, plan.key)
        store.clear(step.name, plan.key)
        if not refresh and (found := store.find(step.name, plan.key)):
            # Of a run that was killed when it had published its output, or refreshed it.
            shutil.rmtree(store.scratch(step.name, plan.key))
            return found, True
        partial, scratch = (
            store.partial(step.name, plan.key),
            store.scratch(step.name, plan.key),
        )
        partial.mkdir()
        try:
            workspace = Workspace(
                partial,
                scratch,
                plan.key,
                workload.name,
                context.project,
                refresh,
                context.trial,
                workload,
            )
            # The step itself checks what it looks up; all of that output may be far more.
            with checking([each for each in inputs if each.step not in step.looked_up]):
                _run(step, plan, workload, inputs, workspace, context)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        store.discard(step.name, plan.key)
        partial.rename(store.folder(step.name, plan.key))
        shutil.rmtree(scratch)
        artifact = store.find(step.name, plan.key)
    assert artifact is not None
    return artifact, False


def run_uncached(
    step: Step,
    plan: Plan,
    workload: Workload,
    inputs: Sequence[Input],
    context: RunContext,
    checking: Checking,
) -> Artifact:
    """Runs a step that leaves no files, such as one that reads or changes the registry.

    Its inputs are checked first, because its changes cannot be undone.

    Raises:
        DamagedArtifactError: An input has changed since it was made.
        ValueError: From the step.
    """
    with checking(inputs):
        pass
    with TemporaryDirectory(dir=Store(context.project.store).temporary(context.run)) as folder:
        workspace = Workspace(
            Path(folder),
            Path(folder),
            plan.key,
            workload.name,
            context.project,
            configuration=workload,
        )
        manifest = _run(step, plan, workload, inputs, workspace, context)
    return Artifact(
        step.name,
        plan.key,
        manifest["digest"],
        Path(),
        manifest["facts"],
        manifest["provenance"],
    )


def _run(
    step: Step,
    plan: Plan,
    workload: Workload,
    inputs: Sequence[Input],
    workspace: Workspace,
    context: RunContext,
) -> dict[str, Any]:
    """Runs a step in a workspace; its manifest is the last file that is written there."""
    began = monotonic()
    facts = step.run(workload, inputs, workspace)
    files = list_files(workspace.folder)
    manifest = {
        "digest": digest_of_output(facts, files),
        "facts": facts,
        "provenance": {
            "run": context.run,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(monotonic() - began, 3),
            "commit": context.project.commit(),
            "uncommitted": context.project.uncommitted(),
            "workload": workload.name,
            "machine": hardware.machine(),
        },
        "plan": asdict(plan),
        "files": files,
    }
    write_json(workspace.folder / MANIFEST, manifest)
    return manifest
