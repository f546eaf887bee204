"""The versions of a model in the registry: registers and finds them.

A workload is one registered model of MLflow, under its name. The ledger says which version is in
production, and the alias `champion` names it. A version has few tags; all else about it is its
record, an artifact of the run of its training: these attributes, the bytes of each file of its
package, and the lineage.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from retrain.errors import UsageError
from retrain.locks import locked
from retrain.project import Project
from retrain.registry import tracking
from retrain.registry.ledger import CHAMPION, LONGEST_REASON, REFERENCE, Ledger

PACKAGES, RECORDS = "packages", "lineage"  # folders of the run's artifacts
# The tags of a version.
PACKAGE, RECORD, BROKEN = "retrain.package_digest", "retrain.lineage", "retrain.broken"
VERDICT = "retrain.verdict"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model that may be registered.

    Attributes:
        name: The name of the workload.
        weights: SHA-256 (hex) of the weights.
        package_digest: SHA-256 (hex) of what is served: the model, its precision and its code. It
            identifies a version.
        train_digest: Digest of the output of `train`: weights, labels, image size.
        train_key: The key of the training in the store; None in the copy of a clone that trains a
            version again.
        start: SHA-256 (hex) of the weights that the training started from; None for new ones.
        family: The module in `models/` with its network.
        images: `size`, `channels`, `resize` and `resampling` of its input images, and `mean` and
            `std` of each channel.
        classes: SHA-256 (hex) of its class names.
        metrics: The metrics of its evaluation when it was registered, by name.
        data: The version of the data that it was trained on; None if unknown.
        commit: The git commit that trained it; None if unknown.
        run_id: The MLflow run of its training.
    """

    name: str
    weights: str
    package_digest: str
    train_digest: str
    train_key: str | None = None
    start: str | None = None
    family: str
    images: Mapping[str, Any]
    classes: str
    metrics: Mapping[str, float]
    data: str | None = None
    commit: str | None = None
    run_id: str


@dataclass(frozen=True, kw_only=True)
class ModelVersion(Candidate):
    """A model in the registry.

    Attributes:
        version: The number of the version, from 1.
        aliases: `champion`, if it is that, and aliases that people have added.
        verdict: The last verdict of the gate on it; None before the first.
        created: When it was registered (ISO 8601, UTC).
        broken: Why it was set aside as the reference; None if it was not.
        lineage: SHA-256 (hex) of its record, which has how it came about.
    """

    version: int
    aliases: tuple[str, ...]
    verdict: str | None = None
    created: str
    broken: str | None = None
    lineage: str = ""

    @property
    def title(self) -> str:
        """The name and number of the version, for a sentence."""
        return f"{self.name} version {self.version}"

    def public(self) -> dict[str, Any]:
        """All attributes as JSON-able values."""
        return asdict(self)

    def identity(self) -> dict[str, Any]:
        """The version's name, number and package, for a document about what it was used for."""
        return {"name": self.name, "version": self.version, "package": self.package_digest}


@contextmanager
def lock(project: Project) -> Iterator[None]:
    """Lets only one run of this clone read and change the registry at a time.

    It only spares work: other clones may use the same registry, and the ledger keeps them apart.
    """
    project.state.mkdir(parents=True, exist_ok=True)
    with locked(project.state / ".registry.lock", purpose="Waits for the registry"):
        yield


def champion(project: Project, name: str) -> ModelVersion | None:
    """The version in production, by the ledger; None when there is none.

    Raises:
        ValueError: It was deleted, or the registered model was; or a person has given the alias to
            a version before there were decisions. Nothing may be decided about the model then.
    """
    ledger = tracking.read_model(project, name)
    number = ledger.selectors.get(CHAMPION)
    is_gone = number and (number not in ledger.versions or ledger.champion is None)
    if ledger.lost or is_gone:
        raise ValueError(ledger.fault)
    return of(project, ledger, number) if number else None


def reference(project: Project, name: str) -> ModelVersion | None:
    """The best version so far, by its alias; None when there is none."""
    ledger = tracking.read_model(project, name)
    number = ledger.aliases.get(REFERENCE)
    return of(project, ledger, number) if number else None


def parse_reference(text: str) -> tuple[str, str]:
    """Parses the name of a version: `vit@champion`, `vit@7`, or `vit`, which is its champion.

    Returns:
        The name of the model, and the alias or the number, as `find` takes them.

    Raises:
        UsageError: The text is written in another way.
    """
    name, at, selector = text.partition("@")
    if not name or (at and not selector):
        raise UsageError(f"{text!r} names no version. Write NAME, NAME@ALIAS or NAME@NUMBER.")
    return name, selector or CHAMPION


def find(project: Project, name: str, selector: str) -> ModelVersion:
    """The version with a number or an alias.

    Raises:
        UsageError: There is none; the message says which there are.
    """
    ledger = tracking.read_model(project, name)
    if ledger.lost:
        raise UsageError(ledger.lost)
    named = ledger.selectors
    number = named.get(selector, int(selector) if selector.isdecimal() else 0)
    if number in ledger.versions:
        return of(project, ledger, number)
    if not ledger.versions:
        raise UsageError(f"{name} has no registered model yet: retrain train {name}")
    selectors = [str(version) for version in sorted(ledger.versions)] + sorted(named)
    lacks = "champion" if selector == CHAMPION else f"version {selector!r}"
    why = f" See: retrain status {name}" if selector == CHAMPION else ""
    raise UsageError(f"{name} has no {lacks}. There are: {', '.join(selectors)}.{why}")


def find_version(project: Project, name: str, package_digest: str) -> ModelVersion | None:
    """The version with a package; None when there is none with its record."""
    ledger = tracking.read_model(project, name)
    for number in numbers(ledger):
        if ledger.versions[number].tags[PACKAGE] == package_digest:
            with suppress(ValueError):  # its record is gone: such a package is registered again
                return of(project, ledger, number)
    return None


def find_by_weights(project: Project, name: str, weights: str) -> ModelVersion | None:
    """A version with certain weights (SHA-256, hex), and its package; None when there is none."""
    return next((each for each in every_of(project, name) if each.weights == weights), None)


def get(project: Project, name: str, number: int) -> ModelVersion | None:
    """A version by its number; None when there is none.

    Raises:
        ValueError: The version was not registered by this project.
    """
    ledger = tracking.read_model(project, name)
    return of(project, ledger, number) if number in ledger.versions else None


def every_of(project: Project, name: str) -> list[ModelVersion]:
    """The versions of a model that this project has registered, the newest first.

    Those whose record is gone, which `retrain verify` names, are left out.
    """
    ledger, found = tracking.read_model(project, name), []
    for number in numbers(ledger):
        with suppress(ValueError):
            found.append(of(project, ledger, number))
    return found


def numbers(ledger: Ledger) -> list[int]:
    """The versions of a model that this project has registered, the newest first."""
    own = [number for number, row in ledger.versions.items() if PACKAGE in row.tags]
    return sorted(own, reverse=True)


def register(
    project: Project,
    candidate: Candidate,
    package: Path,
    lineage: Mapping[str, Any] | None = None,
) -> ModelVersion:
    """Uploads a model and registers it as a version, without an alias.

    If a call was killed, the same call uploads it once more, to the same place.

    Args:
        project: The clone that the registry belongs to.
        candidate: The model's description.
        package: A folder as `mlflow.pyfunc.save_model` writes it, with the model in
            `packages.MODEL`.
        lineage: How it came about, for its record.
    """
    client, name, run = tracking.client(project), candidate.name, candidate.run_id
    place = f"{PACKAGES}/{candidate.package_digest}"
    client.log_artifacts(run, str(package), place)
    files = [path for path in package.rglob("*") if path.is_file()]
    sizes = {path.relative_to(package).as_posix(): path.stat().st_size for path in files}
    values = {"version": asdict(candidate), "files": sizes, **(lineage or {})}
    if fault := project.git_fault():
        tracking.tell(fault)
    text = json.dumps(values, indent=1, sort_keys=True, allow_nan=False) + "\n"
    record = hashlib.sha256(text.encode()).hexdigest()
    client.log_text(run, text, f"{RECORDS}/{record}.json")
    ledger_run(project, name)
    created = client.create_model_version(
        name,
        # Not `runs:/<id>`: MLflow's store would resolve that at the process's global address.
        source=f"{client.get_run(run).info.artifact_uri}/{place}",
        run_id=run,
        tags={PACKAGE: candidate.package_digest, RECORD: record},
    )
    return of(project, tracking.read_model(project, name), int(created.version))


def ledger_run(project: Project, name: str) -> str:
    """Finds the run of a model's ledger; the first time, creates it and the registered model.

    The registered model is created with the tag that names the run. Only one of several machines
    can do that; the others take its run.

    Returns:
        The id of the run.

    Raises:
        ValueError: There are decisions, and the registered model was deleted.
    """
    from mlflow.exceptions import MlflowException

    ledger, client = tracking.read_model(project, name), tracking.client(project)
    if ledger.lost:
        raise ValueError(ledger.lost)
    if ledger.run:
        return ledger.run
    place = tracking.experiment(client, project, tracking.DECISIONS, tracking.OF_LEDGERS)
    tags = {tracking.LEDGER_OF: name}
    run = str(client.create_run(place, None, tags, name).info.run_id)
    client.update_run(run, "FINISHED")  # else it would seem to go on
    about = (
        f"The models of the workload {name}. The alias `champion` names the one in production; "
        "only Retrain moves it. How each came about, and why it was promoted or not: "
        f"`retrain history {name}`, `retrain lineage {name}@NUMBER --card`."
    )
    with suppress(MlflowException):  # another machine was faster, or a person has made it
        client.create_registered_model(name, {tracking.LEDGER_RUN: run}, about)
    taken = client.get_registered_model(name).tags.get(tracking.LEDGER_RUN)
    if taken is None:
        client.set_registered_model_tag(name, tracking.LEDGER_RUN, run)
        return run
    if taken != run:
        client.delete_run(run)
    return str(taken)


def mark_broken(project: Project, version: ModelVersion, why: str) -> None:
    """Marks a version that does not answer; as the reference it is compared with nothing."""
    client, number = tracking.client(project), str(version.version)
    client.set_model_version_tag(version.name, number, BROKEN, why[:LONGEST_REASON])


def read_record(project: Project, version: ModelVersion) -> dict[str, Any]:
    """The record of a version.

    Raises:
        ValueError: The record is gone, or was changed.
    """
    row = tracking.read_model(project, version.name).versions[version.version]
    return _record(project, version.version, row.run_id, row.source, version.lineage)


def _record(project: Project, number: int, run_id: str, source: str, record: str) -> dict[str, Any]:
    path = f"{RECORDS}/{record}.json"
    package = tracking.local_path(source)
    if package:  # MLflow is not asked, which takes long to import
        file = package.parents[1] / path
        content = file.read_bytes() if file.is_file() else None
    else:
        content = tracking.read_artifact(project, run_id, path)
    if content is None or hashlib.sha256(content).hexdigest() != record:
        raise ValueError(
            f"version {number}: the record of its lineage, {path} of MLflow run {run_id}, "
            f"{'is gone' if content is None else 'was changed'}: take it from a backup of MLflow"
        )
    return dict(json.loads(content))


def of(project: Project, ledger: Ledger, number: int) -> ModelVersion:
    """A version of a model that was read.

    Raises:
        ValueError: It was not registered by this project, or its record is gone or was changed.
    """
    row = ledger.versions[number]
    if PACKAGE not in row.tags:
        raise ValueError(
            f"Version {number} of the registered model {ledger.name} was not registered by "
            f"Retrain. Remove its aliases in MLflow."
        )
    record = row.tags[RECORD]
    values = _record(project, number, row.run_id, row.source, record)["version"]
    aliases = ledger.selectors.items()
    return ModelVersion(
        **values | {"name": ledger.name, "run_id": row.run_id},
        version=number,
        aliases=tuple(sorted(alias for alias, of in aliases if of == number)),
        verdict=row.tags[VERDICT].partition(" (")[0] if VERDICT in row.tags else None,
        created=datetime.fromtimestamp(row.created / 1000, UTC).isoformat(timespec="seconds"),
        broken=row.tags.get(BROKEN),
        lineage=record,
    )
