"""Runs one step of a flow for DVC: `retrain step train vit`, which `dvc.yaml` calls.

The flow is followed up to that step: the outputs of earlier steps come from the store, or are made
there by the same functions as in a run. The step's files are copied to `build/<workload>/<step>/`,
with a `record.json` that names the output by its digest, on which the later stages of `dvc.yaml`
depend. The last step shows the metrics and the verdict, as a run of the flow does. In an experiment
of DVC it promotes nothing.
"""

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from retrain.disk import write_json
from retrain.flow import StepsFlow
from retrain.outputs import MANIFEST
from retrain.project import Project
from retrain.runs.run import Mode, Run
from retrain.step import DataVersion, Step
from retrain.workload import Workload

RECORD = "record.json"
EXPERIMENT = "DVC_EXP_NAME"  # which `dvc exp run` sets for its stages, and `dvc repro` does not


def run_one(flow: StepsFlow, step: Step, workload: Workload, project: Project) -> dict[str, Any]:
    """Follows a flow up to one of its steps, and writes that step's output to the build folder.

    Each workload has all stages; of a step that it does not need there is an empty record.

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
    if not step.needed(workload):
        return _write(project, workload, {"step": step.name})
    experiment = os.environ.get(EXPERIMENT)
    may_promote = None if experiment is None else False
    version = _version(flow, step, workload, project)
    run = Run(flow.name, workload, version, project, "dvc", Mode.PLAIN, may_promote)
    run.last_step = step.name
    with run.store.runs.holding(run.id):
        run.follow(flow.follows)
    artifact = run.artifacts.get(step.name)
    if artifact is None:  # such as that of a champion, before there is one
        return _write(project, workload, {"step": step.name})
    recorded = asdict(version)
    del recorded["warning"], recorded["pin"]  # which are no reason to run the later stages
    record = {
        "step": step.name,
        "key": artifact.key,
        "digest": artifact.digest,
        "facts": dict(artifact.facts),
        "version": recorded,
    }
    _write(project, workload, record, artifact.folder if step.cached else None)
    if step is flow.steps[-1]:
        document = flow.tells.document(run)
        next_step = (
            {"how": f"dvc exp apply {experiment} && dvc repro promotes it"} if experiment else {}
        )
        flow.tells.show(document | next_step | {"took": document["seconds"]})
    return record


def _version(flow: StepsFlow, step: Step, workload: Workload, project: Project) -> DataVersion:
    """The version of the data: after the first stage the one that this has recorded."""
    recorded = _folder(project, workload, flow.steps[0].name) / RECORD
    if step is not flow.steps[0] and recorded.exists():
        record = json.loads(recorded.read_text(encoding="utf-8"))
        return DataVersion(**record["version"])
    return flow.find_version(workload.data, project, None)


def _folder(project: Project, workload: Workload, step: str) -> Path:
    return project.root / "build" / workload.name / step


def _write(
    project: Project, workload: Workload, record: dict[str, Any], output: Path | None = None
) -> dict[str, Any]:
    """Writes a stage's record, and copies its output without the manifest, which tells of times."""
    folder = _folder(project, workload, record["step"])
    shutil.rmtree(folder, ignore_errors=True)
    if output is None:
        folder.mkdir(parents=True)
    else:
        shutil.copytree(output, folder)
        (folder / MANIFEST).unlink()
    write_json(folder / RECORD, record)
    return record
