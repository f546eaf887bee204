"""Downloads the package of a registered version: the files that are served."""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from retrain import atomic, tracking
from retrain.digests import sha256_of
from retrain.project import Project
from retrain.registry.versions import ModelVersion

MODEL = "artifacts/model"  # the folder in a package with the files that `models.save` wrote
WEIGHTS = "model.safetensors"
EXAMPLES = "examples"  # the folder of the run's artifacts with what each package has to answer
REMEDY = (
    "Restore its files from a backup, or take another version: retrain rollback {name} --reason WHY"
)


def download(project: Project, version: ModelVersion) -> Path:
    """Downloads a version's package to this machine, if it is not here yet.

    Returns:
        The package's folder, as `versions.register` received it.

    Raises:
        ValueError: The weights are missing, or are not those that were registered.
    """
    uri = uri_of(project, version)
    local = tracking.local_path(uri)
    package = local or project.state / "champions" / version.package_digest
    if not local and not _has_weights(package, version):
        shutil.rmtree(package, ignore_errors=True)  # a damaged copy
        package.parent.mkdir(parents=True, exist_ok=True)
        with (
            atomic.replacing(package) as aside,
            TemporaryDirectory(dir=package.parent) as folder,
        ):
            _download(project, uri, Path(folder)).rename(aside)
    if not _has_weights(package, version):
        is_gone = not (package / MODEL / WEIGHTS).exists()
        fault = "are gone" if is_gone else "are not those that were registered"
        raise ValueError(
            f"The weights of {version.title} {fault}: {uri}.\n{REMEDY.format(name=version.name)}"
        )
    return package


def fetch(project: Project, version: ModelVersion, folder: Path) -> Path:
    """Takes a version's package from the registry, as it is there now.

    Args:
        project: The clone that the registry belongs to.
        version: The version of the model.
        folder: Where to download it to, if it is not on this machine.

    Returns:
        The package's folder; its files may be missing or changed.
    """
    uri = uri_of(project, version)
    return tracking.local_path(uri) or _download(project, uri, folder)


def _has_weights(package: Path, version: ModelVersion) -> bool:
    model = package / MODEL
    return (model / WEIGHTS).is_file() and digest_of_weights(model) == version.weights


def uri_of(project: Project, version: ModelVersion) -> str:
    """Where the registry has a version's package."""
    client = tracking.client(project)
    return str(client.get_model_version_download_uri(version.name, str(version.version)))


def _download(project: Project, uri: str, folder: Path) -> Path:
    """Downloads a package to a folder; gives that or a folder below, as the store has it."""
    from mlflow.artifacts import download_artifacts

    return Path(download_artifacts(uri, dst_path=str(folder), tracking_uri=project.tracking_uri))


def digest_of_weights(model: Path) -> str:
    """SHA-256 (hex) of the weights in a folder that `models.save` wrote."""
    return sha256_of(model / WEIGHTS)
