"""Registers the model, and promotes it to production if the gate passes it and people approve it.

Promotion is idempotent instead of cached: a decision that was already carried out changes nothing,
and one that a kill interrupted is completed.
"""

import json
from dataclasses import replace
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
from retrain.runs.liveness import Processes
from retrain.runs.run import Run, current_run
from retrain.step import REPORT, Facts, task
from retrain.store import Artifact
from tasks.data import package
from tasks.data.gate_rules import failures
from tasks.data.predictions import keep_reference
from tasks.data.raw_images import open_images
from tasks.promote.outcome import card_of, lineage_of
from tasks.promote.package import check_version, example_of, sample, write_package

CHANGES = "it would change the registry"


@task(reads=("data.path", "gate.approval"), hours=2)
def promote(
    pulled: Artifact,
    validated: Artifact,
    trained: Artifact,
    scores: Artifact,
    gate: Facts,
    changed_rules: str | None,
) -> Facts:
    """Registers a model, and makes it champion if it passed and the run is to promote it.

    Before that, it has to be served with the answers of the evaluation. A training that a person
    has rejected or rolled back, in whatever package, is promoted only on request.

    Args:
        pulled: The output of `pull`.
        validated: The output of `validate`.
        trained: The output of `train`.
        scores: The output of `evaluate`.
        gate: The facts of `gate`.
        changed_rules: The rules of the gate that are not those of `params.yaml`, in words.

    Returns:
        `name`, `version`, `aliases`; `digest` (SHA-256, hex) of the weights; `waiting` for a
        person; `withheld`, why it was not promoted although it passed; and `changed_rules`, if
        there are any.

    Raises:
        ChampionChangedError: The champion has changed since the gate has compared.
        ValueError: The package is not that which was evaluated, or it cannot be served.
    """
    run = current_run()
    project, name, before = run.project, run.workload.name, _compared_with(gate)
    champion = versions.champion(project, name)
    if before != (champion and champion.version):
        raise ChampionChangedError(
            f"The gate compared the model with champion version {before}, but champion is "
            f"version {champion and champion.version} by now. Run again."
        )
    if champion and gate["verdict"] == "champion already":
        if decisions.read(project, name).is_settled:
            return _facts(champion)
        # What a kill left undone, or somebody has moved.
        run.must_run("promote", CHANGES)
        return _facts(versions.of(project, decisions.settle(project, name), champion.version))
    registered = versions.find_version(project, name, scores.facts["package"])
    if registered is None:
        run.must_run("promote", CHANGES)
        registered = _register(run, pulled, validated, trained, scores)
    decision = _decide(run, gate, changed_rules, registered)
    if not decisions.is_applied(project, name, decision):
        run.must_run("promote", CHANGES)
        facts = {**gate, "changed_rules": changed_rules}
        card = card_of(name, run.version, validated.facts, trained, scores, facts)
        registered = _apply(run, registered, decision, card, scores)
    return _facts(registered, decision)


def _decide(run: Run, gate: Facts, changed_rules: str | None, version: ModelVersion) -> Decision:
    """The decision about a registered model, without the commit."""
    action: Action = "promoted"
    reason = None
    if run.promote is False:
        action = "compared"
    elif not gate["passed"]:
        action, reason = "rejected", failures(gate["rules"])[:LONGEST_REASON] or None
    elif not run.promote and (reason := _withheld(run.project, version)):
        action = "rejected"
    if action == "promoted" and run.workload.gate.approval == "manual":
        action = "waiting"
    return Decision(
        action=action,
        version=version.version,
        previous=_compared_with(gate),
        verdict=gate["verdict"],
        document=gate,
        reason=reason,
        data=run.version.digest,
        run=run.id,
        test_images=gate["test_images"],
        reference=gate["reference"],
        changed_rules=changed_rules,
        package=version.package_digest,
        training=version.train_digest,
    )


def _apply(
    run: Run, version: ModelVersion, decision: Decision, card: str, scores: Artifact
) -> ModelVersion:
    """Enters a decision in the ledger, if it is not there, and carries it out.

    Raises:
        ChampionChangedError: The champion has changed since the gate has compared.
        ValueError: The model cannot be served.
    """
    project = run.project
    with versions.lock(project):
        if tracking.is_active(project, version.run_id):
            place = packages.card_place(version.package_digest)
            tracking.client(project).log_text(version.run_id, card, place)
        if decisions.read(project, version.name).latest(decision) is None:
            if decision.action in ("promoted", "waiting"):
                check_version(project, version, Processes(project.store).temporary())
                keep_reference(project, version, scores.folder)
            decision = replace(decision, commit=project.commit)
        return decisions.apply(project, version, decision)


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


def _compared_with(gate: Facts) -> int | None:
    """The version that was champion when the gate decided."""
    return (gate["champion"] or {}).get("version")


def _register(
    run: Run, pulled: Artifact, validated: Artifact, trained: Artifact, scores: Artifact
) -> ModelVersion:
    """Packages a model and registers it, with its lineage and an example of its answers.

    Raises:
        ValueError: The package is not the one that was evaluated.
    """
    project, name = run.project, run.workload.name
    classes, facts, model = validated.facts["classes"], scores.facts, trained.folder / "model"
    temporary = Processes(project.store).temporary()
    with versions.lock(project), TemporaryDirectory(dir=temporary) as folder:
        if found := versions.find_version(project, name, facts["package"]):
            return found  # another run has registered it meanwhile
        package_folder = Path(folder) / "package"
        write_package(model, facts["precision"], classes, package_folder)
        if package.digest_of_folder(package_folder) != facts["package"]:
            raise ValueError(
                "The weights, or models/, have changed since the model was evaluated; nothing is "
                "registered. Run again."
            )
        run_id = _run_of(project, name, trained)
        images = sample(open_images(pulled), validated.folder)
        example = Path(folder) / f"{facts['package']}.parquet"
        pq.write_table(example_of(package_folder, images, scores.folder), example)
        tracking.client(project).log_artifact(run_id, str(example), packages.EXAMPLES)
        history = lineage_of(run, pulled, validated, trained, scores, run_id)
        candidate = Candidate(
            name=name,
            weights=trained.facts["weights"],
            package_digest=facts["package"],
            train_digest=trained.digest,
            train_key=trained.key,
            start=trained.facts.get("start"),
            family=json.loads((model / models.MODEL).read_text(encoding="utf-8"))["family"],
            images=package.images_of(model),
            classes=package.classes_digest(classes),
            metrics=facts["metrics"],
            data=run.version.digest,
            commit=trained.provenance.get("commit"),
            run_id=run_id,
        )
        return versions.register(project, candidate, package_folder, history)


def _run_of(project: Project, name: str, trained: Artifact) -> str:
    """The MLflow run of a training; a new one, without its curves, if it was deleted.

    So it is if the training was made under another name: the package and the card that this name
    serves lie in that run, and are not to be written once more.
    """
    file = trained.folder / REPORT / "mlflow.json"
    run_id = str(json.loads(file.read_text(encoding="utf-8"))["run_id"])
    client = tracking.client(project)
    own = tracking.experiment(client, project, name, tracking.OF_TRAININGS.format(name))
    if not tracking.is_active(project, run_id) or client.get_run(run_id).info.experiment_id != own:
        run_id = tracking.start_run(project, name, trained.key, {}, "unknown")
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
