"""Runs a step, and keeps its output in the store if the step is cached."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from retrain import hardware
from retrain.errors import DamagedArtifactError
from retrain.outputs import (
    MANIFEST,
    Plan,
    digest_of_output,
    list_files,
    read_plan,
    write_manifest,
)
from retrain.step import Input, Step, Workspace
from retrain.store import Artifact, RunContext, Store
from retrain.workload import Workload

# Raises an error if an input has changed since it was made: `retrain.verify.Verifier.check`.
Check = Callable[[Sequence[Input]], None]


def get_or_run(
    store: Store,
    step: Step,
    plan: Plan,
    workload: Workload,
    inputs: Sequence[Input],
    context: RunContext,
    check: Check,
    *,
    refresh: bool = False,
) -> tuple[Artifact, bool]:
    """Takes a step's output from the store, or runs the step and publishes it there.

    The step begins when its inputs have been found undamaged. The caller holds the key's lock: its
    wait for another run does not count as time of the step.

    Args:
        store: Where the output is kept.
        step: What to run.
        plan: What the output depends on.
        workload: The workload, of which the step gets the sections that it reads.
        inputs: The outputs of the steps in its `inputs`.
        context: The run.
        check: Checks the inputs if the step runs.
        refresh: Run it even if the store has it.

    Returns:
        The output, and whether the store had it.

    Raises:
        DamagedArtifactError: An input has changed since it was made.
        PrunedError: The step is the trial of a search, and was ended early. Its scratch is kept.
        ValueError: The step has raised it. The store is unchanged.
    """
    store.use(step.name, plan.key)
    store.clear(step.name, plan.key)
    if not refresh and (artifact := store.obtain(step.name, plan.key)):
        # A run that was killed just after it published or refreshed its output left the scratch.
        shutil.rmtree(store.scratch(step.name, plan.key))
        return artifact, True
    return _make(store, step, plan, workload, inputs, context, check, refresh), False


def _make(
    store: Store,
    step: Step,
    plan: Plan,
    workload: Workload,
    inputs: Sequence[Input],
    context: RunContext,
    check: Check,
    refresh: bool,
) -> Artifact:
    """Runs a step and publishes its output; see `get_or_run`."""
    half = store.partial(step.name, plan.key)
    # The step itself checks what it looks up; all of that output may be far more.
    try:
        check([source for source in inputs if source.step not in step.looked_up])
    except DamagedArtifactError:
        store.forget(step.name, plan.key)  # an earlier try may have read what is damaged
        raise
    scratch = store.scratch(step.name, plan.key)
    use = step.by_difference and not refresh
    before = _earlier(store, workload.name, plan, check) if use else None
    half.mkdir(parents=True)
    workspace = Workspace(
        half,
        scratch,
        plan.key,
        workload.name,
        context.project,
        refresh,
        context.trial,
        workload,
        earlier=before,
    )
    try:
        manifest = _run(step, plan, workload, inputs, workspace, context)
    except BaseException:
        shutil.rmtree(half, ignore_errors=True)
        raise
    store.replace(step.name, plan.key)
    shutil.rmtree(scratch)
    return Artifact.of(step.name, plan.key, store.folder(step.name, plan.key), manifest)


def _earlier(store: Store, workload: str, plan: Plan, check: Check) -> Path | None:
    """The folder of the output that a workload's last run of a step has made of other inputs.

    None if more than the inputs was different, or it is not here, whole and undamaged.
    """
    last = read_plan(store.last_plan(workload, plan.step))
    if last is None or last.definition != plan.definition or last.key == plan.key:
        return None
    artifact = store.find(plan.step, last.key)
    if artifact is None:
        return None
    with store.lock(plan.step, last.key):
        store.use(plan.step, last.key)  # so that no clean-up removes it meanwhile
    try:
        check([artifact])
    except DamagedArtifactError:
        return None
    return artifact.folder


def run_uncached(
    step: Step,
    plan: Plan,
    workload: Workload,
    inputs: Sequence[Input],
    context: RunContext,
    check: Check,
) -> Artifact:
    """Runs a step that leaves no files, such as one that reads or changes the registry.

    Its inputs are checked first, because its changes cannot be undone.

    Raises:
        DamagedArtifactError: An input has changed since it was made.
        ValueError: From the step.
    """
    store = Store.of(context.project)
    check(inputs)
    with TemporaryDirectory(dir=store.runs.temporary(context.run)) as folder:
        workspace = Workspace(
            Path(folder),
            Path(folder),
            plan.key,
            workload.name,
            context.project,
            configuration=workload,
        )
        manifest = _run(step, plan, workload, inputs, workspace, context)
    return Artifact.of(step.name, plan.key, Path(), manifest)


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
    facts = json.loads(json.dumps(step.run(workload, inputs, workspace)))  # as later runs see them
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
    write_manifest(workspace.folder / MANIFEST, manifest)
    return manifest
