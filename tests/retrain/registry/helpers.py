"""Versions and decisions of a registry."""

import hashlib
from dataclasses import fields
from pathlib import Path

from retrain.project import Project
from retrain.registry import decisions, packages, tracking, versions
from retrain.registry.ledger import Decision
from retrain.registry.versions import Candidate

WEIGHTS = b"weights of "
RULES = ({"rule": "accuracy >= 0.9", "value": 0.95, "bound": 0.9, "passed": True},)


def register(project: Project, name: str, model: str, root: Path):
    """Registers a model whose training gave `model`."""
    from mlflow.models import Model

    package = root / f"package-{model}"
    (package / packages.MODEL).mkdir(parents=True)
    weights = WEIGHTS + model.encode()
    (package / packages.MODEL / packages.WEIGHTS).write_bytes(weights)
    Model().save(package / "MLmodel")
    candidate = Candidate(
        name=name,
        weights=hashlib.sha256(weights).hexdigest(),
        package_digest=f"package-{model}",
        train_digest=model,
        train_key=None,
        start=None,
        family="vit",
        images={"size": 8, "channels": 1, "resize": "crop"},
        classes="ant and bee",
        metrics={"accuracy": 0.95},
        data="data-1",
        commit="c0ffee",
        run_id=tracking.start_run(project, name, model, {}, "digest"),
    )
    return versions.register(project, candidate, package)


def candidate_of(version) -> Candidate:
    return Candidate(**{field.name: getattr(version, field.name) for field in fields(Candidate)})


def decision(version: int, action: str = "promoted", previous: int | None = None, **more):
    verdict = "not better" if action == "rejected" else "better"
    given = {"document": {"rules": RULES}, "data": "data-1", "commit": "c0ffee", "run": "run-1"}
    given["training"] = f"training {version}"
    return Decision(action, version, previous, verdict, **given | more)


def history(project: Project, name: str):
    return decisions.read(project, name).entries
