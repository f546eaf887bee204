"""Checks whether the ledgers of all models, and the lineages of versions, are as they were written.

Each entry names the one before it and its document by their SHA-256. So an entry that was changed,
taken out or put in does not fit those around it, and the last one not the tag of the registered
model that names it. The record of a lineage has its SHA-256 as a tag of the version.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from retrain import tracking
from retrain.project import Project
from retrain.registry import decisions, heads, ledger, lineage, trust, versions
from retrain.registry.ledger import Ledger

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import RegisteredModel


@dataclass(frozen=True)
class Fault:
    """Something wrong in the ledger of a model, or with the lineage of a version.

    Attributes:
        model: The name of the model.
        what: It in one sentence.
    """

    model: str
    what: str


def faults(project: Project) -> list[Fault]:
    """What is wrong in the ledgers of all models, of the registry or with a head in the project."""
    found = {
        model.name: list(_faults(project, client, model)) for client, model in _models(project)
    }
    for name in heads.names(project):
        if name not in found:
            what = heads.fault(project, name, heads.read(project, name), Ledger())
            found[name] = [what] if what else []
    return [Fault(name, what) for name, faults in found.items() for what in faults]


def lineage_faults(project: Project) -> list[Fault]:
    """What is wrong with the records of the lineage of all versions of the registry."""
    found = []
    for client, model in _models(project):
        for each in client.search_model_versions(f"name = '{model.name}'"):
            if "retrain.lineage" not in each.tags:
                continue
            version = versions.get(project, model.name, int(each.version))
            if version and (what := lineage.fault(project, version)):
                found.append(Fault(model.name, f"version {version.version}: {what}"))
    return found


def _models(project: Project) -> "Iterator[tuple[MlflowClient, RegisteredModel]]":
    """All models of the registry; no database is made for that."""
    path = project.tracking_uri.removeprefix("sqlite:///")
    if path != project.tracking_uri and not Path(path.partition("?")[0]).exists():
        return
    client, token = tracking.client(project), None
    while True:
        page = client.search_registered_models(max_results=100, page_token=token)
        yield from ((client, model) for model in page)
        token = page.token
        if not token:
            return


def _faults(project: Project, client: "MlflowClient", model: "RegisteredModel") -> Iterator[str]:
    from mlflow.exceptions import MlflowException

    run = model.tags.get(ledger.RUN)
    if run is None:
        if _was_decided(client, model) and not any(
            tag.startswith(ledger.OLD) for tag in model.tags
        ):
            yield f"its ledger is gone: the tag {ledger.RUN} was removed"
        return
    try:
        found = client.get_run(run)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        yield f"its ledger is gone: there is no MLflow run {run}"
        return
    if found.info.lifecycle_stage == "deleted":
        yield ledger.deleted(run)
    head = heads.read(project, model.name)
    params = client.get_run(run).data.params
    try:
        written = ledger.read(model.name, model.tags, params, found.info.artifact_uri)
    except ValueError:
        first = ledger.read(model.name, _old(model), {}, None).next
        yield from ledger.broken_chain(params, first, model.tags.get(ledger.DONE, ""))
        return
    wrong = list(trust.faults(project, model.name, head, written))
    yield from wrong
    for entry in written.entries:
        if not entry.document:
            continue
        place = f"the document of entry {entry.number}, {ledger.DOCUMENTS}/{entry.document}.json,"
        document = decisions.document(project, written, entry.document)
        if document is None:
            yield f"{place} is gone"
        elif hashlib.sha256(document).hexdigest() != entry.document:
            yield f"{place} was changed"
    if top := trust.unsigned(project, model.name, head, written):
        yield decisions.unsigned(model.name, top)
    elif left := trust.stranger(project, model.name, head, written):
        yield decisions.left_over(model.name, left)
    if not wrong and not written.unfinished:
        yield from _moved(model, written)
        yield from _replaced(project, model.name, written)


def _moved(model: "RegisteredModel", written: Ledger) -> Iterator[str]:
    """The aliases that are not where the ledger says."""
    said = {versions.CHAMPION: written.appointment, versions.REFERENCE: written.best}
    for alias, entry in said.items():
        now = model.aliases.get(alias)
        if entry and (now is None or int(now) != entry.version):
            has = f"version {now} has" if now else "no version has"
            yield (
                f"{has} the alias {alias}, but the ledger says version {entry.version}: somebody "
                "has moved it"
            )


def _replaced(project: Project, name: str, written: Ledger) -> Iterator[str]:
    """The versions that were decided about with another package than they have now."""
    packages = {entry.version: entry.package for entry in written.entries if entry.package}
    for number, package in packages.items():
        version = versions.get(project, name, number)
        if version and version.package_digest != package:
            yield f"version {number} has another package than was decided about"


def _old(model: "RegisteredModel") -> dict[str, str]:
    return {key: value for key, value in model.tags.items() if key.startswith(ledger.OLD)}


def _was_decided(client: "MlflowClient", model: "RegisteredModel") -> bool:
    """Whether a version has the verdict of a decision."""
    found = client.search_model_versions(f"name = '{model.name}'")
    return any("retrain.verdict" in version.tags for version in found)
