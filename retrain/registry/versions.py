"""The versions of a model in the registry: registers and finds them.

A workload is one registered model of MLflow, under its name. The alias `champion` names the version
in production; `decisions` moves it, and the ledger records how it got there.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from retrain import tracking
from retrain.errors import UsageError
from retrain.locks import locked
from retrain.project import Project
from retrain.registry import snapshot
from retrain.registry.ledger import LONGEST_REASON, compact

CHAMPION = "champion"
REFERENCE = "reference"  # the best so far: what is promoted must not be worse than that either
TRAINING = "retrain.train_digest"  # a tag of each version that this project has registered
PACKAGES = "packages"  # the folder of the run's artifacts
# The attributes that are JSON in their tags.
JSON = {"images", "metrics", "latency", "min_confidence"}


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model that may be registered.

    Attributes:
        name: The name of the workload.
        weights: SHA-256 (hex) of the weights.
        package_digest: SHA-256 (hex) of what is served: the model, its precision, its threshold and
            its code. It identifies a version.
        min_confidence: The least confidence of an answer that it accepts; None if it does not say.
        train_digest: Digest of the output of `train`: weights, labels, image size.
        train_key: The key of the training in the store; None in the copy of a clone that trains a
            version again, like `lineage`.
        start: SHA-256 (hex) of the weights that the training started from; None for new ones.
        family: The module in `models/` with its network.
        images: `size`, `channels`, `resize` and `resampling` of its input images, and `mean` and
            `std` of each channel.
        classes: SHA-256 (hex) of its class names.
        metrics: The metrics of its evaluation when it was registered, by name.
        data: The version of the data that it was trained on; None if unknown.
        commit: The git commit that trained it; None if unknown.
        run_id: The MLflow run of its training.
        lineage: SHA-256 (hex) of the record of how it came about (`retrain.registry.lineage`).
    """

    name: str
    weights: str
    package_digest: str
    min_confidence: float | None = None
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
    lineage: str | None = None


@dataclass(frozen=True)
class Latency:
    """How long a version took for a single image when it was loaded as a server would load it.

    Attributes:
        p50: Milliseconds; half of the calls took no longer (nearest rank).
        p95: Milliseconds; 95 % of the calls took no longer (nearest rank).
        calls: The number of calls, of one image each.
        threads: The number of threads that PyTorch calculated with.
        device: `cpu`, or the name of the GPU.
    """

    p50: float
    p95: float
    calls: int
    threads: int
    device: str

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return (
            f"p95 of a single image: {milliseconds(self.p95)} (p50 {milliseconds(self.p50)}; "
            f"{self.calls} calls, {threads}, {self.device})"
        )


def milliseconds(value: float) -> str:
    """A time for people: `12.3 ms`."""
    return f"{value:.2f} ms" if value < 10 else f"{value:.1f} ms"


@dataclass(frozen=True, kw_only=True)
class ModelVersion(Candidate):
    """A model in the registry.

    Attributes:
        version: The number of the version, from 1.
        aliases: `champion`, if it is that, and aliases that people have added.
        verdict: The last verdict of the gate on it; None before the first.
        created: When it was registered (ISO 8601, UTC).
        broken: Why it was set aside as the reference; None if it was not.
        latency: How fast it was in the last check before a promotion; None before the first.
    """

    version: int
    aliases: tuple[str, ...]
    verdict: str | None = None
    created: str
    broken: str | None = None
    latency: Latency | None = None

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
    """The version in production; None when there is none.

    Raises:
        ValueError: The version was not registered by this project.
    """
    return _of_alias(project, name, CHAMPION)


def reference(project: Project, name: str) -> ModelVersion | None:
    """The best version so far; None when there is none. It raises the errors of `champion`."""
    return _of_alias(project, name, REFERENCE)


def _of_alias(project: Project, name: str, alias: str) -> ModelVersion | None:
    model = snapshot.read(project, name)
    return _read(model.versions[model.aliases[alias]], model) if alias in model.aliases else None


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
    model = snapshot.read(project, name)
    number = model.aliases.get(selector, int(selector) if selector.isdecimal() else 0)
    if number in model.versions:
        return _read(model.versions[number], model)
    if not model.versions:
        raise UsageError(f"{name} has no registered model yet: retrain train {name}")
    selectors = [str(version) for version in sorted(model.versions)] + sorted(model.aliases)
    lacks = "champion" if selector == CHAMPION else f"version {selector!r}"
    why = f" See: retrain status {name}" if selector == CHAMPION else ""
    raise UsageError(f"{name} has no {lacks}. There are: {', '.join(selectors)}.{why}")


def find_version(project: Project, name: str, package_digest: str) -> ModelVersion | None:
    """The version with a package; None when the package is not registered."""
    return _find(project, name, "package_digest", package_digest)


def find_by_weights(project: Project, name: str, weights: str) -> ModelVersion | None:
    """A version with certain weights (SHA-256, hex), and its package; None when there is none."""
    return _find(project, name, "weights", weights)


def _find(project: Project, name: str, tag: str, value: str) -> ModelVersion | None:
    """The version with a tag; the one that was changed last, if there are several."""
    model = snapshot.read(project, name)
    for version in model.versions.values():
        if version.tags.get(f"retrain.{tag}") == value:
            return _read(version, model)
    return None


def get(project: Project, name: str, number: int) -> ModelVersion | None:
    """A version by its number; None when there is none.

    Raises:
        ValueError: The version was not registered by this project.
    """
    model = snapshot.read(project, name)
    return _read(model.versions[number], model) if number in model.versions else None


def every(project: Project) -> list[ModelVersion]:
    """All versions of all models that this project has registered."""
    return [version for name in snapshot.names(project) for version in every_of(project, name)]


def every_of(project: Project, name: str) -> list[ModelVersion]:
    """All versions of a model that this project has registered, the newest first."""
    model = snapshot.read(project, name)
    return [
        _read(version, model)
        for _, version in sorted(model.versions.items(), reverse=True)
        if TRAINING in version.tags
    ]


def register(project: Project, candidate: Candidate, package: Path) -> ModelVersion:
    """Uploads a model and registers it as a version, without an alias.

    If a call was killed, the same call uploads it once more, to the same place.

    Args:
        project: The clone that the registry belongs to.
        candidate: The model's description.
        package: A folder as `mlflow.pyfunc.save_model` writes it, with the model in
            `packages.MODEL`.
    """
    client = tracking.client(project)
    place = f"{PACKAGES}/{candidate.package_digest}"
    client.log_artifacts(candidate.run_id, str(package), place)
    snapshot.find_or_create(client, project, candidate.name)
    tags = {
        f"retrain.{name}": value if isinstance(value, str) else compact(value)
        for name, value in asdict(candidate).items()
        if name not in ("name", "run_id") and value is not None
    }
    created = client.create_model_version(
        candidate.name,
        # Not `runs:/<id>`: MLflow's store would resolve that at the process's global address.
        source=f"{client.get_run(candidate.run_id).info.artifact_uri}/{place}",
        run_id=candidate.run_id,
        tags=tags,
    )
    registered = get(project, candidate.name, int(created.version))
    assert registered is not None
    return registered


def mark_broken(project: Project, version: ModelVersion, why: str) -> None:
    """Marks a version that does not answer; as the reference it is compared with nothing."""
    client, number = tracking.client(project), str(version.version)
    client.set_model_version_tag(version.name, number, "retrain.broken", why[:LONGEST_REASON])


def note_latency(project: Project, version: ModelVersion, latency: Latency) -> ModelVersion:
    """Notes how fast a version was in the check before a promotion."""
    client, number = tracking.client(project), str(version.version)
    value = compact(asdict(latency))
    client.set_model_version_tag(version.name, number, "retrain.latency", value)
    return replace(version, latency=latency)


def _read(version: snapshot.Version, model: snapshot.Model) -> ModelVersion:
    if TRAINING not in version.tags:
        raise ValueError(
            f"Version {version.version} of the registered model {version.name} was not registered "
            f"by Retrain. Give the alias {CHAMPION!r} to one that was."
        )
    tags = {
        attribute.name: version.tags[f"retrain.{attribute.name}"]
        for attribute in fields(ModelVersion)
        if f"retrain.{attribute.name}" in version.tags
    }
    values: dict[str, Any] = tags | {name: json.loads(tags[name]) for name in JSON & tags.keys()}
    if "latency" in values:
        values["latency"] = Latency(**values["latency"])
    created = datetime.fromtimestamp(version.creation_timestamp / 1000, UTC)
    details = {
        "name": version.name,
        "version": version.version,
        "run_id": version.run_id,
        "aliases": tuple(
            sorted(name for name, number in model.aliases.items() if number == version.version)
        ),
        "created": created.isoformat(timespec="seconds"),
    }
    return ModelVersion(**values | details)
