"""Checks whether the ledgers of all models, and the lineages of versions, are as they were written.

Each entry names the one before it and its document by their SHA-256. So an entry that was changed,
taken out or put in does not fit those around it, and the last one not the tag of the registered
model that names it. The record of a lineage has its SHA-256 as a tag of the version.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from retrain import tracking
from retrain.project import Project
from retrain.registry import decisions, lineage, snapshot, trust, versions
from retrain.registry.ledger import Ledger


@dataclass(frozen=True)
class Fault:
    """Something wrong in the ledger of a model, or with the lineage of a version.

    Attributes:
        model: The name of the model.
        what: What is wrong, in one sentence.
    """

    model: str
    what: str


def faults(project: Project) -> list[Fault]:
    """What is wrong in the ledgers of all models, of the registry or with a head in the project."""
    names = sorted({*snapshot.names(project), *trust.names(project)})
    return [Fault(name, fault) for name in names for fault in _faults(project, name)]


def lineage_faults(project: Project) -> list[Fault]:
    """What is wrong with the records of the lineage of all versions of the registry."""
    faults_found = []
    for version in versions.every(project):
        try:
            lineage.read(project, version)
        except ValueError as error:
            faults_found.append(Fault(version.name, str(error)))
    return faults_found


def _faults(project: Project, name: str) -> Iterator[str]:
    model = snapshot.read(project, name)
    if lost := _lost(project, model):
        yield lost
        return
    try:
        standing = trust.look(project, name)
    except ValueError as error:
        yield str(error)
        return
    yield from standing.faults
    yield from _documents(project, standing.ledger)
    if standing.unsigned:
        yield standing.forged
    if not standing.faults and not standing.ledger.unfinished:
        yield from _moved(model, standing.ledger)
        yield from _replaced(project, standing.ledger)


def _lost(project: Project, model: snapshot.Model) -> str | None:
    """How the run of a ledger was lost; None if it is there, or if there never was one."""
    run = model.tags.get(snapshot.LEDGER_RUN)
    ledger_run = tracking.find_run(project, run) if run else None
    if run and ledger_run:
        return decisions.deleted(run) if ledger_run.info.lifecycle_stage == "deleted" else None
    decided = any("retrain.verdict" in version.tags for version in model.versions.values())
    lost = f"its ledger is gone: the tag {snapshot.LEDGER_RUN} of the model names no MLflow run"
    return lost if run or decided else None


def _documents(project: Project, model_ledger: Ledger) -> Iterator[str]:
    """The documents of decisions that are gone or were changed."""
    for entry in model_ledger.entries:
        try:
            decisions.document_of(project, model_ledger, entry)
        except ValueError as error:
            yield str(error)


def _moved(model: snapshot.Model, model_ledger: Ledger) -> Iterator[str]:
    """The aliases that are not where the ledger says."""
    expected = {versions.CHAMPION: model_ledger.appointment, versions.REFERENCE: model_ledger.best}
    for alias, entry in expected.items():
        number = model.aliases.get(alias)
        if entry and number != entry.version:
            has = f"version {number} has" if number else "no version has"
            yield (
                f"{has} the alias {alias}, but the ledger says version {entry.version}: somebody "
                "has moved it"
            )


def _replaced(project: Project, model_ledger: Ledger) -> Iterator[str]:
    """The versions that were decided about with another package than they have now."""
    packages = {entry.version: entry.package for entry in model_ledger.entries if entry.package}
    for number, package in packages.items():
        version = versions.get(project, model_ledger.name, number)
        if version and version.package_digest != package:
            yield f"version {number} has another package than was decided about"
