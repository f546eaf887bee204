"""Downloads the package of a registered version: the files that are served."""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from retrain import disk
from retrain.disk import sha256_of
from retrain.project import Project
from retrain.registry import tracking
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
    package = project.state / "champions" / version.package_digest
    if not _has_weights(package, version):
        shutil.rmtree(package, ignore_errors=True)  # a damaged copy
        package.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=package.parent) as place:
            fetched = fetch(project, version, Path(place))
            if not fetched.is_relative_to(place):
                package = fetched
            else:
                with disk.replacing(package) as aside:
                    fetched.rename(aside)
    if not _has_weights(package, version):
        is_gone = not (package / MODEL / WEIGHTS).exists()
        fault = "are gone" if is_gone else "are not those that were registered"
        raise ValueError(
            f"The weights of {version.title} {fault}: {package}.\n"
            f"{REMEDY.format(name=version.name)}"
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
    client = tracking.client(project)
    uri = client.get_model_version_download_uri(version.name, str(version.version))
    if local := tracking.local_path(uri):
        return local
    from mlflow.artifacts import download_artifacts

    return Path(download_artifacts(uri, dst_path=str(folder), tracking_uri=project.tracking_uri))


def _has_weights(package: Path, version: ModelVersion) -> bool:
    file = package / MODEL / WEIGHTS
    return file.is_file() and sha256_of(file) == version.weights
