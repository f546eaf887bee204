"""Registers the model, and promotes it to production if the gate passes it and people approve it.

Promotion is idempotent instead of cached: a decision that was already carried out changes nothing,
and one that a kill interrupted is completed.
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq

import models
from retrain.errors import ChampionChangedError
from retrain.project import Project
from retrain.registry import decisions, packages, tracking, versions
from retrain.registry.ledger import LONGEST_REASON, Action, Decision
from retrain.registry.versions import Candidate, ModelVersion
from retrain.runs import records
from retrain.step import REPORT, DataVersion, Facts, Workspace, digest_of, step
from retrain.store import Artifact
from retrain.workload import Data, Gate
from tasks.data import package
from tasks.data.predictions import keep_reference
from tasks.data.reading import open_images
from tasks.data.rules import failures
from tasks.promote.outcome import card_of, lineage_of
from tasks.promote.package import (
    check_version,
    example_of,
    sample,
    write_package,
)


@dataclass(frozen=True)
class Intent:
    """Tells a run what to do with a model that the gate passes.

    Attributes:
        promote: Make it champion; else it is only compared and registered.
        again: Promote it also if it is a version that was rolled back.
        changed_rules: The rules of the gate that are not those of `params.yaml`, in words.
    """

    step = "intent"  # its name as an input
    promote: bool
    again: bool = False
    changed_rules: str | None = None

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of its attributes."""
        return digest_of(asdict(self))


def promoted(
    data: Data,
    rules: Gate,
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
    registered = versions.find_version(project, name, scores.facts["package"])
    if registered is None or _compared_with(decision) != (champion and champion.version):
        return None
    if champion and decision.facts["verdict"] == "champion already":
        return _facts(champion) if decisions.read(project, name).is_settled else None
    entry = _decide(rules, version, decision, intent, registered, project)
    return _facts(registered, entry) if decisions.is_applied(project, name, entry) else None


@step(
    inputs=("data", "pull", "validate", "train", "evaluate", "gate", "intent"),
    reads=("data.path", "gate.approval"),
    cached=False,
    hours=2,
    look=promoted,
)
def promote(
    data: Data,
    rules: Gate,
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

    Before that, it has to be served with the answers of the evaluation. A training that a person
    has rejected or rolled back, in whatever package, is promoted only on request.

    Returns:
        `name`, `version`, `aliases`; `digest` (SHA-256, hex) of the weights; `waiting` for a
        person; `withheld`, why it was not promoted although it passed; and `changed_rules`, as in
        `Intent`, if there are any.

    Raises:
        ChampionChangedError: The champion has changed since the decision.
        ValueError: The package is not that which was evaluated, or it cannot be served.
    """
    project, name = workspace.project, workspace.workload
    with versions.lock(project):
        is_champion = decision.facts["verdict"] == "champion already"
        if is_champion:
            decisions.settle(project, name)  # what a kill left undone, or somebody has moved
        champion, before = versions.champion(project, name), _compared_with(decision)
        if before != (champion and champion.version):
            raise ChampionChangedError(
                f"The gate compared the model with champion version {before}, but champion is "
                f"version {champion and champion.version} by now. Run again."
            )
        if champion and is_champion:
            return _facts(champion)
        registered = versions.find_version(project, name, scores.facts["package"])
        if registered is None:
            registered = _register(data, version, pulled, validated, trained, scores, workspace)
        if tracking.is_active(project, registered.run_id):
            decided = {**decision.facts, "changed_rules": intent.changed_rules}
            text = card_of(name, version, validated.facts, trained, scores, decided)
            place = packages.card_place(registered.package_digest)
            tracking.client(project).log_text(registered.run_id, text, place)
        entry = _decide(rules, version, decision, intent, registered, project)
        if decisions.read(project, name).latest(entry) is None:
            if entry.action in ("promoted", "waiting"):
                check_version(project, registered, workspace.folder)
                keep_reference(project, registered, scores.folder)
            entry = replace(entry, commit=project.commit)
        return _facts(decisions.apply(project, registered, entry), entry)


def _decide(
    rules: Gate,
    data: DataVersion,
    decision: Artifact,
    intent: Intent,
    version: ModelVersion,
    project: Project,
) -> Decision:
    """The decision to enter in the ledger, still without the commit.

    Args:
        rules: Whether a person has to approve what passes.
        data: The version of the data.
        decision: The output of the gate.
        intent: What the run is to do with the model.
        version: The registered model.
        project: The clone.
    """
    action: Action = "promoted"
    reason = None
    if not intent.promote:
        action = "compared"
    elif not decision.facts["passed"]:
        failed = failures(decision.facts["rules"])
        action, reason = "rejected", failed[:LONGEST_REASON] or None
    elif not intent.again and (reason := _withheld(project, version)):
        action = "rejected"
    if action == "promoted" and rules.approval == "manual":
        action = "waiting"
    return Decision(
        action=action,
        version=version.version,
        previous=_compared_with(decision),
        verdict=decision.facts["verdict"],
        document=decision.facts,
        reason=reason,
        data=data.digest,
        run=decision.provenance.get("run"),
        test_images=decision.facts["test_images"],
        reference=decision.facts["reference"],
        changed_rules=intent.changed_rules,
        package=version.package_digest,
        training=version.train_digest,
    )


def _withheld(project: Project, version: ModelVersion) -> str | None:
    """Why a version that passed is not promoted; None if nothing is against it."""
    ledger = decisions.read(project, version.name)
    if not ledger.champion and (lost := records.lost_champion(project, version.name)):
        return lost
    of_version = ledger.withdrawn.get(version.version)
    entry = of_version or ledger.withdrawn.get(version.train_digest)
    if entry is None:
        return None
    subject = f"{'' if of_version else 'the training of '}version {version.version}"
    return f"{subject} was {entry.action} on {entry.time[:10]}: {entry.reason}"[:LONGEST_REASON]


def _compared_with(decision: Artifact) -> int | None:
    """The version that was champion when the gate decided."""
    return (decision.facts["champion"] or {}).get("version")


def _register(
    data: Data,
    version: DataVersion,
    pulled: Artifact,
    validated: Artifact,
    trained: Artifact,
    scores: Artifact,
    workspace: Workspace,
) -> ModelVersion:
    """Packages a model and registers it, with its lineage and an example of its answers.

    Raises:
        ValueError: The package is not the one that was evaluated.
    """
    project, classes, facts = workspace.project, validated.facts["classes"], scores.facts
    model = trained.folder / "model"
    with TemporaryDirectory(dir=workspace.folder) as folder:
        package_folder = Path(folder) / "package"
        write_package(model, facts["precision"], classes, package_folder)
        if package.digest_of_folder(package_folder) != facts["package"]:
            raise ValueError(
                "The weights, or models/, have changed since the model was evaluated; nothing is "
                "registered. Run again."
            )
        run_id = _run_of(trained, workspace)
        images = sample(open_images(pulled), validated.folder)
        example = Path(folder) / f"{facts['package']}.parquet"
        pq.write_table(example_of(package_folder, images, scores.folder), example)
        tracking.client(project).log_artifact(run_id, str(example), packages.EXAMPLES)
        history = lineage_of(data, version, pulled, validated, trained, scores, run_id, workspace)
        candidate = Candidate(
            name=workspace.workload,
            weights=trained.facts["weights"],
            package_digest=facts["package"],
            train_digest=trained.digest,
            train_key=trained.key,
            start=trained.facts.get("start"),
            family=json.loads((model / models.MODEL).read_text(encoding="utf-8"))["family"],
            images=package.images_of(model),
            classes=package.classes_digest(classes),
            metrics=facts["metrics"],
            data=version.digest,
            commit=trained.provenance.get("commit"),
            run_id=run_id,
        )
        return versions.register(project, candidate, package_folder, history)


def _run_of(trained: Artifact, workspace: Workspace) -> str:
    """The MLflow run of a training; a new one, without its curves, if it was deleted."""
    project, file = workspace.project, trained.folder / REPORT / "mlflow.json"
    run_id = str(json.loads(file.read_text(encoding="utf-8"))["run_id"])
    if not tracking.is_active(project, run_id):
        run_id = tracking.start_run(project, workspace.workload, trained.key, {}, "unknown")
        tracking.end_run(project, run_id, "FINISHED")
    return run_id


def _facts(version: ModelVersion, entry: Decision | None = None) -> Facts:
    facts: Facts = {
        "name": version.name,
        "version": version.version,
        "aliases": list(version.aliases),
        "digest": version.weights,
    }
    if entry is None:
        return facts
    assert entry.document
    if entry.action == "waiting":
        facts["waiting"] = True
    if entry.reason and entry.document["passed"]:
        facts["withheld"] = entry.reason
    if entry.changed_rules:
        facts["changed_rules"] = entry.changed_rules
    return facts
