"""Puts the model into the registry, and into production if the gate and the run's user say so.

Promotion is idempotent instead of cached: a decision that was already carried out changes nothing,
and one that a kill interrupted is completed.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import models
from retrain import tracking
from retrain.errors import ChampionChangedError
from retrain.registry import ledger, versions
from retrain.registry.ledger import Action, Event
from retrain.registry.versions import Candidate, ModelVersion
from retrain.step import REPORT, DataVersion, Facts, Step, Workspace, digest_of
from retrain.store import MANIFEST, Artifact
from retrain.workload import Data
from tasks.data import package
from tasks.data.accepted_images import AcceptedImage
from tasks.data.raw_dataset import open_raw_dataset
from tasks.promote.check import check, sample
from tasks.promote.package import write_package


@dataclass(frozen=True)
class Intent:
    """What a run is to do with a model that the gate passes.

    Attributes:
        promote: Make it champion; else it is only compared and registered.
    """

    promote: bool

    @property
    def step(self) -> str:
        """Its name as an input."""
        return "intent"

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of its attribute."""
        return digest_of(self.promote)


def promote(
    data: Data,
    version: DataVersion,
    pulled: Artifact,
    validated: Artifact,
    trained: Artifact,
    scores: Artifact,
    decision: Artifact,
    intent: Intent,
    workspace: Workspace,
) -> Facts:
    """Registers a model, and makes it champion if it passed and the run is to promote it.

    Before a package is registered, it classifies some test images: its answers have to be those of
    the evaluation.

    Returns:
        `name` and `version` in the registry; `aliases`; `digest`, SHA-256 (hex) of the weights.

    Raises:
        ChampionChangedError: The champion has changed since the decision.
        ValueError: The package or its answers are not those that were evaluated.
    """
    project, name = workspace.project, workspace.workload
    with versions.lock(project):
        champion = versions.champion(project, name)
        _check_still_holds(decision, champion)
        if decision.facts["verdict"] == "champion already":
            assert champion is not None
            return _facts(champion)
        registered = versions.find_version(project, name, scores.facts["package"])
        if registered is None:
            images = sample(open_raw_dataset(data, pulled), validated.folder)
            classes = validated.facts["classes"]
            registered = _register(version, classes, images, trained, scores, workspace)
        event = _event(version, decision, intent, registered.version, project.commit())
        return _facts(versions.apply_decision(project, registered, event))


def promoted(
    data: Data,
    version: DataVersion,
    pulled: Artifact,
    validated: Artifact,
    trained: Artifact,
    scores: Artifact,
    decision: Artifact,
    intent: Intent,
    workspace: Workspace,
) -> Facts | None:
    """The facts that `promote` would return if nothing is left to do; None otherwise."""
    project, name = workspace.project, workspace.workload
    champion = versions.champion(project, name)
    if _compared_with(decision) != (champion and champion.version):
        return None
    if decision.facts["verdict"] == "champion already":
        assert champion is not None
        return _facts(champion)
    registered = versions.find_version(project, name, scores.facts["package"])
    if registered is None:
        return None
    event = _event(version, decision, intent, registered.version, commit=None)
    return _facts(registered) if versions.is_applied(project, registered, event) else None


def _event(
    data: DataVersion, decision: Artifact, intent: Intent, version: int, commit: str | None
) -> Event:
    decided: Action = "promoted" if decision.facts["passed"] else "rejected"
    return Event(
        action=decided if intent.promote else "compared",
        version=version,
        previous=_compared_with(decision),
        verdict=decision.facts["verdict"],
        rules=tuple(decision.facts["rules"]),
        data=data.digest,
        commit=commit,
        run=decision.provenance.get("run"),
        time=ledger.now(),
        test_images=decision.facts["test_images"],
        reference=decision.facts["reference"],
    )


def _compared_with(decision: Artifact) -> int | None:
    """The version that was champion when the gate decided."""
    champion: dict[str, Any] | None = decision.facts["champion"]
    return champion["version"] if champion else None


def _check_still_holds(decision: Artifact, champion: ModelVersion | None) -> None:
    before, now = _compared_with(decision), champion and champion.version
    if before != now:
        raise ChampionChangedError(
            f"The gate compared the model with champion version {before}, but champion is version "
            f"{now} by now. Run again."
        )


def _register(
    data: DataVersion,
    classes: Mapping[str, int],
    images: Iterable[AcceptedImage],
    trained: Artifact,
    scores: Artifact,
    workspace: Workspace,
) -> ModelVersion:
    """Packages a model, checks the package, and registers it.

    Args:
        data: The version of the data.
        classes: Its number of images of each class.
        images: Some of the test split, for the check; read only when it runs.
        trained: The model.
        scores: Its evaluation.
        workspace: The step's workspace.
    """
    model = trained.folder / "model"
    weights = versions.digest_of_weights(model)
    if not weights == trained.facts["weights"] == scores.facts["weights"]:
        raise ValueError(
            f"{model / versions.WEIGHTS} has changed since it was trained; it is not registered. "
            "Run again with --refresh."
        )
    with TemporaryDirectory(dir=workspace.folder) as folder:
        written = Path(folder) / "package"
        precision = scores.facts["precision"]
        write_package(model, precision, classes, written)
        if package.digest_of_folder(written) != scores.facts["package"]:
            raise ValueError(
                "models/ has changed since the model was evaluated; nothing is registered. "
                "Run again."
            )
        check(written, precision, images, scores.folder)
        candidate = Candidate(
            name=workspace.workload,
            weights=weights,
            package_digest=scores.facts["package"],
            train_digest=trained.digest,
            train_key=trained.key,
            start=trained.facts.get("start"),
            family=json.loads((model / models.MODEL).read_text(encoding="utf-8"))["family"],
            images=package.images_of(model),
            classes=package.classes_digest(classes),
            metrics=scores.facts["metrics"],
            data=data.digest,
            commit=trained.provenance.get("commit"),
            run_id=_run_of(trained, scores, workspace),
        )
        return versions.register(workspace.project, candidate, written)


def _run_of(trained: Artifact, scores: Artifact, workspace: Workspace) -> str:
    """The MLflow run of a training; a new one with the same content if it was deleted."""
    project, report = workspace.project, trained.folder / REPORT
    run_id = str(json.loads((report / "mlflow.json").read_text(encoding="utf-8"))["run_id"])
    if tracking.is_active(project, run_id):
        return run_id
    plan: dict[str, Any] = {"config": {}, "inputs": {"": "unknown"}}
    if (trained.folder / MANIFEST).exists():  # DVC's copy of an output has none
        plan = json.loads((trained.folder / MANIFEST).read_text(encoding="utf-8"))["plan"]
    images = next(digest for name, digest in plan["inputs"].items() if name != "start")
    run_id = tracking.start_run(
        project, workspace.workload, trained.key, plan["config"], images
    ).run_id
    tracking.log_epochs(
        project, run_id, json.loads((report / "history.json").read_text(encoding="utf-8"))
    )
    named = {f"test_{name}": value for name, value in scores.facts["metrics"].items()}
    tracking.log_metrics(project, run_id, named)
    tracking.end_run(project, run_id, "FINISHED")
    return run_id


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
    reads=("data.image_column", "data.label_column"),
    inputs=("data", "pull", "validate", "train", "evaluate", "gate", "intent"),
    cached=False,
    dry_function=promoted,
    hours=2,
)
