"""Collects the lineage of a model: the data, the code and the steps that it was made from."""

import hashlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from retrain.params import origin_of
from retrain.registry.lineage import digests_of_images
from retrain.step import DataVersion, Workspace
from retrain.store import Artifact, Store
from retrain.workload import Data
from tasks.data import image_table

REQUIREMENTS = "requirements.lock"
# Inputs that no step has made, and outputs that are listed first.
KNOWN = ("data", "start", "pull", "validate")


def lineage_of(
    data: Data,
    version: DataVersion,
    pulled: Artifact,
    validated: Artifact,
    trained: Artifact,
    scores: Artifact,
    run_id: str,
    workspace: Workspace,
) -> dict[str, Any]:
    """Collects the lineage of a model, for the record that its version carries.

    Args:
        data: The settings that say where the data is.
        version: The version of the data.
        pulled: The output of `pull`.
        validated: The output of `validate`.
        trained: The output of `train`.
        scores: The output of `evaluate`.
        run_id: The MLflow run of the training.
        workspace: The workspace of the step that registers the model.
    """
    project, configuration = workspace.project, workspace.configuration
    origin = origin_of(configuration) if configuration else None
    lock = project.root / REQUIREMENTS
    splits = digests_of_images(validated.folder / image_table.FILE_NAME)
    return {
        "model": workspace.workload,
        "package": scores.facts["package"],
        "weights": trained.facts["weights"],
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "mlflow_run": run_id,
        "commit": (project.commit or "").removesuffix("+dirty") or None,
        "uncommitted": project.uncommitted,
        "requirements": hashlib.sha256(lock.read_bytes()).hexdigest() if lock.is_file() else None,
        "data": {"version": version.digest, "path": data.path}
        | {name: getattr(version, name) for name in ("tracked", "revision", "pin")},
        "entry": origin.entry if origin else None,
        "overrides": dict(origin.overrides) if origin else {},
        "parameters": configuration and configuration.model_dump(mode="json", exclude={"name"}),
        "validation": dict(validated.facts),
        "images": {
            "step": validated.step,
            "key": validated.key,
            "file": image_table.FILE_NAME,
            "splits": splits,
        },
        "training": dict(trained.facts),
        "metrics": scores.facts["metrics"],
        "steps": list(_steps(Store.of(project), pulled, validated, trained, scores)),
    }


def _steps(
    store: Store, pulled: Artifact, validated: Artifact, trained: Artifact, scores: Artifact
) -> Iterator[dict[str, Any]]:
    """The outputs from the data to the evaluation, in order."""
    model = _made(store, trained)
    yield _made(store, pulled)
    yield _made(store, validated)
    yield from _between(store, model)
    yield model
    yield _made(store, scores)


def _made(store: Store, artifact: Artifact) -> dict[str, Any]:
    """The record of an output, with what the store knows; DVC may have outputs that it lacks."""
    step, digest = artifact.step, artifact.digest
    manifest = store.inspect(step, artifact.key)[0]
    if manifest.get("digest") != digest:
        return _output(step, digest, artifact.key, provenance=artifact.provenance)
    return _output(step, digest, artifact.key, manifest["plan"], manifest["provenance"])


def _output(
    step: str,
    digest: str,
    key: str | None = None,
    plan: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """An output as the record has it; the store may have lost its plan, or all of it."""
    return {
        "step": step,
        "digest": digest,
        "key": key,
        "plan": plan,
        "provenance": dict(provenance),
    }


def _between(store: Store, output: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The outputs that an output was made from, except those in `KNOWN`; the first made first."""
    for step, digest in (output["plan"] or {"inputs": {}})["inputs"].items():
        if step not in KNOWN:
            artifact = store.find_digest(step, digest)
            source = _made(store, artifact) if artifact else _output(step, digest)
            yield from _between(store, source)
            yield source
