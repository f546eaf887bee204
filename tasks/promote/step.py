"""Puts the model into the registry, and into production if the gate says so.

Promotion is idempotent instead of cached: a decision that was carried out already changes nothing,
and one that a kill interrupted is completed.
"""

import io
import json
from importlib.metadata import version as installed
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import models
from retrain import tracking
from retrain.registry import ledger, versions
from retrain.registry.ledger import Event
from retrain.registry.versions import Candidate, ModelVersion
from retrain.step import REPORT, DataVersion, Facts, Step, Workspace
from retrain.store import MANIFEST, Artifact

MODELS = Path(models.__file__).parent
# What the served model imports. Without it MLflow would find that out by loading the model.
REQUIREMENTS = (
    "mlflow", "numpy", "pandas", "pillow", "pydantic", "safetensors", "simplejpeg", "torch",
    "transformers",
)  # fmt: skip


def promote(
    data: DataVersion,
    trained: Artifact,
    scores: Artifact,
    decision: Artifact,
    workspace: Workspace,
) -> Facts:
    """Registers a model, and makes it champion if the decision is that it passed.

    Returns:
        `name` and `version` in the registry; `aliases`; `digest`, SHA-256 (hex) of the weights.

    Raises:
        ValueError: The weights are not those that were evaluated, or another champion has been
            appointed since the decision.
    """
    project, name = workspace.project, workspace.workload
    with versions.lock(project):
        champion = versions.champion(project, name)
        _check_still_holds(decision, champion)
        if decision.facts["verdict"] == "champion already":
            assert champion is not None
            return _facts(champion)
        version = versions.find_version(project, name, trained.digest)
        if version is None:
            version = _register(data, trained, scores, workspace)
        event = _event(data, decision, version.version, project.commit())
        return _facts(versions.apply_decision(project, version, event))


def promoted(
    data: DataVersion,
    trained: Artifact,
    scores: Artifact,
    decision: Artifact,
    workspace: Workspace,
) -> Facts | None:
    """What `promote` would return if it has nothing left to do; None if it has."""
    project, name = workspace.project, workspace.workload
    champion = versions.champion(project, name)
    if _compared_with(decision) != (champion and champion.version):
        return None
    if decision.facts["verdict"] == "champion already":
        assert champion is not None
        return _facts(champion)
    version = versions.find_version(project, name, trained.digest)
    if version is None:
        return None
    event = _event(data, decision, version.version, commit=None)
    return _facts(version) if versions.is_applied(project, version, event) else None


def _event(data: DataVersion, decision: Artifact, version: int, commit: str | None) -> Event:
    return Event(
        action="promoted" if decision.facts["passed"] else "rejected",
        version=version,
        previous=_compared_with(decision),
        verdict=decision.facts["verdict"],
        rules=tuple(decision.facts["rules"]),
        data=data.digest,
        commit=commit,
        run=decision.provenance.get("run"),
        time=ledger.now(),
    )


def _compared_with(decision: Artifact) -> int | None:
    """The version that was champion when the gate decided."""
    champion: dict[str, Any] | None = decision.facts["champion"]
    return champion["version"] if champion else None


def _check_still_holds(decision: Artifact, champion: ModelVersion | None) -> None:
    before, now = _compared_with(decision), champion and champion.version
    if before != now:
        raise ValueError(
            f"The gate compared the model with champion version {before}, but champion is version "
            f"{now} by now. Run again."
        )


def _register(
    data: DataVersion, trained: Artifact, scores: Artifact, workspace: Workspace
) -> ModelVersion:
    model = trained.folder / "model"
    weights = versions.digest_of_weights(model)
    if not weights == trained.facts["weights"] == scores.facts["weights"]:
        raise ValueError(
            f"{model / versions.WEIGHTS} has changed since it was trained; it is not registered. "
            "Run again with --refresh."
        )
    candidate = Candidate(
        name=workspace.workload,
        weights=weights,
        train_digest=trained.digest,
        family=json.loads((model / models.MODEL).read_text(encoding="utf-8"))["family"],
        images=json.loads((model / models.IMAGES).read_text(encoding="utf-8")),
        metrics=scores.facts["metrics"],
        data=data.digest,
        commit=trained.provenance.get("commit"),
        run_id=_run_of(trained, scores, workspace),
    )
    with TemporaryDirectory() as folder:
        package = Path(folder) / "package"
        _package(model, package)
        return versions.register(workspace.project, candidate, package)


def _run_of(trained: Artifact, scores: Artifact, workspace: Workspace) -> str:
    """The MLflow run of a training; a new one like it, if it has been deleted since."""
    project, report = workspace.project, trained.folder / REPORT
    run_id = str(json.loads((report / "mlflow.json").read_text())["run_id"])
    if tracking.is_active(project, run_id):
        return run_id
    plan: dict[str, Any] = {"config": {}, "inputs": {"preprocess": "unknown"}}
    if (trained.folder / MANIFEST).exists():  # DVC's copy of an output is without
        plan = json.loads((trained.folder / MANIFEST).read_text())["plan"]
    run_id = tracking.start_run(
        project, workspace.workload, trained.key, plan["config"], plan["inputs"]["preprocess"]
    ).run_id
    tracking.log_epochs(project, run_id, json.loads((report / "history.json").read_text()))
    named = {f"test_{name}": value for name, value in scores.facts["metrics"].items()}
    tracking.log_metrics(project, run_id, named)
    tracking.end_run(project, run_id, "FINISHED")
    return run_id


def _package(model: Path, folder: Path) -> None:
    """Writes a model as MLflow serves it: weights, code, signature, an example, requirements."""
    import mlflow
    import pandas as pd
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, Schema
    from mlflow.types.schema import Map

    mlflow.pyfunc.save_model(
        folder,
        python_model=str(MODELS / "serving.py"),
        artifacts={"model": str(model)},
        code_paths=[str(MODELS)],
        signature=ModelSignature(
            inputs=Schema([ColSpec(DataType.binary, "image")]),
            outputs=Schema(
                [
                    ColSpec(DataType.string, "label"),
                    ColSpec(Map(DataType.double), "probabilities"),
                ]
            ),
        ),
        input_example=pd.DataFrame({"image": [_example(model)]}),
        # A build's local part (`+cpu`) is not to be had from the package index.
        pip_requirements=[f"{name}=={installed(name).partition('+')[0]}" for name in REQUIREMENTS],
    )


def _example(model: Path) -> bytes:
    """A PNG with a gradient: a model may be shown to people whom the data may not."""
    import numpy as np
    from PIL import Image

    side = json.loads((model / models.IMAGES).read_text(encoding="utf-8"))["size"]
    gradient = np.linspace(0, 255, side).astype(np.uint8)
    encoded = io.BytesIO()
    Image.fromarray(np.tile(gradient, (side, 1))).save(encoded, "PNG")
    return encoded.getvalue()


def _facts(version: ModelVersion) -> Facts:
    return {
        "name": version.name,
        "version": version.version,
        "aliases": list(version.aliases),
        "digest": version.weights,
    }


STEP = Step(
    "promote",
    promote,
    reads=(),
    inputs=("data", "train", "evaluate", "gate"),
    cached=False,
    dry_function=promoted,
    hours=2,
)
