"""The versions of a model in the registry: registers and finds them.

A workload is one registered model of MLflow, under its name. The alias `champion` names the version
in production; `decisions` moves it, and the ledger records how it got there.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrain import tracking
from retrain.errors import UsageError
from retrain.locks import locked
from retrain.project import Project
from retrain.registry import ledger, sqlite_reader
from retrain.registry.ledger import LONGEST_REASON

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel
    from mlflow.entities.model_registry import ModelVersion as MlflowVersion, RegisteredModel

CHAMPION = "champion"
REFERENCE = "reference"  # the best so far: what is promoted must not be worse than that either


@dataclass(frozen=True)
class Candidate:
    """A model that may be registered.

    Attributes:
        name: The name of the workload.
        weights: SHA-256 (hex) of the weights.
        package_digest: SHA-256 (hex) of what is served: the model, its precision and its code. It
            identifies a version; None for old versions, which were registered without it.
        train_digest: Digest of the output of `train`: weights, labels, image size.
        train_key: The key of the training in the store; None for old versions.
        start: SHA-256 (hex) of the weights that the training started from; None for new ones.
        family: The module in `models/` with its network.
        images: `size`, `channels`, `resize` and `resampling` of its input images, and `mean` and
            `std` of each channel; old versions have the first three only.
        classes: SHA-256 (hex) of its class names; None for old versions.
        metrics: The metrics of its evaluation when it was registered, by name.
        data: The version of the data that it was trained on; None if unknown.
        commit: The git commit that trained it; None if unknown.
        run_id: The MLflow run of its training.
        lineage: SHA-256 (hex) of the record of how it came about (`retrain.registry.lineage`); None
            for old versions.
    """

    name: str
    weights: str
    package_digest: str | None
    train_digest: str
    train_key: str | None
    start: str | None
    family: str
    images: Mapping[str, Any]
    classes: str | None
    metrics: Mapping[str, float]
    data: str | None
    commit: str | None
    run_id: str
    lineage: str | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class Latency:
    """How long a version took for a single image when it was loaded as a server would load it.

    Attributes:
        p50: Milliseconds; half of the calls took no longer (nearest rank).
        p95: Milliseconds; 95 % of the calls took no longer (nearest rank).
        calls: How many there were, of one image each.
        threads: That PyTorch calculated with.
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


@dataclass(frozen=True)
class ModelVersion(Candidate):
    """A model in the registry.

    Attributes:
        version: Its number, from 1.
        aliases: `champion`, if it is that, and aliases that people have added.
        verdict: The last verdict of the gate on it; None before the first.
        created: When it was registered (ISO 8601, UTC).
        broken: Why it cannot be served; None if nothing is known against it.
        latency: Of the last check before a promotion; None before the first.
    """

    version: int
    aliases: tuple[str, ...]
    verdict: str | None
    created: str
    broken: str | None = None
    latency: Latency | None = None

    def public(self) -> dict[str, Any]:
        """All attributes as JSON-able values."""
        return asdict(self)

    def identity(self) -> dict[str, Any]:
        """Its name, number and package, for a document about what it was used for."""
        return {"name": self.name, "version": self.version, "package": self.package_digest}


@contextmanager
def lock(project: Project) -> Iterator[None]:
    """Lets only one run of this clone read and change the registry at a time.

    It only spares work: other clones may use the same registry, and the ledger keeps them apart.
    """
    project.state.mkdir(parents=True, exist_ok=True)
    with locked(project.state / ".registry.lock"):
        yield


def champion(project: Project, name: str) -> ModelVersion | None:
    """The version in production; None when there is none.

    Raises:
        ValueError: It was not registered by this project.
    """
    return _of_alias(project, name, CHAMPION)


def reference(project: Project, name: str) -> ModelVersion | None:
    """The best version so far; None when there is none.

    Raises:
        ValueError: As `champion` does.
    """
    return _of_alias(project, name, REFERENCE)


def _of_alias(project: Project, name: str, alias: str) -> ModelVersion | None:
    if stored := sqlite_reader.read(project.tracking_uri, name):
        number = stored.aliases.get(alias)
        return None if number is None else _read(stored.versions[number], stored)
    client = tracking.client(project)
    model = registered(client, name)
    if model is None or alias not in model.aliases:
        return None
    return _read(client.get_model_version(name, model.aliases[alias]), model)


def parse_reference(text: str) -> tuple[str, str]:
    """Parses what names a version: `vit@champion`, `vit@7`, or `vit`, which is its champion.

    Returns:
        The name of the model, and the alias or the number, as `find` takes them.

    Raises:
        UsageError: It is written otherwise.
    """
    name, at, wanted = text.partition("@")
    if not name or (at and not wanted):
        raise UsageError(f"{text!r} names no version. Write NAME, NAME@ALIAS or NAME@NUMBER.")
    return name, wanted or CHAMPION


def find(project: Project, name: str, wanted: str) -> ModelVersion:
    """The version with a number or an alias.

    Raises:
        UsageError: There is none; the message says which there are.
    """
    stored = sqlite_reader.read(project.tracking_uri, name)
    listed: dict[int, MlflowVersion | sqlite_reader.Version] = {}
    model: RegisteredModel | sqlite_reader.Model | None = stored
    if stored:
        listed.update(stored.versions)
    else:
        client = tracking.client(project)
        model = registered(client, name)
        found = client.search_model_versions(f"name = '{name}'", max_results=1000) if model else []
        listed.update((int(version.version), version) for version in found)
    aliases = {alias: int(number) for alias, number in model.aliases.items()} if model else {}
    number = aliases.get(wanted, int(wanted) if wanted.isdecimal() else None)
    if number in listed:
        assert model is not None
        return _read(listed[number], model)
    if not listed:
        raise UsageError(f"{name} has no registered model yet: retrain train {name}")
    known = [str(each) for each in sorted(listed)] + sorted(aliases)
    lacks = "champion" if wanted == CHAMPION else f"version {wanted!r}"
    why = f" See: retrain status {name}" if wanted == CHAMPION else ""
    raise UsageError(f"{name} has no {lacks}. There are: {', '.join(known)}.{why}")


def find_version(project: Project, name: str, package_digest: str) -> ModelVersion | None:
    """The version with a package; None when the package is not registered."""
    return next(iter(_find(project, name, "package_digest", package_digest)), None)


def find_by_weights(project: Project, name: str, weights: str) -> ModelVersion | None:
    """A version with certain weights (SHA-256, hex); None when there is none."""
    return next(iter(_find(project, name, "weights", weights)), None)


def of_training(project: Project, name: str, train_digest: str) -> list[int]:
    """The numbers of the versions that come from a training, in whatever package."""
    return [each.version for each in _find(project, name, "train_digest", train_digest)]


def _find(project: Project, name: str, tag: str, value: str) -> list[ModelVersion]:
    """The versions with a tag; the one that was changed last comes first."""
    if stored := sqlite_reader.read(project.tracking_uri, name):
        return [
            _read(version, stored)
            for version in stored.versions.values()
            if version.tags.get(f"retrain.{tag}") == value
        ]
    client = tracking.client(project)
    model = registered(client, name)
    if model is None:
        return []
    wanted = f"name = '{name}' AND tags.`retrain.{tag}` = '{value}'"
    return [_read(each, model) for each in client.search_model_versions(wanted)]


def get(project: Project, name: str, number: int) -> ModelVersion | None:
    """A version by its number; None when there is none.

    Raises:
        ValueError: It was not registered by this project.
    """
    from_file = sqlite_reader.read(project.tracking_uri, name)
    if from_file is not None:
        stored = from_file.versions.get(number)
        return _read(stored, from_file) if stored else None
    from mlflow.exceptions import MlflowException

    client = tracking.client(project)
    model = registered(client, name)
    try:
        return _read(client.get_model_version(name, str(number)), model) if model else None
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None


def register(project: Project, candidate: Candidate, package: Path) -> ModelVersion:
    """Uploads a model and registers it as a version, without an alias.

    If a call was killed, the same call continues with what was uploaded.

    Args:
        project: The clone that the registry belongs to.
        candidate: The model's description.
        package: A folder as `mlflow.pyfunc.save_model` writes it, with the model in
            `packages.MODEL`.
    """
    from mlflow.utils.mlflow_tags import MLFLOW_MODEL_VERSIONS

    client = tracking.client(project)
    uploaded = _upload(client, candidate, package)
    ledger.open_run(client, project, candidate.name)
    known = asdict(candidate)
    tags = {
        f"retrain.{name}": value if isinstance(value, str) else _compact(value)
        for name, value in known.items()
        if name not in ("name", "run_id") and value is not None
    }
    created = client.create_model_version(
        candidate.name,
        # Not `models:/<id>`: MLflow's store would resolve that at the process's global address.
        source=uploaded.artifact_location,
        run_id=candidate.run_id,
        tags=tags,
        model_id=uploaded.model_id,
    )
    # With this tag the run's page links to the version, as after `mlflow.register_model`.
    link = _compact([{"name": candidate.name, "version": created.version}])
    client.set_logged_model_tags(uploaded.model_id, {MLFLOW_MODEL_VERSIONS: link})
    model = registered(client, candidate.name)
    assert model is not None
    return _read(created, model)


def mark_broken(project: Project, version: ModelVersion, why: str) -> None:
    """Marks a version as one that cannot be served; it is never promoted."""
    client, number = tracking.client(project), str(version.version)
    client.set_model_version_tag(version.name, number, "retrain.broken", why[:LONGEST_REASON])


def note_latency(project: Project, version: ModelVersion, latency: Latency) -> ModelVersion:
    """Notes how fast a version was in the check before a promotion."""
    client, number = tracking.client(project), str(version.version)
    value = _compact(asdict(latency))
    client.set_model_version_tag(version.name, number, "retrain.latency", value)
    return replace(version, latency=latency)


def champion_of(model: "RegisteredModel | sqlite_reader.Model") -> int | None:
    """The number of the version in production; None when there is none."""
    number = model.aliases.get(CHAMPION)
    return None if number is None else int(number)


def registered(client: "MlflowClient", name: str) -> "RegisteredModel | None":
    """The registered model with its aliases and tags; None when there is none."""
    from mlflow.exceptions import MlflowException

    try:
        return client.get_registered_model(name)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise


def _read(
    version: "MlflowVersion | sqlite_reader.Version", model: "RegisteredModel | sqlite_reader.Model"
) -> ModelVersion:
    tags = {
        name.removeprefix("retrain."): value
        for name, value in version.tags.items()
        if name.startswith("retrain.")
    }
    if not {"train_digest", "family"} <= tags.keys():
        raise ValueError(
            f"Version {version.version} of the registered model {version.name} was not registered "
            f"by Retrain. Give the alias {CHAMPION!r} to one that was."
        )
    number = int(version.version)
    return ModelVersion(
        name=version.name,
        weights=tags["weights"],
        package_digest=tags.get("package_digest"),
        train_digest=tags["train_digest"],
        train_key=tags.get("train_key"),
        start=tags.get("start"),
        family=tags["family"],
        images=json.loads(tags["images"]),
        classes=tags.get("classes"),
        metrics=json.loads(tags["metrics"]),
        data=tags.get("data"),
        commit=tags.get("commit"),
        run_id=version.run_id,
        lineage=tags.get("lineage"),
        version=number,
        aliases=tuple(sorted(a for a, of in model.aliases.items() if int(of) == number)),
        verdict=tags.get("verdict"),
        created=datetime.fromtimestamp(version.creation_timestamp / 1000, UTC).isoformat(
            timespec="seconds"
        ),
        broken=tags.get("broken"),
        latency=Latency(**json.loads(tags["latency"])) if "latency" in tags else None,
    )


def _upload(client: "MlflowClient", candidate: Candidate, package: Path) -> "LoggedModel":
    """Uploads a packaged model to the run of its training, once."""
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus
    from mlflow.models import Model

    experiment = client.get_run(candidate.run_id).info.experiment_id
    found = client.search_logged_models(
        [experiment],
        f"source_run_id = '{candidate.run_id}' "
        f"AND tags.`retrain.package_digest` = '{candidate.package_digest}'",
    )
    if found:
        model = found[0]
    else:
        model = client.create_logged_model(
            experiment,
            candidate.name,
            candidate.run_id,
            tags={"retrain.package_digest": candidate.package_digest},
        )
        client.log_outputs(candidate.run_id, [LoggedModelOutput(model.model_id, step=0)])
    if model.status != LoggedModelStatus.READY:
        description = Model.load(package)
        description.model_id = model.model_id
        description.run_id = candidate.run_id
        description.save(package / "MLmodel")
        client.log_model_artifacts(model.model_id, str(package))
        model = client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    return model


def _compact(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
