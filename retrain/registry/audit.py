"""Checks whether the ledgers of all models, and the lineages of versions, are as they were written.

Each entry names the one before it and its document by their SHA-256. So an entry that was changed,
taken out or put in does not fit those around it, and the last one not the tag of the registered
model that names it. The record of a lineage has its SHA-256 as a tag of the version.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from retrain import tracking
from retrain.project import Project
from retrain.registry import decisions, ledger, lineage, versions

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
    """What is wrong in the ledgers of all models of the registry."""
    return [
        Fault(model.name, what)
        for client, model in _models(project)
        for what in _faults(project, client, model)
    ]


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
    first = ledger.read(model.name, _old(model), {}, None).next
    wrong = list(_broken_chain(found.data.params, first, model.tags.get(ledger.DONE, "")))
    yield from wrong
    try:
        written = ledger.read(model.name, model.tags, found.data.params, found.info.artifact_uri)
    except ValueError:
        if not wrong:
            raise
        return
    for entry in written.entries:
        if not entry.document:
            continue
        place = f"the document of entry {entry.number}, {ledger.DOCUMENTS}/{entry.document}.json,"
        document = decisions.document(project, written, entry.document)
        if document is None:
            yield f"{place} is gone"
        elif hashlib.sha256(document).hexdigest() != entry.document:
            yield f"{place} was changed"
    if not wrong and not written.unfinished and (last := written.appointment):
        champion = versions.champion_of(model)
        if champion != last.version:
            now = f"version {champion} has" if champion else "no version has"
            yield (
                f"{now} the alias {versions.CHAMPION}, but the ledger says version {last.version}: "
                "somebody has moved it"
            )


def _broken_chain(params: dict[str, str], first: int, done: str) -> Iterator[str]:
    """Where the entries do not follow each other.

    Args:
        params: The parameters of the ledger's run.
        first: The number of its first entry.
        done: The number and the digest of an entry, as the registered model's tag has them.
    """
    entries = {}
    for key, value in sorted(params.items()):
        try:
            assert key == f"{int(key):06d}"
            entries[int(key)] = json.loads(value)["before"]
        except (AssertionError, ValueError, TypeError, KeyError):
            yield f"entry {key} was changed, or it is none"
    digest = {number: ledger.sha256_of(params[f"{number:06d}"]) for number in entries}
    last = max(entries, default=first - 1)
    place, _, seal = done.partition(" ")
    sealed = int(place) if place.isdecimal() else first - 1
    for number in range(first, max(last, sealed) + 1):
        if f"{number:06d}" not in params:
            yield f"entry {number} is gone"
    for number in entries:
        if number < first:
            yield f"entry {number} was put in"
        elif number == first and entries[number] != "":
            yield f"entry {number} was changed: it follows another one, and should be the first"
        elif number > first and entries[number] != digest.get(number - 1, entries[number]):
            yield f"entry {number - 1} or {number} was changed: the one does not follow the other"
    if sealed in digest and digest[sealed] != seal:
        yield f"entry {sealed} was changed since it was carried out"


def _old(model: "RegisteredModel") -> dict[str, str]:
    return {key: value for key, value in model.tags.items() if key.startswith(ledger.OLD)}


def _was_decided(client: "MlflowClient", model: "RegisteredModel") -> bool:
    """Whether a version has the verdict of a decision."""
    found = client.search_model_versions(f"name = '{model.name}'")
    return any("retrain.verdict" in version.tags for version in found)
