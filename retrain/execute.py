"""Runs a step, and keeps its output in the store if the step is cached."""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from retrain import exchange, hardware
from retrain.errors import DamagedArtifactError
from retrain.outputs import (
    MANIFEST,
    Plan,
    digest_of_output,
    list_files,
    read_plan,
    state_of,
    write_manifest,
)
from retrain.step import Input, Step, Workspace, digest_of
from retrain.store import Artifact, RunContext, Store
from retrain.workload import Workload

# Raises an error if an input has changed since it was made, and says how the files of the artifacts
# among them were when it checked them: `retrain.verify.Verifier.check`.
Check = Callable[[Sequence[Input]], list[str]]
Opened = Callable[[str], bool]  # whether a step opens a file of an input


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

    The step begins when its inputs have been found undamaged, so nothing that is in its scratch was
    made from damaged ones; if they are changed later, that scratch is never used again. The caller
    holds the key's lock: its wait for another run does not count as time of the step.

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
        DamagedArtifactError: An input has changed since it was made, even while the step ran.
            Nothing is published.
        PrunedError: The step is the trial of a search, and was ended early. Its scratch is kept.
        RemoteError: A part of the output is in the remote store, and it does not take the rest.
        ValueError: The step has raised it. The store is unchanged.
    """
    store.use(step.name, plan.key)
    store.clear(step.name, plan.key)
    if store.remote and store.damage(step.name, plan.key):
        store.discard(step.name, plan.key)  # the remote may have what is damaged here
    if not refresh and (artifact := store.find(step.name, plan.key)):
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
    inputs = [*_fetched(store, step, workload, inputs)]
    to_check = [source for source in inputs if source.step not in step.looked_up]
    try:
        with _checked(to_check, partial(_opened, step, workload), check) as state:
            half.mkdir(parents=True)
            scratch, is_stale = store.scratch_from(step.name, plan.key, state)
            use = step.by_difference and not refresh
            before = _earlier(store, workload.name, plan, check) if use else None
            workspace = Workspace(
                half,
                scratch,
                plan.key,
                workload.name,
                context.project,
                refresh or is_stale,
                context.trial,
                workload,
                earlier=before,
            )
            manifest = _run(step, plan, workload, inputs, workspace, context)
            if workspace.sent:  # it is whole only together with the remote
                assert store.remote is not None
                manifest = exchange.send(
                    store.remote, step.name, plan.key, manifest, half, patient=True
                )
                write_manifest(half / MANIFEST, manifest)
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
    if artifact is None or (artifact.remote and store.missing(plan.step, last.key)):
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
    inputs = [*_fetched(store, step, workload, inputs)]
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


def _fetched(
    store: Store, step: Step, workload: Workload, inputs: Sequence[Input]
) -> Iterator[Input]:
    """Brings what a step opens of its inputs from the remote store; sends there what it lacks.

    Yields:
        The inputs, with the remote that has them.
    """
    for source in inputs:
        if isinstance(source, Artifact) and source.folder.name and store.remote:
            if source.remote is None:  # it was made in this run, or when the remote was away
                with store.lock(source.step, source.key):
                    store.push(source.step, source.key)
                source = store.find(source.step, source.key) or source
            store.fetch(source, _opened(step, workload, source) or (lambda path: True))
        yield source


def _opened(step: Step, workload: Workload, source: Artifact) -> Opened | None:
    """Whether a step opens a file of an input; None if it opens all."""
    names = step.opens(workload).get(source.step)
    if names is None:
        return None
    return lambda path: any(path == name or path.startswith(f"{name}/") for name in names)


@contextmanager
def _checked(
    inputs: Sequence[Input], opened: Callable[[Artifact], Opened | None], check: Check
) -> Iterator[str]:
    """Checks inputs before the block, and after it that nobody has changed their files meanwhile.

    Args:
        inputs: The inputs.
        opened: Which files of an input the step opens; None for all.
        check: Checks them.

    Yields:
        What identifies the inputs' files as they were checked.

    Raises:
        DamagedArtifactError: An input has changed. After the block it is raised even if the block
            raises another error, to which the damage may have led.
    """
    artifacts = [artifact for artifact in inputs if isinstance(artifact, Artifact)]
    filters = [opened(artifact) for artifact in artifacts]
    parts = [
        wanted and state_of(artifact.folder, wanted)
        for artifact, wanted in zip(artifacts, filters, strict=True)
    ]
    states = [part or all_of_it for part, all_of_it in zip(parts, check(inputs), strict=True)]

    def check_unchanged() -> None:
        for artifact, wanted, state in zip(artifacts, filters, states, strict=True):
            if state_of(artifact.folder, wanted) != state:
                check([artifact])
                # It is undamaged now: another run has made it again, or a person has restored it.
                reason = "its files changed while they were read"
                raise DamagedArtifactError(artifact.step, artifact.key, reason)

    try:
        yield digest_of(states)
    except Exception:
        check_unchanged()
        raise
    check_unchanged()


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
    files = [*list_files(workspace.folder), *workspace.sent]
    files.sort(key=lambda file: str(file["path"]))
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
